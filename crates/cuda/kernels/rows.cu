// Operations on whole rows: embedding, norms with the residual sum, SwiGLU, gated norm, gathering, random weights.
//
// Shapes    rows [rows, width] bf16, dense, width a multiple of 8 and at most 8192; norm weights [width] f32, as 1 + w.
// Grid      one block of 256 threads a row (gated_norm: half a warp for a head of a row).
// Sum order a thread adds the squares of its values (8 in a row, every 2048th such group) in ascending order, a warp adds
//           its lanes over distances 16, 8, 4, 2, 1, then the eight warps are added in order. The same for every number of
//           rows.
// Rounding  the residual sum, the normalised row and each step of the gates to bf16, as the reference's bf16 run does.
// Cost      bound by memory: each row is read once and written once.
#include "ptx.cuh"

constexpr int THREADS = 256;
constexpr int GROUPS = 4;  // groups of 8 values a thread may hold: rows of up to 8192 values

__device__ __forceinline__ float block_sum(float x) {
    __shared__ float parts[THREADS / 32];
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    float sum = parts[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) sum += parts[i];
    return sum;
}

__device__ __forceinline__ void unpack(const uint4& v, float (&x)[8]) {
    x[0] = low_half(v.x), x[1] = high_half(v.x), x[2] = low_half(v.y), x[3] = high_half(v.y);
    x[4] = low_half(v.z), x[5] = high_half(v.z), x[6] = low_half(v.w), x[7] = high_half(v.w);
}
__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

// out[row] = table[ids[row]]
extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(const bf16* table, const int* ids, bf16* out, int width) {
    chain();
    const uint4* from = (const uint4*)(table + (size_t)ids[blockIdx.x] * width);
    uint4* to = (uint4*)(out + (size_t)blockIdx.x * width);
    for (int i = threadIdx.x; i < width / 8; i += THREADS) to[i] = from[i];
}

// h += y (if ADD); out = h / sqrt(mean(h^2) + eps) * weight
template <bool ADD>
__device__ __forceinline__ void norm(bf16* h, const bf16* y, const float* weight, bf16* out, int width, float eps) {
    const size_t row = (size_t)blockIdx.x * width;
    float x[GROUPS][8], sum = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int at = (g * THREADS + threadIdx.x) * 8;
        if (at >= width) continue;
        unpack(*(const uint4*)(h + row + at), x[g]);
        if (ADD) {
            float add[8];
            unpack(*(const uint4*)(y + row + at), add);
#pragma unroll
            for (int i = 0; i < 8; i++) x[g][i] = round_bf16(x[g][i] + add[i]);
            *(uint4*)(h + row + at) = pack(x[g]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) sum += x[g][i] * x[g][i];
    }
    const float scale = 1.0f / sqrtf(block_sum(sum) / width + eps);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int at = (g * THREADS + threadIdx.x) * 8;
        if (at >= width) continue;
        const float4 a = *(const float4*)(weight + at), b = *(const float4*)(weight + at + 4);
        float y8[8] = {x[g][0] * scale * a.x, x[g][1] * scale * a.y, x[g][2] * scale * a.z, x[g][3] * scale * a.w,
                       x[g][4] * scale * b.x, x[g][5] * scale * b.y, x[g][6] * scale * b.z, x[g][7] * scale * b.w};
        *(uint4*)(out + row + at) = pack(y8);
    }
}
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_rows(bf16* h, const float* weight, bf16* out, int width, float eps) {
    chain();
    norm<false>(h, nullptr, weight, out, width, eps);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    add_norm_rows(bf16* h, const bf16* y, const float* weight, bf16* out, int width, float eps) {
    chain();
    norm<true>(h, y, weight, out, width, eps);
}

// out[row][c] = silu(gate) up, where a row of `wide` has 8 values of gate, then 8 of up, and so on.
extern "C" __global__ void __launch_bounds__(THREADS) swiglu_rows(const bf16* wide, bf16* out, int width) {
    chain();
    for (int i = threadIdx.x; i < width / 8; i += THREADS) {
        const uint4* at = (const uint4*)(wide + (size_t)blockIdx.x * 2 * width) + 2 * i;
        float gate[8], up[8];
        unpack(at[0], gate), unpack(at[1], up);
#pragma unroll
        for (int j = 0; j < 8; j++) gate[j] = round_bf16(silu_fast(gate[j])) * up[j];
        ((uint4*)(out + (size_t)blockIdx.x * width))[i] = pack(gate);
    }
}

// A row of each value head, [dim] of x: normed, times weight, times silu(z); z lies in rows of `z_width` values from `z_at`.
// Sixteen lanes have such a row, lane l values 8 l .. 8 l + 7 (and 128 more, if there are as many). Sum order: a lane's values
// in order, then lanes over distances 8, 4, 2, 1.
extern "C" __global__ void __launch_bounds__(THREADS)
    gated_norm(bf16* x, const bf16* z, const float* weight, int rows, int heads, int dim, int z_width, int z_at, float eps) {
    chain();
    const int lane = threadIdx.x & 15, cell = (blockIdx.x * THREADS + threadIdx.x) >> 4;
    const bool mine = cell < rows * heads;
    x += (size_t)cell * dim;
    z += (size_t)(cell / heads) * z_width + z_at + cell % heads * dim;
    float v[2][8], gate[2][8], sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int d = 8 * lane + 128 * i;
        const bool there = mine && d < dim;
        unpack(there ? *(const uint4*)(x + d) : make_uint4(0, 0, 0, 0), v[i]);
        unpack(there ? *(const uint4*)(z + d) : make_uint4(0, 0, 0, 0), gate[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) sum += v[i][e] * v[i][e];
#pragma unroll
    for (int distance = 8; distance; distance >>= 1) sum += __shfl_xor_sync(~0u, sum, distance);
    const float scale = 1.0f / sqrtf(sum / dim + eps);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int d = 8 * lane + 128 * i;
        if (!mine || d >= dim) continue;
        const float4 a = *(const float4*)(weight + d), b = *(const float4*)(weight + d + 4);
        const float w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int e = 0; e < 8; e++) v[i][e] = round_bf16(round_bf16(v[i][e] * scale) * w[e]) * silu_fast(gate[i][e]);
        *(uint4*)(x + d) = pack(v[i]);
    }
}

// Pieces of memory copied: from, to, groups of 16 bytes, unused. Grid: a block of 256 threads a piece.
struct Piece {
    const uint4* from;
    uint4* to;
    uint64_t groups, unused;
};
extern "C" __global__ void __launch_bounds__(THREADS) copy_pieces(const Piece* pieces) {
    const Piece piece = pieces[blockIdx.x];
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < piece.groups; i += THREADS) piece.to[i] = piece.from[i];
}

__device__ __forceinline__ uint32_t mix(uint32_t x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    return x;
}
// Normal numbers of a seed, by place: Box and Muller over two hashes.
__device__ __forceinline__ float normal(uint64_t at, uint32_t seed) {
    const uint32_t a = mix((uint32_t)at ^ mix(seed + (uint32_t)(at >> 32) * 0x9e3779b9u)), b = mix(a + 0x9e3779b9u);
    const float u = ((a >> 8) + 1) * (1.0f / 16777217.0f), v = (b >> 8) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}
extern "C" __global__ void fill_normal_bf16(bf16* to, uint64_t count, uint32_t seed, float scale) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        to[i] = narrow(normal(i, seed) * scale);
}
extern "C" __global__ void fill_normal_f32(float* to, uint64_t count, uint32_t seed, float scale, float base) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        to[i] = base + normal(i, seed) * scale;
}
// Copies 16 bytes a thread and step: what bandwidth is measured with.
extern "C" __global__ void copy_rows(const uint4* from, uint4* to, uint64_t count) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}
