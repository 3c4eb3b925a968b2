// What the head's kernels share: values in two f16 parts, sums over a block, the gate at which blocks wait for one another, and
// the softmax over the memory by groups of keys.
#pragma once
#include "ptx.cuh"

constexpr float MEMORY_SCALE = 1024.0f;  // at most 2048 values a row: the greatest of a normal form is below 46
constexpr int WEIGHT_BITS = 14;          // weights of keys lie below 2^14
constexpr double NORM_EPS = 1e-5;        // torch's LayerNorm

__device__ __forceinline__ uint16_t half_of(float x) {
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float of_half(uint16_t x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}

// Two values as two parts each, the first value in the low halves.
__device__ __forceinline__ void split_f16(float a, float b, uint32_t& high, uint32_t& low) {
    const uint16_t p = half_of(a), q = half_of(b);
    high = p | (uint32_t)q << 16;
    low = half_of(a - of_half(p)) | (uint32_t)half_of(b - of_half(q)) << 16;
}
// Four values, in places at a multiple of 8 bytes.
__device__ __forceinline__ void store_parts_4(uint16_t* high, uint16_t* low, size_t at, const float (&x)[4]) {
    uint2 top, rest;
    split_f16(x[0], x[1], top.x, rest.x), split_f16(x[2], x[3], top.y, rest.y);
    *(uint2*)(high + at) = top;
    *(uint2*)(low + at) = rest;
}

__device__ __forceinline__ void load_4(const bf16* at, float (&x)[4]) {
    const uint2 v = *(const uint2*)at;
    x[0] = low_half(v.x), x[1] = high_half(v.x), x[2] = low_half(v.y), x[3] = high_half(v.y);
}
__device__ __forceinline__ void load_4(const float* at, float (&x)[4]) {
    const float4 v = *(const float4*)at;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

// Sums and maxima over a block; every thread gets the result. `parts` has a place for each warp.
__device__ __forceinline__ double warp_sum_f64(double x) {
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}
template <int WARPS> __device__ __forceinline__ double block_sum_f64(double x, double (&parts)[WARPS]) {
    x = warp_sum_f64(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    double sum = parts[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += parts[i];
    return sum;
}
// The maximum; NaN does not count.
template <int WARPS> __device__ __forceinline__ float block_max(float x, float (&parts)[WARPS]) {
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    float max = parts[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) max = fmaxf(max, parts[i]);
    return max;
}

// Where blocks that are all on the device at one time (a cooperative launch) wait for one another: how many came, all waits of the
// launch together, and how many left. Zero before and after a launch. One thread of a block speaks for it: what the block wrote
// lies before a barrier of the block, what it reads then behind one.
__device__ __forceinline__ void gate_come(unsigned* gate) {
    __threadfence();
    atomicAdd(gate, 1u);
}
__device__ __forceinline__ void gate_wait(unsigned* gate, unsigned count) {
    unsigned came;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(came) : "l"(gate) : "memory");
    while (came < count);
    __threadfence();
}
__device__ __forceinline__ void gate_leave(unsigned* gate) {
    __threadfence();
    if (atomicAdd(gate + 1, 1u) == gridDim.x - 1) gate[0] = gate[1] = 0;
}

// A product of f32 accuracy, as the kernels take it: out[split][m][n] = scale * sum over the split's k of a[m][k] b[n][k]. Some
// of its fields serve the softmax over the memory alone.
struct Product {
    float* out;
    const double2* scales;
    const float2* forms;
    uint16_t *high, *low;
    float2* marks;
    double2* sums;
    int m, n, k, k_split, a_pitch, b_pitch, out_pitch, rows_first, groups;
    float scale;
};

// Pairs of a product that are gone through together, or rows of a plain one: all, or so many as there is room for weights of.
struct Span {
    int first, end;
};

// Attention over the memory: step 2 i makes the weights of the i-th `pairs` pairs, step 2 i + 1 sums up rows by them. A launch
// takes a range of the steps; a step begins when all blocks have ended the one before.
struct Steps {
    unsigned* gate;
    int first, end, pairs;
    int small[2];  // of scores and of weighted rows, whether their tiles are small; on Hopper alone
};
static_assert(sizeof(Product) == 96 && sizeof(Steps) == 32, "as the host has them");
__device__ __forceinline__ Span span_of(const Product& product, const Steps& steps, int step) {
    const int first = step / 2 * steps.pairs;
    return {first, min(product.m, first + steps.pairs)};
}

// A tile of a product: its first row and column, the split, the split's first K and its blocks of `DEPTH`.
struct Tile {
    int m0, n0, split, k0, blocks;
};
template <int ROWS, int COLUMNS> __device__ __forceinline__ int tiles_of(const Product& product, Span span) {
    const int splits = (product.k + product.k_split - 1) / product.k_split;
    return (span.end - span.first + ROWS - 1) / ROWS * ((product.n + COLUMNS - 1) / COLUMNS) * splits;
}
// Tiles go by columns, or by rows first, then by the others, then by splits.
template <int ROWS, int COLUMNS, int DEPTH> __device__ __forceinline__ Tile tile_of(const Product& product, Span span, int index) {
    const int rows = (span.end - span.first + ROWS - 1) / ROWS, columns = (product.n + COLUMNS - 1) / COLUMNS;
    const int split = index / (rows * columns), rest = index - split * (rows * columns);
    const int along = product.rows_first ? rows : columns, second = rest / along, first = rest - second * along;
    const int k0 = split * product.k_split, row = product.rows_first ? first : second, column = product.rows_first ? second : first;
    return {span.first + row * ROWS, column * COLUMNS, split, k0, (min(product.k - k0, product.k_split) + DEPTH - 1) / DEPTH};
}

// What becomes of a product's sums.
enum End {
    PLAIN,          // they go out
    SCORES_NORMED,  // they are scores of a normed memory, of which weights are made
    SCORES,         // of one that is not
    WEIGHTED        // they go out; the product's A are weights by groups
};

// Weights of a group of 8 G keys for the softmax, base 2, from raw scores in registers as a tensor core's sums lie in a warp:
// d[4 g + 2 half + e] belongs to pair `pair` + 8 half and key `key` + 8 g + e, where four lanes share a pair. Of a normed memory
// the score is raw * scale and the weight p; else the score is deviation * raw * scale + mean * (sum of u), and the weight
// p * deviation. Each group has a mark of its own: p is 2^(score - mark), where the mark is the first whole number not below
// the group's greatest score; and deviations are divided by the first power of two above the group's greatest. So groups differ
// by powers of two alone, and no bit is lost when they meet. Weights go out in two parts [the span's pairs, pitch], times 2^14;
// with (mark, mark + exponent of the deviations) and the group's sums of p and of p times the rows' means, of all pairs.
template <bool NORMED, int G, int COUNT>
__device__ __forceinline__ void soften(const Product& product, Span span, const float (&d)[COUNT], int g0, int pair, int key) {
    const int rows = product.n, pitch = product.out_pitch, group = key / (8 * G);
    if (group >= product.groups) return;
    float2 form[2 * G];
    int up = 0;
    if (!NORMED) {
        float greatest = 0;
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            const int at = key + 8 * (i / 2) + i % 2;
            form[i] = at < rows ? product.forms[at] : make_float2(0, 0);
            greatest = fmaxf(greatest, form[i].x);
        }
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
        if (greatest > 0.0f && !isinf(greatest)) up = ilogbf(greatest) + 1;
    }
    const float lift = ldexpf(1.0f, WEIGHT_BITS - up);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = pair + 8 * half;
        const bool there = row < span.end;
        const double2 scale = there ? product.scales[row] : make_double2(0, 0);
        const float factor = (float)scale.x;
        float s[2 * G], top = -INFINITY;
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            s[i] = d[4 * (g0 + i / 2) + 2 * half + i % 2] * factor;
            if (!NORMED) s[i] = (float)(form[i].x * (double)s[i] + form[i].y * scale.y);
            if (key + 8 * (i / 2) + i % 2 < rows) top = fmaxf(top, s[i]);
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float mark = ceilf(top);
        double sum = 0, means = 0;
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            const float p = key + 8 * (i / 2) + i % 2 < rows ? exp2f(s[i] - mark) : 0.0f;
            sum += p;
            if (!NORMED) means += (double)p * form[i].y;
            s[i] = NORMED ? p * lift : p * (form[i].x * lift);
        }
#pragma unroll
        for (int g = 0; g < G; g++) {
            uint32_t high, low;
            split_f16(s[2 * g], s[2 * g + 1], high, low);
            if (!there || key + 8 * g >= pitch) continue;
            const size_t at = (size_t)(row - span.first) * pitch + key + 8 * g;
            *(uint32_t*)(product.high + at) = high;
            *(uint32_t*)(product.low + at) = low;
        }
        sum += __shfl_xor_sync(~0u, sum, 1), means += __shfl_xor_sync(~0u, means, 1);
        sum += __shfl_xor_sync(~0u, sum, 2), means += __shfl_xor_sync(~0u, means, 2);
        if (!there || (threadIdx.x & 3) != 0) continue;
        product.marks[(size_t)row * product.groups + group] = make_float2(mark, mark + up);
        product.sums[(size_t)row * product.groups + group] = make_double2(sum, means);
    }
}

// 2^x of a difference of marks, at most 0: a power of two, or 0.
__device__ __forceinline__ float power(float x) {
    const int whole = (int)x;
    return whole < -126 ? 0.0f : __int_as_float((whole + 127) << 23);
}
// By how much the groups of a split count, into `factors` [rows][pitch]: 2^(exponent - the split's greatest). A thread a row.
__device__ __forceinline__ void weigh_groups(const Product& product, int row, int group, int count, float* factors) {
    const float2* marks = product.marks + (size_t)min(row, product.m - 1) * product.groups + group;
    float top = -INFINITY;
#pragma unroll 8
    for (int i = 0; i < count; i++) top = fmaxf(top, marks[i].y);
#pragma unroll 8
    for (int i = 0; i < count; i++) factors[i] = power(marks[i].y - top);
}
