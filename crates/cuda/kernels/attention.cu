// Full attention but for Hopper's prefill kernel: q and k norms, rotary turns and the cache; prefill with mma.sync; decode.
//
// Shapes    wide [rows, wide_width] bf16: per head query and gate, [heads][2][dim], then keys and values, [kv_heads][dim]
//           each; queries, out [rows, heads * dim] bf16; keys, values [slots, kv_heads, positions, dim] bf16; turns
//           [positions, half] cosine and sine, f32. dim is a multiple of 8, at most 256.
// Sum order see each kernel; none depends on the rows beside a row, on the tile, or on where a prompt was cut.
// Rounding  as the reference's bf16 run: norms, each step of a turn, exponentials before they weigh values, the weighted
//           values, the gate and its product.
#include "ptx.cuh"

// Norms and turns queries, and keys into the cache with their values.
//
// Grid: a warp for each row and each of heads + 2 kv_heads heads. Sum order: lane l adds the squares of values l, l + 32, …
// in order, then the lanes over distances 16 to 1. Bound by memory.
extern "C" __global__ void __launch_bounds__(256)
    turn_heads(const bf16* wide, const float* q_norm, const float* k_norm, const float2* turns, const int* positions_of,
               const int* slots_of, bf16* queries, bf16* keys, bf16* values, int rows, int wide_width, int heads,
               int kv_heads, int dim, int half, int positions, float eps) {
    chain();
    __shared__ float scratch[8][256];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const size_t cell = (size_t)blockIdx.x * 8 + warp;
    const int cells = heads + 2 * kv_heads;
    if (cell >= (size_t)rows * cells) return;
    const int row = cell / cells, which = cell % cells;
    const int position = positions_of[row];
    const bf16* from = wide + (size_t)row * wide_width;
    const size_t slot_head = (size_t)slots_of[row] * kv_heads;
    if (which >= heads + kv_heads) {
        const int head = which - heads - kv_heads;
        from += 2 * heads * dim + (kv_heads + head) * dim;
        bf16* to = values + ((slot_head + head) * positions + position) * dim;
        for (int d = lane; d < dim; d += 32) to[d] = from[d];
        return;
    }
    const bool is_key = which >= heads;
    const int head = is_key ? which - heads : which;
    from += is_key ? 2 * heads * dim + head * dim : 2 * head * dim;
    bf16* to = is_key ? keys + ((slot_head + head) * positions + position) * dim : queries + ((size_t)row * heads + head) * dim;
    const float* weight = is_key ? k_norm : q_norm;

    float x[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int d = lane + 32 * i;
        x[i] = d < dim ? widen(from[d]) : 0.0f;
        sum += x[i] * x[i];
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / dim + eps);
    float* normed = scratch[warp];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int d = lane + 32 * i;
        if (d < dim) normed[d] = round_bf16(x[i] * scale * weight[d]);
    }
    __syncwarp();
    const float2* turn = turns + (size_t)position * half;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int d = lane + 32 * i;
        if (d >= dim) continue;
        float y = normed[d];
        if (d < 2 * half) {
            const bool low = d < half;
            const float2 t = turn[low ? d : d - half];
            const float other = normed[low ? d + half : d - half];
            y = round_bf16(y * t.x) + round_bf16(low ? -other * t.y : other * t.y);
        }
        to[d] = narrow(y);
    }
}

// Prefill: causal attention of a tile of 64 query rows of one stream and one head.
//
// Grid: x tiles (4 ints: first row of the round, rows, position of the first row, a multiple of 64, slot), y heads. Four
// warps of 16 rows. Sum order: keys in blocks of 64 from the stream's first position, in order, up to the last row of the
// tile, which begins at a multiple of 64; products are mma chains over 16 at a time, the maximum and the sum run over
// the blocks. DIM is the head's width rounded up; what lies past it is zero.
template <int DIM>
__device__ __forceinline__ void attend(const bf16* queries, const bf16* keys, const bf16* values, const int4* tiles,
                                       const bf16* wide, bf16* out, int wide_width, int heads, int kv_heads, int dim,
                                       int positions, float scale) {
    constexpr int PITCH = DIM + 8;  // values of a row in shared memory; keeps tile rows in different banks
    extern __shared__ __align__(16) bf16 shared[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int4 tile = tiles[blockIdx.x];
    const int first_row = tile.x, rows = tile.y, position = tile.z, head = blockIdx.y;
    const int kv_head = head / (heads / kv_heads);
    const size_t cache = (size_t)(tile.w * kv_heads + kv_head) * positions * dim;
    const int blocks = (position + rows + 63) / 64;
    const uint32_t q_at = shared_address(shared), k_at = q_at + 64 * PITCH * 2, v_at = k_at + 64 * PITCH * 2;

    auto fetch = [&](uint32_t to, const bf16* from, size_t pitch, int count) {
        for (int i = threadIdx.x; i < 64 * (DIM / 8); i += 128) {
            const int r = i / (DIM / 8), c = i % (DIM / 8) * 8;
            const bool there = r < count && c < dim;
            copy_16(to + (r * PITCH + c) * 2, there ? from + r * pitch + c : from, there);
        }
    };
    fetch(q_at, queries + ((size_t)first_row * heads + head) * dim, (size_t)heads * dim, rows);

    const int row = warp * 16 + lane / 4;  // and 8 more, of the tile's
    float o[DIM / 8][4], max[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
    for (int t = 0; t < DIM / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[t][i] = 0;
    for (int block = 0; block < blocks; block++) {
        __syncthreads();  // the block before is read
        fetch(k_at, keys + cache + (size_t)block * 64 * dim, dim, 64);
        fetch(v_at, values + cache + (size_t)block * 64 * dim, dim, 64);
        copies_commit();
        copies_wait<0>();
        __syncthreads();

        float s[8][4];
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[t][i] = 0;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t a[4], b[4];
            load_tiles(a, q_at + ((warp * 16 + (lane & 15)) * PITCH + k * 16 + (lane >> 4) * 8) * 2);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                load_tiles(b, k_at + ((n * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + k * 16 + ((lane >> 3) & 1) * 8) * 2);
                mma(s[2 * n], a, b[0], b[1]);
                mma(s[2 * n + 1], a, b[2], b[3]);
            }
        }
        float fade[2], top[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = block * 64 + t * 8 + 2 * (lane & 3) + (i & 1);
                if (key > position + row + 8 * (i >> 1)) s[t][i] = -INFINITY;
                top[i >> 1] = fmaxf(top[i >> 1], s[t][i]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
            const float now = fmaxf(max[r], top[r] * scale);
            fade[r] = exp2_fast(max[r] - now);
            max[r] = now;
        }
        float sum[2] = {0, 0};
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[t][i] = exp2_fast(fmaf(s[t][i], scale, -max[i >> 1]));
                sum[i >> 1] += s[t][i];
            }
#pragma unroll
        for (int r = 0; r < 2; r++) total[r] = fmaf(total[r], fade[r], sum[r]);
#pragma unroll
        for (int t = 0; t < DIM / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[t][i] *= fade[i >> 1];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t a[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
                                   pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                uint32_t b[4];
                load_tiles_across(b, v_at + ((k * 16 + ((lane >> 3) & 1) * 8 + (lane & 7)) * PITCH + n * 16 + (lane >> 4) * 8) * 2);
                mma(o[2 * n], a, b[0], b[1]);
                mma(o[2 * n + 1], a, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = total[r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float inverse = 1.0f / sum;
        if (row + 8 * r >= rows) continue;
        const size_t round_row = first_row + row + 8 * r;
#pragma unroll
        for (int t = 0; t < DIM / 8; t++) {
            const int d = 8 * t + 2 * (lane & 3);
            if (d >= dim) continue;
            const uint32_t open = *(const uint32_t*)(wide + round_row * wide_width + (2 * head + 1) * dim + d);
            const float a = round_bf16(o[t][2 * r] * inverse) * round_bf16(sigmoid(low_half(open)));
            const float b = round_bf16(o[t][2 * r + 1] * inverse) * round_bf16(sigmoid(high_half(open)));
            *(uint32_t*)(out + (round_row * heads + head) * dim + d) = pack_bf16(a, b);
        }
    }
}
#define ATTEND(DIM)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attend_mma_##DIM(const bf16* queries, const bf16* keys, const bf16* values, const int4* tiles, const bf16* wide, \
                         bf16* out, int wide_width, int heads, int kv_heads, int dim, int positions, float scale) {    \
        chain();                                                                                                       \
        attend<DIM>(queries, keys, values, tiles, wide, out, wide_width, heads, kv_heads, dim, positions, scale);      \
    }
ATTEND(16)
ATTEND(32)
ATTEND(64)
ATTEND(128)
ATTEND(256)

// Decode: one query row a stream; keys in shares of 128 from the stream's first position.
//
// Grid: x streams (4 ints: row of the round, position, slot, unused), y kv heads, z shares; a block whose share lies past the position
// does nothing. Eight warps; a warp scores four keys at a time, eight lanes each. Sum order: a score adds the values of a lane in
// order (8 of every 64), then lanes over distances 4, 2, 1; the exponentials of a share lane by lane (every 32nd), then over distances
// 16 to 1; weighted values are one chain over each half of the share's keys, first half plus second; `gather_shares` takes the
// shares in order. So a row's bits depend on its position alone. Partial results: [streams, heads, shares_max] of maximum and sum,
// and of dim weighted values, f32.
constexpr int SHARE = 128;
constexpr int GROUP = 4;  // query heads that are worked on together

extern "C" __global__ void __launch_bounds__(256)
    attend_share(const bf16* queries, const bf16* keys, const bf16* values, const int4* streams, float2* marks,
                 float* sums, int heads, int kv_heads, int dim, int positions, int shares_max, float scale) {
    chain();
    __shared__ float weights[GROUP][SHARE];
    __shared__ float2 halves[GROUP][128];
    const int4 stream = streams[blockIdx.x];
    const int share = blockIdx.z, first = share * SHARE;
    if (first > stream.y) return;
    const int count = min(SHARE, stream.y + 1 - first);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kv_head = blockIdx.y, group = heads / kv_heads;
    const int part = lane & 7;  // 16-byte pieces part, part + 8, part + 16, part + 24 of a key
    const size_t cache = ((size_t)(stream.z * kv_heads + kv_head) * positions + first) * dim;

    for (int g0 = 0; g0 < group; g0 += GROUP) {
        const int now = min(GROUP, group - g0);
        const bf16* query = queries + ((size_t)stream.x * heads + kv_head * group + g0) * dim;
        uint4 q[GROUP][4];
#pragma unroll
        for (int g = 0; g < GROUP; g++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = (part + 8 * i) * 8;
                q[g][i] = g < now && d < dim ? *(const uint4*)(query + g * dim + d) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll 2
        for (int base = warp * 4; base < SHARE; base += 32) {
            const int key = base + (lane >> 3);
            uint4 k[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = (part + 8 * i) * 8;
                k[i] = key < count && d < dim ? *(const uint4*)(keys + cache + (size_t)key * dim + d) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float s = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t a[4] = {q[g][i].x, q[g][i].y, q[g][i].z, q[g][i].w}, b[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
                    for (int e = 0; e < 4; e++) s = fmaf(high_half(a[e]), high_half(b[e]), fmaf(low_half(a[e]), low_half(b[e]), s));
                }
                s += __shfl_xor_sync(~0u, s, 4);
                s += __shfl_xor_sync(~0u, s, 2);
                s += __shfl_xor_sync(~0u, s, 1);
                if (part == 0) weights[g][key] = s * scale;
            }
        }
        __syncthreads();
        if (warp < now) {
            float top = -INFINITY, sum = 0;
            for (int key = lane; key < count; key += 32) top = fmaxf(top, weights[warp][key]);
#pragma unroll
            for (int distance = 16; distance; distance >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
            for (int key = lane; key < count; key += 32) {
                const float w = exp2_fast(weights[warp][key] - top);
                weights[warp][key] = round_bf16(w);
                sum += w;
            }
            sum = warp_sum(sum);
            if (lane == 0) marks[((size_t)blockIdx.x * heads + kv_head * group + g0 + warp) * shares_max + share] = make_float2(top, sum);
        }
        __syncthreads();
        const int d = 2 * (threadIdx.x & 127), half = threadIdx.x >> 7;
        float2 sum[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; g++) sum[g] = make_float2(0, 0);
        if (d < dim) {
            const int end = min(count, 64 * half + 64);
#pragma unroll 8
            for (int key = 64 * half; key < end; key++) {
                const uint32_t v = *(const uint32_t*)(values + cache + (size_t)key * dim + d);
#pragma unroll
                for (int g = 0; g < GROUP; g++) {
                    if (g < now) sum[g] = make_float2(fmaf(weights[g][key], low_half(v), sum[g].x), fmaf(weights[g][key], high_half(v), sum[g].y));
                }
            }
        }
        if (half == 1) {
#pragma unroll
            for (int g = 0; g < GROUP; g++) halves[g][threadIdx.x & 127] = sum[g];
        }
        __syncthreads();
        if (half == 0 && d < dim) {
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float2 other = halves[g][threadIdx.x];
                if (g < now)
                    *(float2*)(sums + (((size_t)blockIdx.x * heads + kv_head * group + g0 + g) * shares_max + share) * dim + d) =
                        make_float2(sum[g].x + other.x, sum[g].y + other.y);
            }
        }
        __syncthreads();
    }
}

// Grid: x streams, y heads.
extern "C" __global__ void __launch_bounds__(128)
    gather_shares(const float2* marks, const float* sums, const int4* streams, const bf16* wide, bf16* out, int wide_width,
                  int heads, int dim, int shares_max) {
    chain();
    const int4 stream = streams[blockIdx.x];
    const int head = blockIdx.y, shares = stream.y / SHARE + 1;
    const size_t cell = ((size_t)blockIdx.x * heads + head) * shares_max;
    float max = -INFINITY;
    for (int i = 0; i < shares; i++) max = fmaxf(max, marks[cell + i].x);
    for (int d = threadIdx.x; d < dim; d += 128) {
        float total = 0, sum = 0;
        for (int i = 0; i < shares; i++) {
            const float fade = exp2_fast(marks[cell + i].x - max);
            total = fmaf(marks[cell + i].y, fade, total);
            sum = fmaf(sums[(cell + i) * dim + d], fade, sum);
        }
        const float gate = widen(wide[(size_t)stream.x * wide_width + (2 * head + 1) * dim + d]);
        out[((size_t)stream.x * heads + head) * dim + d] = narrow(round_bf16(sum / total) * round_bf16(sigmoid(gate)));
    }
}
