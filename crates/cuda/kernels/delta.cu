// The gated delta net: causal convolution, the delta rule by chunks of 64 rows, its recurrence for one row.
//
// Row by row, with d = e^g: S <- d S; S <- S + k (beta (v - S^T k))^T; o = S^T q. By chunks, with c the running sum of g in
// the chunk and E[i][j] = e^(c[i] - c[j]) for j <= i:
//     T = (I + tril(beta K K^T * E, -1))^-1      P = tril(Q K^T * E)
//     U = T beta (V - e^c K S)                   O = e^c Q S + P U              S <- e^c[last] S + (e^(c[last] - c) K)^T U
//
// Shapes    wide [rows, wide_width] bf16: channels (queries, keys, values), then z, b, a; mixed [rows, channels] bf16; out
//           [rows, value_heads * V] bf16; states [slots, value_heads, V, K] f32 (S^T); inputs [slots, 3, channels] bf16, oldest
//           first. K and V are multiples of 8; K at most 128, V at most 256.
// Rounding  q, k, v and beta are bf16, as the reference's bf16 run has them; the rule itself is f32. Products with one or
//           two f32 sides run on the tensor cores with each f32 as the sum of two bf16: 2 or 3 products, what is lost is
//           below 2^-16 of a term.
// Sum order fixed by the chunk alone: mma chains over 16 at a time in ascending order; chunks count from the stream's first
//           row, a short last chunk is filled with rows of zeros. Nothing depends on other rows, chunks or streams.
#include "ptx.cuh"

struct Sizes {
    int key_heads, value_heads, key, value, channels, wide_width;
};

// Convolution of 4 taps, SiLU, and for queries and keys the unit length.
//
// Grid: a warp for ROWS rows and one head of channels (key_heads queries, key_heads keys, value_heads values), 8 rows at a
// time, of which the next are fetched meanwhile. Lane l has values 4 l .. 4 l + 3 (and 128 more, if a head has as many). Sum
// order: oldest tap first; squares as in the CPU's bf16 path: each rounded, four of a lane in order, lanes over distances 16 to
// 1. taps [4][channels] f32, oldest first. first_of: the first row of the row's segment in the round. Bound by memory.
constexpr int CONV_ROWS = 8;

// Sums over a warp of 8 values of each lane: lane l gets that of value `summed(l)`, over the distances of `warp_sum`.
__device__ __forceinline__ float warp_sums(const float (&x)[8], int lane) {
    float a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = (lane & 16 ? x[i + 4] : x[i]) + __shfl_xor_sync(~0u, lane & 16 ? x[i] : x[i + 4], 16);
#pragma unroll
    for (int i = 0; i < 2; i++) b[i] = (lane & 8 ? a[i + 2] : a[i]) + __shfl_xor_sync(~0u, lane & 8 ? a[i] : a[i + 2], 8);
    float sum = (lane & 4 ? b[1] : b[0]) + __shfl_xor_sync(~0u, lane & 4 ? b[0] : b[1], 4);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum + __shfl_xor_sync(~0u, sum, 1);
}

template <int ROWS>
__device__ __forceinline__ void convolve_rows(const bf16* wide, const float* taps, const bf16* inputs, const int* first_of,
                                              const int* slots_of, bf16* mixed, int rows, const Sizes& sizes) {
    const int lane = threadIdx.x & 31;
    const int warp = blockIdx.x * 8 + (threadIdx.x >> 5);
    const int heads = 2 * sizes.key_heads + sizes.value_heads;
    const int head = warp % heads, row0 = warp / heads * ROWS;
    if (row0 >= rows) return;
    const bool is_value = head >= 2 * sizes.key_heads;
    const int dim = is_value ? sizes.value : sizes.key;
    const int channel0 = is_value ? 2 * sizes.key_heads * sizes.key + (head - 2 * sizes.key_heads) * sizes.value : head * sizes.key;

    for (int part = 0; part < dim; part += 128) {
        const int d = part + 4 * lane, channel = channel0 + d;
        const bool there = d < dim;
        float4 tap[4];
#pragma unroll
        for (int t = 0; t < 4; t++) tap[t] = there ? *(const float4*)(taps + t * sizes.channels + channel) : make_float4(0, 0, 0, 0);
        auto halves = [&](const uint2& v) { return make_float4(low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y)); };
        auto read = [&](const bf16* from) { return halves(there ? *(const uint2*)from : make_uint2(0, 0)); };
        uint2 ahead[CONV_ROWS];
        int firsts;
        auto fetch = [&](int at) {
#pragma unroll
            for (int r = 0; r < CONV_ROWS; r++)
                ahead[r] = there && at + r < rows ? *(const uint2*)(wide + (size_t)(at + r) * sizes.wide_width + channel)
                                                  : make_uint2(0, 0);
            firsts = lane < CONV_ROWS && at + lane < rows ? first_of[at + lane] : 0;
        };
        fetch(row0);
        float4 past[3];  // the three rows before, oldest first
#pragma unroll 1
        for (int at = row0; at < min(row0 + ROWS, rows); at += CONV_ROWS) {
            uint2 now[CONV_ROWS];
#pragma unroll
            for (int r = 0; r < CONV_ROWS; r++) now[r] = ahead[r];
            const int now_firsts = firsts;
            if (at + CONV_ROWS < row0 + ROWS) fetch(at + CONV_ROWS);
            float y[CONV_ROWS][4];
#pragma unroll
            for (int r = 0; r < CONV_ROWS; r++) {
                const int row = at + r, first = __shfl_sync(~0u, now_firsts, r);
                if (row < rows && ((r == 0 && at == row0) || row == first)) {
                    const bf16* state = inputs + (size_t)slots_of[row] * 3 * sizes.channels + channel;
#pragma unroll
                    for (int back = 3; back >= 1; back--)
                        past[3 - back] = row - back >= first ? read(wide + (size_t)(row - back) * sizes.wide_width + channel)
                                                             : read(state + (size_t)(3 + row - first - back) * sizes.channels);
                }
                const float4 x = halves(now[r]);
                auto one = [&](float a, float b, float c, float d4, float ta, float tb, float tc, float td) {
                    const float sum = fmaf(d4, td, fmaf(c, tc, fmaf(b, tb, a * ta)));
                    return round_bf16(silu_fast(round_bf16(sum)));
                };
                y[r][0] = one(past[0].x, past[1].x, past[2].x, x.x, tap[0].x, tap[1].x, tap[2].x, tap[3].x);
                y[r][1] = one(past[0].y, past[1].y, past[2].y, x.y, tap[0].y, tap[1].y, tap[2].y, tap[3].y);
                y[r][2] = one(past[0].z, past[1].z, past[2].z, x.z, tap[0].z, tap[1].z, tap[2].z, tap[3].z);
                y[r][3] = one(past[0].w, past[1].w, past[2].w, x.w, tap[0].w, tap[1].w, tap[2].w, tap[3].w);
                past[0] = past[1], past[1] = past[2], past[2] = x;
            }
            if (!is_value) {  // a key head has at most 128 values, so this part is all of it
                float sums[CONV_ROWS];
#pragma unroll
                for (int r = 0; r < CONV_ROWS; r++) {
                    sums[r] = 0;
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[r] += round_bf16(y[r][i] * y[r][i]);
                }
                const float length = sqrtf(round_bf16(round_bf16(warp_sums(sums, lane)) + 1e-6f));
                const float inverse = round_bf16(1.0f / length);
#pragma unroll
                for (int r = 0; r < CONV_ROWS; r++) {
                    const float of_row = __shfl_sync(~0u, inverse, r * 4);
#pragma unroll
                    for (int i = 0; i < 4; i++) y[r][i] *= of_row;
                }
            }
#pragma unroll
            for (int r = 0; r < CONV_ROWS; r++)
                if (there && at + r < rows)
                    *(uint2*)(mixed + (size_t)(at + r) * sizes.channels + channel) = make_uint2(pack_bf16(y[r][0], y[r][1]), pack_bf16(y[r][2], y[r][3]));
        }
    }
}
extern "C" __global__ void __launch_bounds__(256)
    convolve_8(const bf16* wide, const float* taps, const bf16* inputs, const int* first_of, const int* slots_of, bf16* mixed,
               int rows, Sizes sizes) {
    chain();
    convolve_rows<8>(wide, taps, inputs, first_of, slots_of, mixed, rows, sizes);
}
extern "C" __global__ void __launch_bounds__(256, 2)
    convolve_32(const bf16* wide, const float* taps, const bf16* inputs, const int* first_of, const int* slots_of, bf16* mixed,
                int rows, Sizes sizes) {
    chain();
    convolve_rows<32>(wide, taps, inputs, first_of, slots_of, mixed, rows, sizes);
}

// Keeps the last three inputs of each segment. Grid: x blocks of 256 channels, y segments (4 ints: first row, rows, slot,
// unused).
extern "C" __global__ void __launch_bounds__(256)
    keep_inputs(const bf16* wide, bf16* inputs, const int4* segments, Sizes sizes) {
    chain();
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= sizes.channels) return;
    const int4 segment = segments[blockIdx.y];
    bf16* state = inputs + (size_t)segment.z * 3 * sizes.channels + channel;
    bf16 next[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int back = 3 - i;  // rows before the segment's end
        next[i] = back <= segment.y ? wide[(size_t)(segment.x + segment.y - back) * sizes.wide_width + channel]
                                    : state[(size_t)(i + segment.y) * sizes.channels];
    }
#pragma unroll
    for (int i = 0; i < 3; i++) state[(size_t)i * sizes.channels] = next[i];
}

__device__ __forceinline__ float decay_of(bf16 a, float rate, float bias) { return rate * softplus(widen(a) + bias); }
__device__ __forceinline__ float beta_of(bf16 b) { return round_bf16(sigmoid(widen(b))); }

// What a chunk of a head needs that no state enters: T beta and P as two bf16 each, and c.
//
// Grid: x chunks (4 ints: first row of the round, rows, unused, unused), y value heads. 128 threads. Out, by chunk and head: squares
// [4][64][64] bf16: T beta high and low, P high and low; sums [64] f32: c.
// Shared: keys, queries [64][KEY + 8] bf16; the strict lower triangle [64][68] f32; c, beta [64].
constexpr int SQUARE = 64 * 64;
template <int KEY>
__device__ __forceinline__ void prepare(const bf16* wide, const bf16* mixed, const float* rates, const float* biases,
                                        const int4* chunks, bf16* squares, float* sums, const Sizes& sizes) {
    constexpr int PITCH = KEY + 8, LOWER = 68;
    extern __shared__ __align__(16) uint8_t raw[];
    bf16* keys = (bf16*)raw;
    bf16* queries = keys + 64 * PITCH;
    float* lower = (float*)(queries + 64 * PITCH);
    float* c = lower + 64 * LOWER;
    float* beta = c + 64;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int4 chunk = chunks[blockIdx.x];
    const int head = blockIdx.y, key_head = head / (sizes.value_heads / sizes.key_heads);
    const size_t cell = (size_t)blockIdx.x * sizes.value_heads + head;
    squares += cell * 4 * SQUARE;
    sums += cell * 64;

    const uint32_t keys_at = shared_address(keys), queries_at = shared_address(queries);
    for (int i = threadIdx.x; i < 64 * (KEY / 8); i += 128) {
        const int r = i / (KEY / 8), d = i % (KEY / 8) * 8;
        const bool there = r < chunk.y && d < sizes.key;
        const bf16* from = mixed + (size_t)(chunk.x + (there ? r : 0)) * sizes.channels + key_head * sizes.key + (there ? d : 0);
        copy_16(queries_at + (r * PITCH + d) * 2, from, there);
        copy_16(keys_at + (r * PITCH + d) * 2, from + sizes.key_heads * sizes.key, there);
    }
    copies_commit();
    if (warp == 0) {
        // Rows 2 l and 2 l + 1 of lane l. The sums are f64, so that their order does not show.
        double own[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = 2 * lane + i;
            const bf16* gates = wide + (size_t)(chunk.x + r) * sizes.wide_width + sizes.channels + sizes.value_heads * sizes.value;
            const bool there = r < chunk.y;
            own[i] = there ? decay_of(gates[sizes.value_heads + head], rates[head], biases[head]) : 0.0f;
            beta[r] = there ? beta_of(gates[head]) : 0.0f;
        }
        double before = own[0] + own[1];
#pragma unroll
        for (int distance = 1; distance < 32; distance <<= 1) {
            const double other = __shfl_up_sync(~0u, before, distance);
            if (lane >= distance) before += other;
        }
        before -= own[0] + own[1];
        c[2 * lane] = before + own[0];
        c[2 * lane + 1] = before + own[0] + own[1];
        sums[2 * lane] = c[2 * lane];
        sums[2 * lane + 1] = c[2 * lane + 1];
    }
    copies_wait<0>();
    __syncthreads();

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
            load_tiles(b, keys_at + ((n * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + k * 16 + ((lane >> 3) & 1) * 8) * 2);
            mma(kk[2 * n], ka, b[0], b[1]);
            mma(kk[2 * n + 1], ka, b[2], b[3]);
            mma(qk[2 * n], qa, b[0], b[1]);
            mma(qk[2 * n + 1], qa, b[2], b[3]);
        }
    }
    const float scale = 1.0f / sqrtf((float)sizes.key);
#pragma unroll
    for (int t = 0; t < 8; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = warp * 16 + lane / 4 + 8 * r, j = t * 8 + 2 * (lane & 3);
            float p[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float fading = j + e <= i ? expf(c[i] - c[j + e]) : 0.0f;
                lower[i * LOWER + j + e] = j + e < i ? -beta[i] * kk[t][2 * r + e] * fading : 0.0f;
                p[e] = qk[t][2 * r + e] * scale * fading;
            }
            uint32_t high, low;
            split_bf16(p[0], p[1], high, low);
            *(uint32_t*)(squares + 2 * SQUARE + i * 64 + j) = high;
            *(uint32_t*)(squares + 3 * SQUARE + i * 64 + j) = low;
        }
    __syncthreads();

    // Column j of T by forward substitution, a thread each; four sums side by side, m % 4 of each term, then pairwise.
    if (threadIdx.x < 64) {
        const int j = threadIdx.x;
        float t[64];
#pragma unroll
        for (int i = 0; i < 64; i++) {
            float sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (int m = 0; m < i; m += 4) {
                const float4 a = *(const float4*)(lower + i * LOWER + m);
                sum[0] = fmaf(a.x, t[m], sum[0]);
                if (m + 1 < i) sum[1] = fmaf(a.y, t[m + 1], sum[1]);
                if (m + 2 < i) sum[2] = fmaf(a.z, t[m + 2], sum[2]);
                if (m + 3 < i) sum[3] = fmaf(a.w, t[m + 3], sum[3]);
            }
            t[i] = i == j ? 1.0f : i < j ? 0.0f : (sum[0] + sum[1]) + (sum[2] + sum[3]);
            const float x = t[i] * beta[j];
            const bf16 high = narrow(x);
            squares[i * 64 + j] = high;
            squares[SQUARE + i * 64 + j] = narrow(x - widen(high));
        }
    }
}

// Moves states on by the chunks of each segment and writes the outputs; of a segment with a mark (4 ints: chunks before it, 0 for
// none, and a slot, the rest unused) the states after those chunks go to that slot too.
//
// Grid: x groups of 64 values, y value heads, z segments (4 ints: first row of the round, rows, slot, first chunk of the
// round). Four warps compute and four fetch the next chunk beside them; a warp that computes has 16 values of S^T, [16][KEY] f32 in registers, through all chunks, and needs no other warp: with
// tokens as columns, U^T = (V^T - e^c S^T K^T) (T beta)^T, O^T = e^c S^T Q^T + U^T P^T and S^T <- e^c[last] S^T + (e^(c[last] - c) U)^T K
// each take the accumulators of the one before as their left side.
// Shared, twice (the next chunk is fetched while this one is worked on): keys, queries [64][KEY + 8]; squares [4][64][72];
// values [64][72] bf16; c [64] f32.
template <int KEY> struct Scan {
    static constexpr int PITCH = KEY + 8, SQUARE_PITCH = 72;
    static constexpr int KEYS = 0, QUERIES = KEYS + 64 * PITCH * 2, SQUARES = QUERIES + 64 * PITCH * 2,
                         VALUES = SQUARES + 4 * 64 * SQUARE_PITCH * 2, SUMS = VALUES + 64 * SQUARE_PITCH * 2, STAGE = SUMS + 64 * 4;
};

__device__ __forceinline__ void split_tiles(const float (&x)[4], const float (&y)[4], uint32_t (&high)[4], uint32_t (&low)[4]) {
    split_bf16(x[0], x[1], high[0], low[0]);
    split_bf16(x[2], x[3], high[1], low[1]);
    split_bf16(y[0], y[1], high[2], low[2]);
    split_bf16(y[2], y[3], high[3], low[3]);
}

// Four tiles of 8 columns, of which none waits for another.
__device__ __forceinline__ void product_2(float (&d0)[4], float (&d1)[4], float (&d2)[4], float (&d3)[4],
                                          const uint32_t (&a)[4], const uint32_t (&b)[2][4]) {
    mma(d0, a, b[0][0], b[0][1]);
    mma(d1, a, b[0][2], b[0][3]);
    mma(d2, a, b[1][0], b[1][1]);
    mma(d3, a, b[1][2], b[1][3]);
}

// d += (high + low) B^T for the rows of a lower triangle from block `k` of 16 on: high and low of B lie one behind the other.
// Of each accumulator the terms come in the order high high, low high, high low; other accumulators stand between.
template <class Map>
__device__ __forceinline__ void lower_product(float (&d)[8][4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                                              uint32_t square, int k, int along, int along_k) {
    uint32_t b[4][4], c[4][4];
#pragma unroll
    for (int n = k; n < 4; n++) {
        load_tiles(b[n], square + ((n * 16 + along) * Map::SQUARE_PITCH + k * 16 + along_k) * 2);
        load_tiles(c[n], square + ((64 + n * 16 + along) * Map::SQUARE_PITCH + k * 16 + along_k) * 2);
    }
#pragma unroll
    for (int n = k; n < 4; n++) mma(d[2 * n], high, b[n][0], b[n][1]), mma(d[2 * n + 1], high, b[n][2], b[n][3]);
#pragma unroll
    for (int n = k; n < 4; n++) mma(d[2 * n], low, b[n][0], b[n][1]), mma(d[2 * n + 1], low, b[n][2], b[n][3]);
#pragma unroll
    for (int n = k; n < 4; n++) mma(d[2 * n], high, c[n][0], c[n][1]), mma(d[2 * n + 1], high, c[n][2], c[n][3]);
}

template <int KEY>
__device__ __forceinline__ void scan(const bf16* mixed, const bf16* squares, const float* sums, const int4* segments,
                                     const int4* marks, float* states, bf16* out, const Sizes& sizes) {
    using Map = Scan<KEY>;
    extern __shared__ __align__(16) uint8_t raw[];
    const int warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31, thread = threadIdx.x & 127;
    const bool fetches = threadIdx.x >= 128;
    const int4 segment = segments[blockIdx.z];
    const int head = blockIdx.y, key_head = head / (sizes.value_heads / sizes.key_heads);
    const int group = blockIdx.x * 64, value0 = group + warp * 16;  // first value of the block, of the warp
    const int chunks = (segment.y + 63) / 64;
    const uint32_t base = shared_address(raw);

    auto fetch = [&](int chunk) {
        const uint32_t to = base + (chunk & 1) * Map::STAGE;
        const int row0 = segment.x + chunk * 64, rows = min(64, segment.y - chunk * 64);
        const size_t cell = (size_t)(segment.w + chunk) * sizes.value_heads + head;
#pragma unroll 4
        for (int i = thread; i < 64 * (KEY / 8); i += 128) {
            const int r = i / (KEY / 8), d = i % (KEY / 8) * 8;
            const bool there = r < rows && d < sizes.key;
            const bf16* from = mixed + (size_t)(row0 + (there ? r : 0)) * sizes.channels + key_head * sizes.key + (there ? d : 0);
            copy_16(to + Map::QUERIES + (r * Map::PITCH + d) * 2, from, there);
            copy_16(to + Map::KEYS + (r * Map::PITCH + d) * 2, from + sizes.key_heads * sizes.key, there);
        }
#pragma unroll 4
        for (int i = thread; i < 4 * 64 * 8; i += 128)
            copy_16(to + Map::SQUARES + ((i >> 3) * Map::SQUARE_PITCH + (i & 7) * 8) * 2, squares + cell * 4 * SQUARE + i * 8, true);
#pragma unroll 4
        for (int i = thread; i < 64 * 8; i += 128) {
            const int r = i >> 3, v = (i & 7) * 8;
            const bool there = r < rows && group + v < sizes.value;
            const bf16* from = mixed + (size_t)(row0 + (there ? r : 0)) * sizes.channels + 2 * sizes.key_heads * sizes.key +
                               head * sizes.value + (there ? group + v : 0);
            copy_16(to + Map::VALUES + (r * Map::SQUARE_PITCH + v) * 2, from, there);
        }
        if (thread < 16) copy_16(to + Map::SUMS + thread * 16, sums + cell * 64 + thread * 4, true);
        copies_commit();
        copies_wait<0>();
    };

    const int v = value0 + lane / 4;  // and 8 more: the thread's rows of S^T
    auto state_of = [&](int slot) { return states + ((size_t)slot * sizes.value_heads + head) * sizes.value * sizes.key; };
    float s[KEY / 8][4];
#pragma unroll
    for (int t = 0; t < KEY / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int row = v + 4 * i, d = 8 * t + 2 * (lane & 3);
            const bool there = !fetches && row < sizes.value && d < sizes.key;
            const float2 x = there ? *(const float2*)(state_of(segment.z) + (size_t)row * sizes.key + d) : make_float2(0, 0);
            s[t][i] = x.x, s[t][i + 1] = x.y;
        }

    // Lane's place in four tiles whose rows are 16 columns of the right side, and in four that are read across.
    const int along = (lane >> 4) * 8 + (lane & 7), along_k = ((lane >> 3) & 1) * 8;
    const int across = ((lane >> 3) & 1) * 8 + (lane & 7), across_n = (lane >> 4) * 8;
    const float scale = 1.0f / sqrtf((float)sizes.key);
    auto work = [&](int chunk) {
        const uint32_t at = base + (chunk & 1) * Map::STAGE;
        const float* c = (const float*)(raw + (chunk & 1) * Map::STAGE + Map::SUMS);

        float u[8][4], o[8][4];
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) u[t][i] = o[t][i] = 0;
        // Tiles of step i + 1 are loaded before those of step i are used; a step is 16 of k and half of the tokens.
        uint32_t keys[2][2][4], queries[2][2][4], high[4], low[4];
        auto load = [&](int i) {
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint32_t place = (((i % 2 * 2 + m) * 16 + along) * Map::PITCH + i / 2 * 16 + along_k) * 2;
                load_tiles(keys[i % 2][m], at + Map::KEYS + place);
                load_tiles(queries[i % 2][m], at + Map::QUERIES + place);
            }
        };
        load(0);
#pragma unroll
        for (int i = 0; i < KEY / 8; i++) {
            if (i + 1 < KEY / 8) load(i + 1);
            if (i % 2 == 0) split_tiles(s[i], s[i + 1], high, low);
            const int t = i % 2 * 4;
            product_2(u[t], u[t + 1], u[t + 2], u[t + 3], high, keys[i % 2]);
            product_2(o[t], o[t + 1], o[t + 2], o[t + 3], high, queries[i % 2]);
            product_2(u[t], u[t + 1], u[t + 2], u[t + 3], low, keys[i % 2]);
            product_2(o[t], o[t + 1], o[t + 2], o[t + 3], low, queries[i % 2]);
        }
        // u = V^T - e^c S^T K^T; o = e^c S^T Q^T scale
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            load_tiles_across(b, at + Map::VALUES + ((n * 16 + along) * Map::SQUARE_PITCH + warp * 16 + along_k) * 2);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int t = 2 * n + half;
                const float2 sum = *(const float2*)(c + 8 * t + 2 * (lane & 3));
                const float fade[2] = {expf(sum.x), expf(sum.y)};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t pair = b[2 * half + (i >> 1)];
                    const float value = i & 1 ? high_half(pair) : low_half(pair);
                    u[t][i] = value - fade[i & 1] * u[t][i];
                    o[t][i] *= fade[i & 1] * scale;
                }
            }
        }
        // u <- u (T beta)^T: tokens j of column block k reach tokens i of blocks k and later.
        float x[8][4];
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[t][i] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t high[4], low[4];
            split_tiles(u[2 * k], u[2 * k + 1], high, low);
            lower_product<Map>(x, high, low, at + Map::SQUARES, k, along, along_k);
        }
        // o += u P^T
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t high[4], low[4];
            split_tiles(x[2 * k], x[2 * k + 1], high, low);
            lower_product<Map>(o, high, low, at + Map::SQUARES + 128 * Map::SQUARE_PITCH * 2, k, along, along_k);
        }
        // S^T <- e^c[last] S^T + (e^(c[last] - c) u) K
        const float last = c[63], keep = expf(last);
#pragma unroll
        for (int t = 0; t < KEY / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[t][i] *= keep;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 sum = *(const float2*)(c + 16 * k + 8 * half + 2 * (lane & 3));
                const float fade[2] = {expf(last - sum.x), expf(last - sum.y)};
#pragma unroll
                for (int i = 0; i < 4; i++) x[2 * k + half][i] *= fade[i & 1];
            }
            split_tiles(x[2 * k], x[2 * k + 1], high, low);
            constexpr int TOGETHER = KEY < 32 ? 1 : 2;
#pragma unroll
            for (int n = 0; n < KEY / 16; n += TOGETHER) {
                uint32_t b[TOGETHER][4];
#pragma unroll
                for (int m = 0; m < TOGETHER; m++)
                    load_tiles_across(b[m], at + Map::KEYS + ((k * 16 + across) * Map::PITCH + (n + m) * 16 + across_n) * 2);
#pragma unroll
                for (int m = 0; m < TOGETHER; m++) mma(s[2 * (n + m)], high, b[m][0], b[m][1]), mma(s[2 * (n + m) + 1], high, b[m][2], b[m][3]);
#pragma unroll
                for (int m = 0; m < TOGETHER; m++) mma(s[2 * (n + m)], low, b[m][0], b[m][1]), mma(s[2 * (n + m) + 1], low, b[m][2], b[m][3]);
            }
        }
        // Outputs: turned, so that a thread has two values of one token.
        const int rows = min(64, segment.y - chunk * 64);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            const int token = 8 * t + lane / 4;
            bf16* to = out + (size_t)(segment.x + chunk * 64 + token) * sizes.value_heads * sizes.value + head * sizes.value;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t pair = turn_tile(pack_bf16(o[t][2 * half], o[t][2 * half + 1]));
                const int value = value0 + 8 * half + 2 * (lane & 3);
                if (token < rows && value < sizes.value) *(uint32_t*)(to + value) = pair;
            }
        }
    };
    auto keep_states = [&](int slot) {
        int v = value0 + lane / 4;
        asm volatile("" : "+r"(slot), "+r"(v));  // or places are worked out before the loop, where registers are short
        float* to = state_of(slot);
#pragma unroll
        for (int t = 0; t < KEY / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int row = v + 4 * i, d = 8 * t + 2 * (lane & 3);
                if (row < sizes.value && d < sizes.key) *(float2*)(to + (size_t)row * sizes.key + d) = make_float2(s[t][i], s[t][i + 1]);
            }
    };
    // Each barrier ends a chunk: what was fetched beside it is there, and its own stage may be filled again. The states are kept
    // after the last chunk, and at the mark.
#pragma unroll 1
    for (int chunk = -1; chunk < chunks; chunk++) {
        if (fetches) {
            if (chunk + 1 < chunks) fetch(chunk + 1);
        } else if (chunk >= 0) {
            work(chunk);
            const bool last = chunk + 1 == chunks;
            if (last || chunk + 1 == marks[blockIdx.z].x) keep_states(last ? segment.z : marks[blockIdx.z].y);
        }
        __syncthreads();
    }
}

#define DELTA(KEY)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                                    \
        prepare_##KEY(const bf16* wide, const bf16* mixed, const float* rates, const float* biases, const int4* chunks,     \
                      bf16* squares, float* sums, Sizes sizes) {                                                            \
        chain();                                                                                                            \
        prepare<KEY>(wide, mixed, rates, biases, chunks, squares, sums, sizes);                                             \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                                    \
        scan_##KEY(const bf16* mixed, const bf16* squares, const float* sums, const int4* segments, const int4* marks,      \
                   float* states, bf16* out, Sizes sizes) {                                                                 \
        chain();                                                                                                            \
        scan<KEY>(mixed, squares, sums, segments, marks, states, out, sizes);                                               \
    }
DELTA(16)
DELTA(32)
DELTA(64)
DELTA(128)

// One row of a stream by the recurrence.
//
// Grid: x streams (4 ints: row of the round, position, slot, unused), y value heads, z groups of 32 values. Four warps of 8 values;
// lane l has values l, l + 32, … of the key. Sum order: those in order, then lanes over distances 16 to 1. Bound by memory: each state is
// read once and written once.
extern "C" __global__ void __launch_bounds__(128)
    step(const bf16* wide, const bf16* mixed, const float* rates, const float* biases, const int4* streams, float* states,
         bf16* out, Sizes sizes) {
    chain();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int4 stream = streams[blockIdx.x];
    const int head = blockIdx.y, key_head = head / (sizes.value_heads / sizes.key_heads);
    const bf16* row = mixed + (size_t)stream.x * sizes.channels;
    const bf16* gates = wide + (size_t)stream.x * sizes.wide_width + sizes.channels + sizes.value_heads * sizes.value;
    const float fade = expf(decay_of(gates[sizes.value_heads + head], rates[head], biases[head])), beta = beta_of(gates[head]);
    const float scale = 1.0f / sqrtf((float)sizes.key);
    float q[4], k[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int d = lane + 32 * i;
        const bool there = d < sizes.key;
        q[i] = there ? widen(row[key_head * sizes.key + d]) * scale : 0.0f;
        k[i] = there ? widen(row[(sizes.key_heads + key_head) * sizes.key + d]) : 0.0f;
    }
    float* state = states + ((size_t)stream.z * sizes.value_heads + head) * sizes.value * sizes.key;
    float s[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int v = blockIdx.z * 32 + warp * 8 + j;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int d = lane + 32 * i;
            s[j][i] = v < sizes.value && d < sizes.key ? state[(size_t)v * sizes.key + d] : 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int v = blockIdx.z * 32 + warp * 8 + j;
        if (v >= sizes.value) break;
        float held = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[j][i] *= fade;
            held = fmaf(s[j][i], k[i], held);
        }
        held = warp_sum(held);
        const float delta = beta * (widen(row[2 * sizes.key_heads * sizes.key + head * sizes.value + v]) - held);
        float read = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[j][i] = fmaf(k[i], delta, s[j][i]);
            read = fmaf(s[j][i], q[i], read);
            const int d = lane + 32 * i;
            if (d < sizes.key) state[(size_t)v * sizes.key + d] = s[j][i];
        }
        read = warp_sum(read);
        if (lane == 0) out[(size_t)stream.x * sizes.value_heads * sizes.value + head * sizes.value + v] = narrow(read);
    }
}
