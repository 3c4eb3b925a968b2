// The delta rule by chunks of 64 rows for Hopper (sm_90a): keys of 128 values, heads of 64, 128, … values.
//
// The formulas are those of delta.cu, with tokens as columns:
//     X^T = V^T - e^c S^T K^T          U^T = X^T (T beta)^T
//     O^T = e^c S^T Q^T + U^T P^T      S^T <- e^c[last] S^T + (e^(c[last] - c) U)^T K
//
// Shapes    wide, mixed, out, states as in delta.cu. Between the two kernels, by chunk and value head: squares
//           [4][64][64] bf16: T beta high and low, P high and low, each row of 128 bytes in the 128-byte swizzle, as the tensor
//           cores read it; fades [2][64] f32: e^c and e^(c[last] - c).
// Rounding  as in delta.cu: f32 sides of products are two bf16 each, and 2 or 3 products are summed.
// Sum order fixed by the chunk alone: of each product the terms high high, low high, high low, each over its columns in
//           ascending steps of 16; chunks count from the stream's first row, a short last chunk is filled with zeros. Nothing
//           depends on other rows, chunks or streams.
#include "wgmma.cuh"

using namespace sm90;

struct Sizes {
    int key_heads, value_heads, key, value, channels, wide_width;
};

constexpr int KEY = 128;
constexpr int SQUARE = 64 * 64;
constexpr int GROUP_MAX = 8;  // value heads of a key head

__device__ __forceinline__ float decay_of(bf16 a, float rate, float bias) { return rate * softplus(widen(a) + bias); }
__device__ __forceinline__ float beta_of(bf16 b) { return round_bf16(sigmoid(widen(b))); }

// Place of value `column` of row `row` in a tile of 64 values a row, in values.
__device__ __forceinline__ int swizzled(int row, int column) { return row * 64 + (((column >> 3) ^ (row & 7)) << 3) + (column & 7); }

// d = A B on the tensor cores, A [16 M][K] and B [K][8] f32 in rows of LOWER values: each f32 as two tf32, high high + low high +
// high low; what is lost is below 2^-19 of a term.
constexpr int PITCH = KEY + 8, LOWER = 68;
__device__ __forceinline__ void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
template <int N> __device__ __forceinline__ void split_tf32(const float (&x)[N], float (&high)[N], float (&low)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) high[i] = __uint_as_float(__float_as_uint(x[i]) & 0xffffe000u), low[i] = x[i] - high[i];
}
template <int K, int M> __device__ __forceinline__ void product(float (&d)[M][4], const float* a, const float* b, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[m][i] = 0;
#pragma unroll
    for (int k = 0; k < K; k += 8) {
        const float* column = b + (k + (lane & 3)) * LOWER + lane / 4;
        const float y[2] = {column[0], column[4 * LOWER]};
        float y_high[2], y_low[2];
        split_tf32(y, y_high, y_low);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float* row = a + (16 * m + lane / 4) * LOWER + k + (lane & 3);
            const float x[4] = {row[0], row[8 * LOWER], row[4], row[8 * LOWER + 4]};
            float x_high[4], x_low[4];
            split_tf32(x, x_high, x_low);
            mma_tf32(d[m], x_high, y_high);
            mma_tf32(d[m], x_low, y_high);
            mma_tf32(d[m], x_high, y_low);
        }
    }
}
// Writes it into its place, from which the warp itself may have read before and will read after.
template <int M> __device__ __forceinline__ void keep_product(const float (&d)[M][4], float* to, int lane) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            *(float2*)(to + (16 * m + 8 * r + lane / 4) * LOWER + 2 * (lane & 3)) = make_float2(d[m][2 * r], d[m][2 * r + 1]);
    __syncwarp();
}

// What chunks need that no state enters: T beta, P and the fades.
//
// Grid: x chunks (4 ints: first row of the round, rows, unused, unused), y key heads, whose value heads come one after the
// other: K K^T and Q K^T are theirs together. 128 threads.
// (I + L)^-1 is made of blocks of 16, then 32, then 64 rows: the inverse of [A 0; C B] has -B^-1 C A^-1 below. All with
// f32 accuracy.
// Shared: keys, queries [64][136] bf16, and over them, once they are used, the negated lower triangle and its inverse
// [64][68] f32 each; P [2][64][64] bf16; c as a power of two and beta [GROUP_MAX][64] f32 each.
extern "C" __global__ void __launch_bounds__(128, 4)
    prepare_sm90(const bf16* wide, const bf16* mixed, const float* rates, const float* biases, const int4* chunks,
                 bf16* squares, float* fades, Sizes sizes) {
    chain();
    extern __shared__ __align__(128) uint8_t raw[];
    bf16* keys = (bf16*)raw;
    bf16* queries = keys + 64 * PITCH;
    float* lower = (float*)raw;
    float* inverse = lower + 64 * LOWER;
    bf16* p = (bf16*)(raw + 2 * 64 * PITCH * 2);
    float* cs = (float*)(p + 2 * SQUARE);
    float* betas = cs + GROUP_MAX * 64;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int4 chunk = chunks[blockIdx.x];
    const int key_head = blockIdx.y, group = sizes.value_heads / sizes.key_heads;

    const uint32_t keys_at = shared_address(keys), queries_at = shared_address(queries);
    for (int i = threadIdx.x; i < 64 * (KEY / 8); i += 128) {
        const int r = i / (KEY / 8), d = i % (KEY / 8) * 8;
        const bool there = r < chunk.y;
        const bf16* from = mixed + (size_t)(chunk.x + (there ? r : 0)) * sizes.channels + key_head * KEY + d;
        copy_16(queries_at + (r * PITCH + d) * 2, from, there);
        copy_16(keys_at + (r * PITCH + d) * 2, from + sizes.key_heads * KEY, there);
    }
    copies_commit();
    for (int h = warp; h < group; h += 4) {
        // Rows 2 l and 2 l + 1 of lane l. The sums are f64, so that their order does not show.
        const int head = key_head * group + h;
        double own[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = 2 * lane + i;
            const bool there = r < chunk.y;
            const bf16* gates = wide + (size_t)(chunk.x + (there ? r : 0)) * sizes.wide_width + sizes.channels + sizes.value_heads * sizes.value;
            own[i] = there ? decay_of(gates[sizes.value_heads + head], rates[head], biases[head]) : 0.0f;
            betas[h * 64 + r] = there ? beta_of(gates[head]) : 0.0f;
        }
        double before = own[0] + own[1];
#pragma unroll
        for (int distance = 1; distance < 32; distance <<= 1) {
            const double other = __shfl_up_sync(~0u, before, distance);
            if (lane >= distance) before += other;
        }
        const float last = (float)__shfl_sync(~0u, before, 31);
        before -= own[0] + own[1];
        constexpr double LOG2_E = 1.4426950408889634;
        const float c[2] = {(float)(before + own[0]), (float)(before + own[0] + own[1])};
        float* to = fades + ((size_t)blockIdx.x * sizes.value_heads + head) * 128;
        *(float2*)(cs + h * 64 + 2 * lane) = make_float2((float)((before + own[0]) * LOG2_E), (float)((before + own[0] + own[1]) * LOG2_E));
        *(float2*)(to + 2 * lane) = make_float2(expf(c[0]), expf(c[1]));
        *(float2*)(to + 64 + 2 * lane) = make_float2(expf(last - c[0]), expf(last - c[1]));
    }
    copies_wait<0>();
    __syncthreads();

    // Rows 16 warp .. 16 warp + 15 of K K^T and Q K^T, up to the diagonal.
    float kk[8][4], qk[8][4];
#pragma unroll
    for (int t = 0; t < 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) kk[t][i] = qk[t][i] = 0;
#pragma unroll
    for (int k = 0; k < KEY / 16; k++) {
        uint32_t ka[4], qa[4], b[4];
        const int at = ((warp * 16 + (lane & 15)) * PITCH + k * 16 + (lane >> 4) * 8) * 2;
        load_tiles(ka, keys_at + at);
        load_tiles(qa, queries_at + at);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp) continue;
            load_tiles(b, keys_at + ((n * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + k * 16 + ((lane >> 3) & 1) * 8) * 2);
            mma(kk[2 * n], ka, b[0], b[1]);
            mma(kk[2 * n + 1], ka, b[2], b[3]);
            mma(qk[2 * n], qa, b[0], b[1]);
            mma(qk[2 * n + 1], qa, b[2], b[3]);
        }
    }
    __syncthreads();

    const float scale = 1.0f / sqrtf((float)KEY);
    for (int h = 0; h < group; h++) {
        const float* c = cs + h * 64;
        const float* beta = betas + h * 64;
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = warp * 16 + lane / 4 + 8 * r, j = t * 8 + 2 * (lane & 3);
                uint32_t high = 0, low = 0;
                if (t / 2 <= warp) {
                    const float2 cj = *(const float2*)(c + j);
                    const float fade[2] = {j <= i ? exp2_fast(c[i] - cj.x) : 0.0f, j + 1 <= i ? exp2_fast(c[i] - cj.y) : 0.0f};
                    const float rate = -beta[i];
                    *(float2*)(lower + i * LOWER + j) = make_float2(j < i ? rate * kk[t][2 * r] * fade[0] : 0.0f,
                                                                    j + 1 < i ? rate * kk[t][2 * r + 1] * fade[1] : 0.0f);
                    split_bf16(qk[t][2 * r] * scale * fade[0], qk[t][2 * r + 1] * scale * fade[1], high, low);
                }
                *(uint32_t*)(p + swizzled(i, j)) = high;
                *(uint32_t*)(p + SQUARE + swizzled(i, j)) = low;
            }
        __syncwarp();
        // Four inverses of 16 rows, of a warp's own triangle each; lane j has column j by forward substitution.
        {
            const int b = warp * 16, j = lane & 15;
            float t[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                float sum[4] = {0, 0, 0, 0};
#pragma unroll
                for (int m = 0; m < i; m += 4) {
                    const float4 a = *(const float4*)(lower + (b + i) * LOWER + b + m);
                    sum[0] = fmaf(a.x, t[m], sum[0]);
                    if (m + 1 < i) sum[1] = fmaf(a.y, t[m + 1], sum[1]);
                    if (m + 2 < i) sum[2] = fmaf(a.z, t[m + 2], sum[2]);
                    if (m + 3 < i) sum[3] = fmaf(a.w, t[m + 3], sum[3]);
                }
                t[i] = i == j ? 1.0f : i < j ? 0.0f : (sum[0] + sum[1]) + (sum[2] + sum[3]);
                // The block to the right of an even one is read below, so it must be zero.
                if (lane < 16) inverse[(b + i) * LOWER + b + j] = t[i];
                else if (warp % 2 == 0) inverse[(b + i) * LOWER + b + 16 + j] = 0.0f;
            }
        }
        __syncthreads();
        // Two blocks of 16 below the diagonal: a warp has 8 columns of one, so what lies between the products is its own.
        {
            const int b = warp / 2 * 32, j = b + warp % 2 * 8;
            float d[1][4];
            product<16>(d, lower + (b + 16) * LOWER + b, inverse + b * LOWER + j, lane);
            keep_product(d, inverse + (b + 16) * LOWER + j, lane);
            product<16>(d, inverse + (b + 16) * LOWER + b + 16, inverse + (b + 16) * LOWER + j, lane);
            keep_product(d, inverse + (b + 16) * LOWER + j, lane);
        }
        __syncthreads();
        // The block of 32: a warp has 8 columns.
        {
            const int j = warp * 8;
            float d[2][4];
            product<32>(d, lower + 32 * LOWER, inverse + j, lane);
            keep_product(d, inverse + 32 * LOWER + j, lane);
            product<32>(d, inverse + 32 * LOWER + 32, inverse + 32 * LOWER + j, lane);
            keep_product(d, inverse + 32 * LOWER + j, lane);
        }
        __syncthreads();
        bf16* to = squares + ((size_t)blockIdx.x * sizes.value_heads + key_head * group + h) * 4 * SQUARE;
#pragma unroll
        for (int g = threadIdx.x; g < SQUARE / 8; g += 128) {
            const int i = g >> 3, j = (g & 7) * 8;
            uint32_t high[4], low[4];
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                const float2 x = *(const float2*)(inverse + i * LOWER + j + e), b = *(const float2*)(beta + j + e);
                split_bf16(j + e <= i ? x.x * b.x : 0.0f, j + e + 1 <= i ? x.y * b.y : 0.0f, high[e / 2], low[e / 2]);
            }
            const int at = swizzled(i, j);
            *(uint4*)(to + at) = make_uint4(high[0], high[1], high[2], high[3]);
            *(uint4*)(to + SQUARE + at) = make_uint4(low[0], low[1], low[2], low[3]);
        }
#pragma unroll
        for (int g = threadIdx.x; g < 2 * SQUARE / 8; g += 128) *(uint4*)(to + 2 * SQUARE + g * 8) = *(const uint4*)(p + g * 8);
        __syncthreads();
    }
}

// Moves states on by the chunks of each segment and writes the outputs; of a segment with a mark (4 ints: chunks before it, 0 for
// none, and a slot, the rest unused) the states after those chunks go to that slot too.
//
// Grid      x groups of 64 values, y value heads, z segments (4 ints: first row of the round, rows, slot, first chunk of the
//           round).
// Warps     one warpgroup with S^T [64][128] in its registers through all chunks, a warp for 16 values of them; a warp of which
//           one thread fetches up to three chunks ahead.
// Pipeline  every left side comes from registers, so nothing goes through shared memory from product to product. The tensor
//           cores are kept busy by what does not wait: S^T Q^T beside making X, U^T P^T beside rounding the new S.
// Shared, 1024-byte aligned, three stages: keys, queries 2 x [64][64] bf16 each; squares 4 x [64][64]; values [64][64]; then
//           outputs of a chunk [64][64]; the fades [2][64] f32 of each stage; barriers full, empty of each.
// Barriers  full: one arrival and the bytes. empty: one arrival of each of the four warps.
constexpr int STAGES = 3;
constexpr uint32_t TILE = 64 * 128;
constexpr uint32_t KEYS_AT = 0, QUERIES_AT = 2 * TILE, SQUARES_AT = 4 * TILE, VALUES_AT = 8 * TILE, STAGE = 9 * TILE;
constexpr uint32_t OUT_AT = STAGES * STAGE, FADES_AT = OUT_AT + TILE, BARRIERS_AT = FADES_AT + STAGES * 512;

// A tile stored [k][n] with the 128-byte swizzle, 64 columns n a part: TILE bytes between parts, 1024 between groups of 8 k.
__device__ __forceinline__ uint64_t across_desc(uint32_t at) {
    return (uint64_t)((at & 0x3FFFF) >> 4) | ((uint64_t)(TILE >> 4) << 16) | (64ull << 32) | (1ull << 62);
}
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int N> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}

// The left side of a product, 16 columns of it: sums of the tiles 2 k and 2 k + 1 as two bf16 each.
__device__ __forceinline__ void split_tiles(const float* x, uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) split_bf16(x[2 * i], x[2 * i + 1], high[i], low[i]);
}

// d (+)= A B^T for B [64][128] in two parts.
__device__ __forceinline__ void by_keys(float (&d)[32], const uint32_t (&a)[8][4], uint32_t at, bool keep) {
#pragma unroll
    for (int k = 0; k < KEY / 16; k++)
        WgmmaRegisters<64, false>::mma(d, a[k], matrix_desc(at + (k / 4) * TILE) + 2 * (k % 4), k > 0 || keep);
}

// d (+)= A B^T for a lower triangle B [64][64]: rows below 32 have nothing from column 32 on.
__device__ __forceinline__ void by_square(float (&d)[32], const uint32_t (*a)[4], uint32_t at, bool keep) {
    WgmmaRegisters<64, false>::mma(d, a[0], matrix_desc(at), keep);
    WgmmaRegisters<64, false>::mma(d, a[1], matrix_desc(at) + 2, 1);
    WgmmaRegisters<64, false>::mma(d, a[2], matrix_desc(at) + 4, 1);
    WgmmaRegisters<64, false>::mma(d, a[3], matrix_desc(at) + 6, 1);
}

extern "C" __global__ void __launch_bounds__(160, 1)
    scan_sm90(const __grid_constant__ CUtensorMap mixed_map, const bf16* squares, const float* fades, const int4* segments,
              const int4* marks, float* states, bf16* out, Sizes sizes) {
    chain();
    extern __shared__ uint8_t raw[];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    uint8_t* const shared = raw + (base - shared_address(raw));
    const uint32_t full = base + BARRIERS_AT, empty = full + STAGES * 8;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int4 segment = segments[blockIdx.z], mark = marks[blockIdx.z];
    const int head = blockIdx.y, key_head = head / (sizes.value_heads / sizes.key_heads);
    const int value0 = blockIdx.x * 64;
    const int chunks = (segment.y + 63) / 64;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) mbar_init(full + 8 * s, 1), mbar_init(empty + 8 * s, 4);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
    }
    __syncthreads();

    if (warp == 4) {
        if (lane == 0) {
            for (int chunk = 0; chunk < chunks; chunk++) {
                const int s = chunk % STAGES, row = segment.x + chunk * 64;
                const uint32_t to = base + s * STAGE, bar = full + 8 * s;
                const size_t cell = (size_t)(segment.w + chunk) * sizes.value_heads + head;
                mbar_wait(empty + 8 * s, (chunk / STAGES & 1) ^ 1);
                mbar_expect(bar, STAGE + 512);
                const int queries = key_head * KEY, keys = queries + sizes.key_heads * KEY;
                tma_load(to + KEYS_AT, &mixed_map, bar, keys, row);
                tma_load(to + KEYS_AT + TILE, &mixed_map, bar, keys + 64, row);
                bulk_load(base + FADES_AT + s * 512, fades + cell * 128, 512, bar);
                tma_load(to + VALUES_AT, &mixed_map, bar, 2 * sizes.key_heads * KEY + head * sizes.value + value0, row);
                tma_load(to + QUERIES_AT, &mixed_map, bar, queries, row);
                tma_load(to + QUERIES_AT + TILE, &mixed_map, bar, queries + 64, row);
                bulk_load(to + SQUARES_AT, squares + cell * 4 * SQUARE, 4 * TILE, bar);
            }
        }
        return;
    }

    // Of d a thread has rows v and v + 8 of the block's values and of each 8 columns two.
    const int v = warp * 16 + lane / 4, column = 2 * (lane & 3);
    auto state_of = [&](int slot) {
        return states + ((size_t)slot * sizes.value_heads + head) * sizes.value * KEY + (size_t)(value0 + v) * KEY + column;
    };
    float s[64], u[32], o[32];
#pragma unroll
    for (int g = 0; g < 16; g++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 x = *(const float2*)(state_of(segment.z) + r * 8 * KEY + 8 * g);
            s[4 * g + 2 * r] = x.x, s[4 * g + 2 * r + 1] = x.y;
        }
    auto keep_states = [&](int slot) {
        float* to = state_of(slot);
#pragma unroll
        for (int g = 0; g < 16; g++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *(float2*)(to + r * 8 * KEY + 8 * g) = make_float2(s[4 * g + 2 * r], s[4 * g + 2 * r + 1]);
    };
    // A lane's row of four 8 x 8 tiles: 16 tokens (16 n and on) by the warp's 16 values, of values or outputs.
    const int token_at = (lane >> 4) * 8 + (lane & 7), part_at = warp * 2 + ((lane >> 3) & 1);
    const uint32_t tile_at = token_at * 128 + ((part_at ^ (token_at & 7)) << 4);
    const float scale = 1.0f / sqrtf((float)KEY);
    uint32_t high[8][4], low[8][4], xh[4][4], xl[4][4], fh[4][4], fl[4][4];

    // Outputs of a chunk: turned on the way through the warp's own place, so that its 16 values of a row are written together.
    auto finish = [&](int chunk) {
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 4; n++)
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(base + OUT_AT + tile_at + n * 2048),
                         "r"(pack_bf16(o[8 * n], o[8 * n + 1])), "r"(pack_bf16(o[8 * n + 2], o[8 * n + 3])),
                         "r"(pack_bf16(o[8 * n + 4], o[8 * n + 5])), "r"(pack_bf16(o[8 * n + 6], o[8 * n + 7])) : "memory");
        __syncwarp();
        const int rows = segment.y - chunk * 64;
        const size_t width = (size_t)sizes.value_heads * sizes.value;
        bf16* to = out + (size_t)(segment.x + chunk * 64 + lane / 2) * width + head * sizes.value + value0 + warp * 16 + (lane & 1) * 8;
        const uint32_t from = base + OUT_AT + (lane / 2) * 128 + (((warp * 2 + (lane & 1)) ^ (lane / 2 & 7)) << 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i * 16 + lane / 2 < rows)
                asm volatile("{\n.reg .b32 a, b, c, d;\nld.shared.v4.b32 {a, b, c, d}, [%0];\nst.global.v4.b32 [%1], {a, b, c, d};\n}\n" ::"r"(from + i * 2048),
                             "l"(to + i * 16 * width) : "memory");
    };

    // Waits for a chunk. What lies behind the segment is another's: zeros take its place, or its infinities would meet zeros.
    auto await = [&](int chunk) {
        const int stage = chunk % STAGES, rows = segment.y - chunk * 64;
        mbar_wait(full + 8 * stage, chunk / STAGES & 1);
        if (rows < 64) {
            for (int i = threadIdx.x; i < (64 - rows) * 8; i += 128) {
                uint8_t* at = shared + stage * STAGE + (rows + (i >> 3)) * 128 + (i & 7) * 16;
                for (const uint32_t tile : {KEYS_AT, KEYS_AT + TILE, VALUES_AT}) *(uint4*)(at + tile) = make_uint4(0, 0, 0, 0);
            }
            asm volatile("fence.proxy.async.shared::cta;\nbar.sync 1, 128;\n" ::: "memory");
        }
    };
    // S^T K^T of a chunk.
    auto hold = [&](int chunk) {
        const uint32_t keys = base + (chunk % STAGES) * STAGE + KEYS_AT;
        fence_regs(u);
        products_begin();
        by_keys(u, high, keys, false);
        by_keys(u, low, keys, true);
        products_end();
    };

    await(0);
#pragma unroll
    for (int k = 0; k < 8; k++) split_tiles(s + 8 * k, high[k], low[k]);
    hold(0);
    products_wait<0>();
    fence_regs(u);
    for (int chunk = 0; chunk < chunks; chunk++) {
        const uint32_t at = base + (chunk % STAGES) * STAGE;
        const float* fade = (const float*)(shared + FADES_AT + (chunk % STAGES) * 512) + column;
        const int next = min(chunk + 1, chunks - 1);
        fence_regs(o);
        products_begin();
        by_keys(o, high, at + QUERIES_AT, false);
        products_end();

#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            load_tiles_across(b, at + VALUES_AT + tile_at + n * 2048);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int t = 2 * n + half;
                const float2 pair = *(const float2*)(fade + 8 * t);
                const float f[2] = {pair.x, pair.y};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t x = b[2 * half + (i >> 1)];
                    const float value = i & 1 ? high_half(x) : low_half(x);
                    u[4 * t + i] = value - f[i & 1] * u[4 * t + i];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) split_tiles(u + 8 * k, xh[k], xl[k]);
        fence_regs(u);
        products_begin();
        by_square(u, xh, at + SQUARES_AT, false);
        by_square(u, xl, at + SQUARES_AT, true);
        by_square(u, xh, at + SQUARES_AT + TILE, true);
        products_end();
        fence_regs(o);
        products_begin();
        by_keys(o, low, at + QUERIES_AT, true);
        products_end();
        await(next);
        const float keep = *(fade - column + 63);
#pragma unroll
        for (int i = 0; i < 64; i++) s[i] *= keep;
        products_wait<1>();
        fence_regs(u);
        float faded[32];
#pragma unroll
        for (int t = 0; t < 8; t++) {
            const float2 pair = *(const float2*)(fade + 64 + 8 * t);
            const float f[2] = {pair.x, pair.y};
#pragma unroll
            for (int i = 0; i < 4; i++) faded[4 * t + i] = u[4 * t + i] * f[i & 1];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) split_tiles(faded + 8 * k, fh[k], fl[k]);
        fence_regs(s);
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) WgmmaRegisters<KEY, true>::mma(s, fh[k], across_desc(at + KEYS_AT + k * 2048), 1);
#pragma unroll
        for (int k = 0; k < 4; k++) WgmmaRegisters<KEY, true>::mma(s, fl[k], across_desc(at + KEYS_AT + k * 2048), 1);
        products_end();
        fence_regs(s);
        products_wait<1>();
        fence_regs(o);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            const float2 pair = *(const float2*)(fade + 8 * t);
            const float f[2] = {pair.x * scale, pair.y * scale};
#pragma unroll
            for (int i = 0; i < 4; i++) o[4 * t + i] *= f[i & 1];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) split_tiles(u + 8 * k, xh[k], xl[k]);
        fence_regs(o);
        products_begin();
        by_square(o, xh, at + SQUARES_AT + 2 * TILE, true);
        by_square(o, xl, at + SQUARES_AT + 2 * TILE, true);
        by_square(o, xh, at + SQUARES_AT + 3 * TILE, true);
        products_end();
        fence_regs(o);
        products_wait<1>();
        fence_regs(s);
#pragma unroll
        for (int k = 0; k < 8; k++) split_tiles(s + 8 * k, high[k], low[k]);
        hold(next);
        products_wait<1>();
        fence_regs(o);
        if (lane == 0) mbar_arrive(empty + 8 * (chunk % STAGES));
        finish(chunk);
        products_wait<0>();
        fence_regs(u);
        if (chunk + 1 == mark.x) keep_states(mark.y);
    }
    keep_states(segment.z);
}
