// The joint schema head: memory rows, spans, the options' and questions' own maps in f64, and attention over the memory.
//
// Letters   T rows of the prompt, H hidden, W width; a pair is one head of one query; u is what a pair's scores are dot
//           products of memory rows with. Widths of stored rows ("pitch") are multiples of 8, filled with zeros.
// Layouts   normed hidden rows as two f16 parts, scaled by a power of two; memory rows as two f16 parts of 1024 times
//           the row's normal form (mean 0, variance 1), with the row's (deviation, mean): so one copy serves the layers that
//           norm the memory and those that do not. u as two f16 parts, scaled by a power of two a pair.
// Precision rows of the prompt have 22 bits; everything about the few options and questions is f64, products included.
// Sum order fixed by the row alone: a block adds each thread's values in ascending order, the lanes over distances 16, 8, 4,
//           2, 1, then the warps in order; spans add their rows in order; keys in the order of the prompt, 1024 a partial sum.
//           No sum depends on how a prompt was cut, nor on how many queries there are.
// Grid      given with each kernel.
#include "ptx.cuh"

constexpr int THREADS = 256;
constexpr float MEMORY_SCALE = 1024.0f;  // at most 2048 values a row: the greatest of a normal form is below 46
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
__device__ __forceinline__ void store_parts(uint16_t* high, uint16_t* low, size_t at, float x) {
    const uint16_t top = half_of(x);
    high[at] = top;
    low[at] = half_of(x - of_half(top));
}

// Four values, in places at a multiple of 8 bytes.
__device__ __forceinline__ void store_parts_4(uint16_t* high, uint16_t* low, size_t at, const float (&x)[4]) {
    uint32_t top[2], rest[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint16_t a = half_of(x[2 * i]), b = half_of(x[2 * i + 1]);
        top[i] = a | (uint32_t)b << 16;
        rest[i] = half_of(x[2 * i] - of_half(a)) | (uint32_t)half_of(x[2 * i + 1] - of_half(b)) << 16;
    }
    *(uint2*)(high + at) = make_uint2(top[0], top[1]);
    *(uint2*)(low + at) = make_uint2(rest[0], rest[1]);
}

__device__ __forceinline__ void load_4(const bf16* at, float (&x)[4]) {
    const uint2 v = *(const uint2*)at;
    x[0] = low_half(v.x), x[1] = high_half(v.x), x[2] = low_half(v.y), x[3] = high_half(v.y);
}
__device__ __forceinline__ void load_4(const float* at, float (&x)[4]) {
    const float4 v = *(const float4*)at;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ float value(bf16 x) { return widen(x); }

// Sums and maxima over a block; every thread gets the result. `parts` has a place for each warp.
__device__ __forceinline__ double warp_sum_f64(double x) {
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}
template <int COUNT = THREADS> __device__ __forceinline__ double block_sum_f64(double x, double (&parts)[COUNT / 32]) {
    x = warp_sum_f64(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    double sum = parts[0];
#pragma unroll
    for (int i = 1; i < COUNT / 32; i++) sum += parts[i];
    return sum;
}
// The maximum; NaN does not count.
template <int COUNT = THREADS> __device__ __forceinline__ float block_max(float x, float (&parts)[COUNT / 32]) {
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    float max = parts[0];
#pragma unroll
    for (int i = 1; i < COUNT / 32; i++) max = fmaxf(max, parts[i]);
    return max;
}

// The power of two that brings a maximum to 2^13 .. 2^14; 1 for zero and for what is not finite.
__device__ __forceinline__ int lift(float max) {
    if (!(max > 0.0f) || isinf(max)) return 0;
    return min(13 - ilogbf(max), 100);
}

// Takes a mean, in two f32 parts, from four values and gives the sum of their squares.
__device__ __forceinline__ float centre_4(float (&x)[4], double mean) {
    const float high = (float)mean, low = (float)(mean - high);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = (x[i] - high) - low;
    return fmaf(x[0], x[0], x[1] * x[1]) + fmaf(x[2], x[2], x[3] * x[3]);
}

// Hidden rows [n, width] to factor * LayerNorm in two parts [n, pitch], with (mean, 1 / deviation) of each row. The factor is a
// power of two that suits every row, since none is longer than sqrt(width). The width is a multiple of 8, at most
// 1024 FOURS: a thread holds up to so many fours of a row, every 1024th value on. Grid: a block a row.
template <class T, int FOURS>
__device__ __forceinline__ void norm_rows(const T* rows, const float* weight, const float* bias, uint16_t* high, uint16_t* low,
                                          double2* stats, float factor, int width, int pitch) {
    __shared__ double parts[THREADS / 32];
    const size_t row = blockIdx.x;
    float x[FOURS][4];
    double sum = 0;
#pragma unroll
    for (int f = 0; f < FOURS; f++) {
        const int at = (f * THREADS + threadIdx.x) * 4;
        if (at >= width) break;
        load_4(rows + row * width + at, x[f]);
        sum += (x[f][0] + x[f][1]) + (x[f][2] + x[f][3]);
    }
    const double mean = block_sum_f64(sum, parts) / width;
    sum = 0;
#pragma unroll
    for (int f = 0; f < FOURS; f++) {
        if ((f * THREADS + threadIdx.x) * 4 >= width) break;
        sum += centre_4(x[f], mean);
    }
    const double inverse = 1.0 / sqrt(block_sum_f64(sum, parts) / width + NORM_EPS);
#pragma unroll
    for (int f = 0; f < FOURS; f++) {
        const int at = (f * THREADS + threadIdx.x) * 4;
        if (at >= width) break;
        float w[4], b[4];
        load_4(weight + at, w), load_4(bias + at, b);
#pragma unroll
        for (int i = 0; i < 4; i++) x[f][i] = fmaf(x[f][i] * (float)inverse, w[i], b[i]) * factor;
        store_parts_4(high, low, row * pitch + at, x[f]);
    }
    if (threadIdx.x == 0) stats[row] = make_double2(mean, inverse);
}
#define NORM_KERNEL(NAME, TYPE, FOURS)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
        NAME(const TYPE* rows, const float* weight, const float* bias, uint16_t* high, uint16_t* low, double2* stats,         \
             float factor, int width, int pitch) {                                                                            \
        norm_rows<TYPE, FOURS>(rows, weight, bias, high, low, stats, factor, width, pitch);                                   \
    }
NORM_KERNEL(head_norm_bf16, bf16, 4)
NORM_KERNEL(head_norm_f32, float, 4)
NORM_KERNEL(head_norm_bf16_wide, bf16, 8)
NORM_KERNEL(head_norm_f32_wide, float, 8)

// sums[span] += n of the rows of the span that are in this piece, in their order. A part is: span, first row of the piece,
// row after the last, unused. Grid: x: parts; y: 256 columns.
template <class T>
__device__ __forceinline__ void sum_spans(const T* rows, const double2* stats, const float* weight, const float* bias,
                                          const int4* list, double* sums, int width, int pitch) {
    const int4 part = list[blockIdx.x];
    const int i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= width) return;
    const double w = weight[i], b = bias[i];
    double sum = sums[(size_t)part.x * pitch + i];
#pragma unroll 4
    for (int row = part.y; row < part.z; row++) {
        const double2 stat = stats[row];
        sum += (value(rows[(size_t)row * width + i]) - stat.x) * stat.y * w + b;
    }
    sums[(size_t)part.x * pitch + i] = sum;
}
extern "C" __global__ void __launch_bounds__(THREADS)
    head_spans_bf16(const bf16* rows, const double2* stats, const float* weight, const float* bias, const int4* list,
                    double* sums, int width, int pitch) {
    sum_spans(rows, stats, weight, bias, list, sums, width, pitch);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    head_spans_f32(const float* rows, const double2* stats, const float* weight, const float* bias, const int4* list,
                   double* sums, int width, int pitch) {
    sum_spans(rows, stats, weight, bias, list, sums, width, pitch);
}

// Memory rows [n, pitch] f32 to their normal forms in two parts, and (deviation, mean). The width is a multiple of 4, at most
// 2048: a thread holds up to two fours. Grid: a block a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_memory(const float* memory, uint16_t* high, uint16_t* low, float2* forms, int width, int pitch) {
    __shared__ double parts[THREADS / 32];
    const size_t row = blockIdx.x;
    float x[2][4] = {};
    double sum = 0;
#pragma unroll
    for (int f = 0; f < 2; f++) {
        const int at = (f * THREADS + threadIdx.x) * 4;
        if (at >= width) break;
        load_4(memory + row * pitch + at, x[f]);
        sum += ((double)x[f][0] + x[f][1]) + ((double)x[f][2] + x[f][3]);
    }
    const double mean = block_sum_f64(sum, parts) / width;
    sum = 0;
#pragma unroll
    for (int f = 0; f < 2; f++) {
        if ((f * THREADS + threadIdx.x) * 4 >= width) break;
        sum += centre_4(x[f], mean);
    }
    const double deviation = sqrt(block_sum_f64(sum, parts) / width + NORM_EPS);
    const float factor = (float)(MEMORY_SCALE / deviation);
#pragma unroll
    for (int f = 0; f < 2; f++) {
        const int at = (f * THREADS + threadIdx.x) * 4;
        if (at >= pitch) break;
#pragma unroll
        for (int i = 0; i < 4; i++) x[f][i] *= factor;
        store_parts_4(high, low, row * pitch + at, x[f]);
    }
    if (threadIdx.x == 0) forms[row] = make_float2((float)deviation, (float)mean);
}

// Divides the sums of spans by their numbers of rows. Grid: x: spans; y: 256 columns.
extern "C" __global__ void __launch_bounds__(THREADS) head_means(double* sums, const int* rows, int width, int pitch) {
    const int i = blockIdx.y * THREADS + threadIdx.x;
    if (i < width) sums[(size_t)blockIdx.x * pitch + i] /= rows[blockIdx.x];
}

// x[option] = mean of the table's rows of its tokens; starts has one entry more than options. Grid: x: options; y: 256 columns.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_lexical(const bf16* table, const int* ids, const int* starts, double* x, int width, int pitch) {
    const int i = blockIdx.y * THREADS + threadIdx.x, first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    if (i >= width) return;
    double sum = 0;
#pragma unroll 4
    for (int at = first; at < end; at++) sum += widen(table[(size_t)ids[at] * width + i]);
    x[(size_t)blockIdx.x * pitch + i] = sum / (end - first);
}

// prior[option] = scale * unit(x) . unit(q + g), where q is the row of the option's question. Grid: a block an option.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_prior(const double* x, const double* questions, const int* question_of, const double* last, double* prior, int width,
               int pitch, double scale) {
    __shared__ double parts[THREADS / 32];
    const double* row = x + (size_t)blockIdx.x * pitch;
    const double* question = questions + (size_t)question_of[blockIdx.x] * pitch;
    double xx = 0, aa = 0, xa = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const double a = question[i] + last[i], v = row[i];
        xx += v * v, aa += a * a, xa += v * a;
    }
    xx = block_sum_f64(xx, parts), aa = block_sum_f64(aa, parts), xa = block_sum_f64(xa, parts);
    if (threadIdx.x == 0) prior[blockIdx.x] = scale * (xa / (fmax(sqrt(xx), 1e-12) * fmax(sqrt(aa), 1e-12)));
}

__device__ __forceinline__ void mma_f64(double (&d)[2], double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
}
// Eight weights, as they lie in the file.
__device__ __forceinline__ void eight(const bf16* at, float (&w)[8]) {
    const uint4 v = *(const uint4*)at;
    w[0] = low_half(v.x), w[1] = high_half(v.x), w[2] = low_half(v.y), w[3] = high_half(v.y);
    w[4] = low_half(v.z), w[5] = high_half(v.z), w[6] = low_half(v.w), w[7] = high_half(v.w);
}
__device__ __forceinline__ void eight(const float* at, float (&w)[8]) {
    const float4 a = ((const float4*)at)[0], b = ((const float4*)at)[1];
    w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
}

// A linear map in f64: out[m][n] = add[m][n] + act(bias[n] + sum over k of x[x_rows[m]][group(n)][k] w[n][k]).
// Weights [N, K] lie in rows of w_pitch, a multiple of 32 filled with zeros. Columns come in groups of `group` with a part
// of x each, x_group apart; x_rows, bias and add may be null. `act` 1 is GELU.
// Grid: x: groups times tiles of 32 columns; y: tiles of 32 rows; z: splits of K of k_split, a multiple of 256.
// Sum order: a block is eight warps: warp w of a split adds its blocks w, w + 8, ... of 32 of K by mma of f64, then the warps'
// sums are added in order, then those of the splits: the last block of a tile to come does it, whichever that is.
// `tickets` [tiles] is zero before and after; `partial` has room for all tiles of all splits, 1024 values each.
// Shared: 8 x [32][33] f64.
constexpr int LINEAR_TILE = 32, LINEAR_PITCH = 33;
struct Map {
    const double* x;
    const int* x_rows;
    const void* w;
    const float* bias;
    const double* add;
    double* out;
    double* partial;
    unsigned* tickets;
    int x_pitch, x_group, w_pitch, out_pitch, m, n, k, group, act, k_split;
};
__device__ __forceinline__ void finish_linear(const Map& map, int row, int n, double y) {
    if (map.bias) y += map.bias[n];
    if (map.act == 1) y = 0.5 * y * (1.0 + erf(y * 0.70710678118654752440));
    if (map.add) y += map.add[(size_t)row * map.out_pitch + n];
    map.out[(size_t)row * map.out_pitch + n] = y;
}
template <class T> __device__ __forceinline__ void linear(const Map& map) {
    extern __shared__ double sums[];
    __shared__ bool is_last;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = (map.group + LINEAR_TILE - 1) / LINEAR_TILE;
    const int group = blockIdx.x / tiles, first = blockIdx.x % tiles * LINEAR_TILE, m0 = blockIdx.y * 32;
    const int rows = min(map.m - m0, 32), end = min(map.k, (int)(blockIdx.z + 1) * map.k_split);
    const T* w[4];
    bool there[4];
    const double* x[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int column = first + t * 8 + lane / 4, row = min(m0 + t * 8 + lane / 4, map.m - 1);
        there[t] = column < map.group;
        w[t] = (const T*)map.w + (size_t)(there[t] ? group * map.group + column : 0) * map.w_pitch;
        x[t] = map.x + (size_t)(map.x_rows ? map.x_rows[row] : row) * map.x_pitch + (size_t)group * map.x_group;
    }
    double d[4][4][2] = {};
    for (int block = blockIdx.z * map.k_split + warp * 32; block < end; block += 8 * 32) {
        const int k = block + (lane & 3) * 8;
        float weights[4][8];
#pragma unroll
        for (int t = 0; t < 4; t++) eight(w[t] + k, weights[t]);
        double left[4][8];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (t * 8 >= rows) break;
            if (block + 32 <= map.k) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const double2 two = *(const double2*)(x[t] + k + 2 * i);
                    left[t][2 * i] = two.x, left[t][2 * i + 1] = two.y;
                }
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) left[t][i] = k + i < map.k ? x[t][k + i] : 0.0;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            double right[4];
#pragma unroll
            for (int t = 0; t < 4; t++) right[t] = there[t] ? (double)weights[t][i] : 0.0;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                if (t * 8 >= rows) break;
#pragma unroll
                for (int c = 0; c < 4; c++) mma_f64(d[t][c], left[t][i], right[c]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                sums[(warp * 32 + t * 8 + lane / 4) * LINEAR_PITCH + c * 8 + 2 * (lane & 3) + e] = d[t][c][e];
    __syncthreads();
    // A thread has four columns of a row.
    const int row = threadIdx.x >> 3, at = threadIdx.x & 7;
    double sum[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        sum[c] = sums[row * LINEAR_PITCH + at + 8 * c];
#pragma unroll
        for (int i = 1; i < 8; i++) sum[c] += sums[(i * 32 + row) * LINEAR_PITCH + at + 8 * c];
    }
    if (gridDim.z > 1) {
        const size_t tile = blockIdx.y * gridDim.x + blockIdx.x, all = (size_t)gridDim.x * gridDim.y;
        double* mine = map.partial + (blockIdx.z * all + tile) * 1024 + threadIdx.x;
#pragma unroll
        for (int c = 0; c < 4; c++) mine[c * THREADS] = sum[c];
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicAdd(map.tickets + tile, 1u) == gridDim.z - 1;
        __syncthreads();
        if (!is_last) return;
        __threadfence();
        const double* part = map.partial + tile * 1024 + threadIdx.x;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[c] = __ldcg(part + c * THREADS);
            for (int split = 1; split < gridDim.z; split++) sum[c] += __ldcg(part + split * all * 1024 + c * THREADS);
        }
        if (threadIdx.x == 0) map.tickets[tile] = 0;
    }
    if (row >= rows) return;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        if (first + at + 8 * c >= map.group) continue;
        finish_linear(map, m0 + row, group * map.group + first + at + 8 * c, sum[c]);
    }
}
// The same for at most 8 rows, in tiles of 8 columns and without splits: shorter on the way from load to store.
// Grid: groups times tiles of 8 columns.
template <class T> __device__ __forceinline__ void linear_narrow(const Map& map) {
    __shared__ double sums[8][8][9];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = (map.group + 7) / 8;
    const int group = blockIdx.x / tiles, first = blockIdx.x % tiles * 8, column = first + lane / 4;
    const int x_row = min(lane / 4, map.m - 1);
    const bool there = column < map.group;
    const T* w = (const T*)map.w + (size_t)(there ? group * map.group + column : 0) * map.w_pitch;
    const double* x = map.x + (size_t)(map.x_rows ? map.x_rows[x_row] : x_row) * map.x_pitch + (size_t)group * map.x_group;
    double d[2] = {};
#pragma unroll 4
    for (int block = warp * 32; block < map.k; block += 8 * 32) {
        const int k = block + (lane & 3) * 8;
        float weights[8];
        double left[8];
        eight(w + k, weights);
        if (block + 32 <= map.k) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const double2 two = *(const double2*)(x + k + 2 * i);
                left[2 * i] = two.x, left[2 * i + 1] = two.y;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) left[i] = k + i < map.k ? x[k + i] : 0.0;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) mma_f64(d, left[i], there ? (double)weights[i] : 0.0);
    }
    sums[warp][lane / 4][2 * (lane & 3)] = d[0], sums[warp][lane / 4][2 * (lane & 3) + 1] = d[1];
    __syncthreads();
    const int row = threadIdx.x >> 3, at = threadIdx.x & 7;
    if (row >= map.m || first + at >= map.group) return;
    double sum = sums[0][row][at];
#pragma unroll
    for (int i = 1; i < 8; i++) sum += sums[i][row][at];
    finish_linear(map, row, group * map.group + first + at, sum);
}
extern "C" __global__ void __launch_bounds__(THREADS) head_linear_bf16(const __grid_constant__ Map map) { linear<bf16>(map); }
extern "C" __global__ void __launch_bounds__(THREADS) head_linear_f32(const __grid_constant__ Map map) { linear<float>(map); }
extern "C" __global__ void __launch_bounds__(THREADS) head_linear_narrow_bf16(const __grid_constant__ Map map) {
    linear_narrow<bf16>(map);
}
extern "C" __global__ void __launch_bounds__(THREADS) head_linear_narrow_f32(const __grid_constant__ Map map) {
    linear_narrow<float>(map);
}

// LayerNorm of few rows [n, width] f64. Grid: a block a row.
__device__ __forceinline__ void norm_f64(const double* x, const float* weight, const float* bias, double* out, int width) {
    __shared__ double parts[THREADS / 32];
    double sum = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) sum += x[i];
    const double mean = block_sum_f64(sum, parts) / width;
    sum = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) sum += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1.0 / sqrt(block_sum_f64(sum, parts) / width + NORM_EPS);
    for (int i = threadIdx.x; i < width; i += THREADS) out[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}
extern "C" __global__ void __launch_bounds__(THREADS)
    head_layer_norm(const double* x, const float* weight, const float* bias, double* out, int width, int pitch) {
    norm_f64(x + (size_t)blockIdx.x * pitch, weight, bias, out + (size_t)blockIdx.x * pitch, width);
}

// u of pairs: u[c] = scale * norm[c] * sum over the head's d of q[d] w_key[d][c], in two parts and scaled by a power of two, of
// which (2^-up / MEMORY_SCALE, sum of u) goes to `scales`. norm may be null. `queries` [Q, q_pitch]. The width is a multiple
// of 4, the same of 1024 threads take a quarter of d each; quarters are added 0 + 1, 2 + 3, then the two.
// Grid: x: heads; y: pairs of queries. Shared: 2 (2 width + head_width) f64.
constexpr int WIDE = 1024;
template <class T>
__device__ __forceinline__ void expand(const double* queries, const T* keys, const float* norm, uint16_t* high, uint16_t* low,
                                       double2* scales, int count, int q_pitch, int heads, int width, int w_pitch, int pitch,
                                       double scale) {
    extern __shared__ __align__(16) double shared[];
    __shared__ double parts[WIDE / 32];
    __shared__ float tops[WIDE / 32];
    const int head = blockIdx.x, first = blockIdx.y * 2, head_width = width / heads;
    const int quarter = threadIdx.x / 256, mine = (threadIdx.x % 256) * 4, quarter_width = (head_width + 3) / 4;
    const int d0 = quarter * quarter_width, d1 = min(head_width, d0 + quarter_width);
    double *u = shared, *q = shared + 4 * width;
    for (int i = threadIdx.x; i < 2 * head_width; i += WIDE) {
        const int row = first + i / head_width;
        q[i] = row < count ? queries[(size_t)row * q_pitch + head * head_width + i % head_width] : 0.0;
    }
    __syncthreads();
    for (int c0 = 0; c0 < width; c0 += 1024) {
        const int c = c0 + mine;
        double sum[2][4] = {};
        if (c < width) {
            const T* from = keys + (size_t)head * head_width * w_pitch + c;
#pragma unroll 8
            for (int d = d0; d < d1; d++) {
                float w[4];
                load_4(from + (size_t)d * w_pitch, w);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[0][i] += q[d] * w[i];
                    sum[1][i] += q[head_width + d] * w[i];
                }
            }
        }
        // u has rows [2 halves][2 queries].
        auto give = [&](int half) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (c < width) u[(2 * half + i / 4) * width + c + i % 4] = sum[i / 4][i % 4];
        };
        auto take = [&](int half) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (c < width) sum[i / 4][i % 4] += u[(2 * half + i / 4) * width + c + i % 4];
        };
        if (quarter & 1) give(quarter / 2);
        __syncthreads();
        if (!(quarter & 1)) take(quarter / 2);
        if (quarter == 2) give(1);
        __syncthreads();
        if (quarter == 0) {
            take(1);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const double factor = c < width && norm ? scale * norm[c + i % 4] : scale;
                sum[i / 4][i % 4] *= factor;
            }
            give(0);
        }
    }
    __syncthreads();
    for (int i = 0; i < 2; i++, u += width) {
        if (first + i >= count) return;
        const size_t pair = (size_t)(first + i) * heads + head;
        float top = 0;
        double sum = 0;
        for (int c = threadIdx.x; c < width; c += WIDE) top = fmaxf(top, fabsf((float)u[c])), sum += u[c];
        const int up = lift(block_max<WIDE>(top, tops));
        sum = block_sum_f64<WIDE>(sum, parts);
        const double factor = ldexp(1.0, up);
        for (int c = threadIdx.x; c < pitch; c += WIDE)
            store_parts(high, low, pair * pitch + c, c < width ? (float)(u[c] * factor) : 0.0f);
        if (threadIdx.x == 0) scales[pair] = make_double2(ldexp(1.0, -up) / MEMORY_SCALE, sum);
    }
}
extern "C" __global__ void __launch_bounds__(WIDE)
    head_expand_bf16(const double* queries, const bf16* keys, const float* norm, uint16_t* high, uint16_t* low, double2* scales,
                     int count, int q_pitch, int heads, int width, int w_pitch, int pitch, double scale) {
    expand(queries, keys, norm, high, low, scales, count, q_pitch, heads, width, w_pitch, pitch, scale);
}
extern "C" __global__ void __launch_bounds__(WIDE)
    head_expand_f32(const double* queries, const float* keys, const float* norm, uint16_t* high, uint16_t* low, double2* scales,
                    int count, int q_pitch, int heads, int width, int w_pitch, int pitch, double scale) {
    expand(queries, keys, norm, high, low, scales, count, q_pitch, heads, width, w_pitch, pitch, scale);
}

// Softmax of pairs over T keys, base 2: scores [pairs, pitch] are raw products. Of a normed memory the score is raw * scale and
// the weight p; else the score is deviation * raw * scale + mean * (sum of u), and the weight p * deviation / greatest, where
// `greatest` is that of all rows. Weights go out in two parts [pairs, pitch], times 2^14. `results` (factor, shift): what sums of
// weighted memory rows are multiplied by, and what is added: the mean of the rows' means. A thread has four keys in a row.
// Grid: a block a pair.
constexpr int SOFT = 1024;
template <bool NORMED>
__device__ __forceinline__ void soften(const float* scores, const double2* scales, const float2* forms, uint16_t* high,
                                       uint16_t* low, double2* results, int rows, int pitch) {
    __shared__ double parts[SOFT / 32];
    __shared__ float tops[SOFT / 32];
    const size_t pair = blockIdx.x, at = pair * pitch;
    const double2 scale = scales[pair];
    // Scores of four keys and their rows' deviations and means; keys past the last are none.
    auto fours = [&](int row, float (&s)[4], float2 (&form)[4]) {
        load_4(scores + at + row, s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            form[i] = NORMED || row + i >= rows ? make_float2(1, 0) : forms[row + i];
            s[i] *= (float)scale.x;
            if (!NORMED) s[i] = (float)(form[i].x * (double)s[i] + form[i].y * scale.y);
        }
    };
    float top = -INFINITY, greatest = 0;
#pragma unroll 2
    for (int row = threadIdx.x * 4; row < rows; row += SOFT * 4) {
        float s[4];
        float2 form[4];
        fours(row, s, form);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (row + i < rows) top = fmaxf(top, s[i]), greatest = fmaxf(greatest, form[i].x);
    }
    top = block_max<SOFT>(top, tops);
    if (!NORMED) greatest = block_max<SOFT>(greatest, tops);
    else greatest = 1;
    const float factor = 16384.0f / greatest;
    double sum = 0, means = 0;
#pragma unroll 2
    for (int row = threadIdx.x * 4; row < pitch; row += SOFT * 4) {
        float s[4], weights[4];
        float2 form[4];
        fours(row, s, form);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p = row + i < rows ? exp2f(s[i] - top) : 0.0f;
            sum += p;
            if (!NORMED) means += (double)p * form[i].y;
            weights[i] = p * (form[i].x * factor);
        }
        store_parts_4(high, low, at + row, weights);
    }
    sum = block_sum_f64<SOFT>(sum, parts);
    if (!NORMED) means = block_sum_f64<SOFT>(means, parts);
    if (threadIdx.x == 0) results[pair] = make_double2(greatest / (16384.0 * MEMORY_SCALE) / sum, means / sum);
}
extern "C" __global__ void __launch_bounds__(SOFT)
    head_soften_normed(const float* scores, const double2* scales, const float2* forms, uint16_t* high, uint16_t* low,
                       double2* results, int rows, int pitch) {
    soften<true>(scores, scales, forms, high, low, results, rows, pitch);
}
extern "C" __global__ void __launch_bounds__(SOFT)
    head_soften(const float* scores, const double2* scales, const float2* forms, uint16_t* high, uint16_t* low,
                double2* results, int rows, int pitch) {
    soften<false>(scores, scales, forms, high, low, results, rows, pitch);
}

// The mixed memory of pairs in f64 from partial sums [splits, pairs, pitch]: factor * sum + shift, and if norm is not null times
// norm plus norm_bias. Grid: a block a pair.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_combine(const float* partial, const double2* results, const float* norm, const float* norm_bias, double* out, int splits,
                 int width, int pitch) {
    const double2 result = results[blockIdx.x];
    for (int c = threadIdx.x * 4; c < width; c += THREADS * 4) {
        double sum[4] = {};
#pragma unroll 8
        for (int split = 0; split < splits; split++) {
            float part[4];
            load_4(partial + ((size_t)split * gridDim.x + blockIdx.x) * pitch + c, part);
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] += part[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const double mixed = sum[i] * result.x + result.y;
            out[(size_t)blockIdx.x * pitch + c + i] = norm ? mixed * norm[c + i] + norm_bias[c + i] : mixed;
        }
    }
}

// Attention of few rows over one another in f64: qkv [n, qkv_pitch] has queries, keys and values side by side, each `width`.
// Grid: x: heads; y: rows. A warp has a key at a time; keys go in blocks of 256, in order.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_converse(const double* qkv, double* out, int rows, int heads, int width, int qkv_pitch, int pitch, double scale) {
    __shared__ double parts[THREADS / 32], weights[THREADS];
    __shared__ float tops[THREADS / 32];
    const int head = blockIdx.x, head_width = width / heads, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const double* q = qkv + (size_t)blockIdx.y * qkv_pitch + head * head_width;
    const double *keys = qkv + width + head * head_width, *values = keys + width;
    // The scores of a block of keys, in `weights`.
    auto score = [&](int first) {
        __syncthreads();
        for (int i = warp; i < min(rows - first, THREADS); i += THREADS / 32) {
            double sum = 0;
            for (int d = lane; d < head_width; d += 32) sum += q[d] * keys[(size_t)(first + i) * qkv_pitch + d];
            sum = warp_sum_f64(sum);
            if (lane == 0) weights[i] = sum * scale;
        }
        __syncthreads();
    };
    float top = -INFINITY;
    for (int first = 0; first < rows; first += THREADS) {
        score(first);
        if (first + threadIdx.x < rows) top = fmaxf(top, (float)weights[threadIdx.x]);
    }
    top = block_max(top, tops);
    // Columns of a head that a thread mixes: its own and every 256th more.
    for (int c = threadIdx.x; c - (int)threadIdx.x < head_width; c += THREADS) {
        double mixed = 0, sum = 0;
        for (int first = 0; first < rows; first += THREADS) {
            score(first);
            const double weight = first + threadIdx.x < rows ? exp(weights[threadIdx.x] - top) : 0.0;
            __syncthreads();
            weights[threadIdx.x] = weight;
            __syncthreads();
            sum += weight;
            if (c < head_width)
#pragma unroll 4
                for (int i = 0; i < min(rows - first, THREADS); i++) mixed += weights[i] * values[(size_t)(first + i) * qkv_pitch + c];
        }
        sum = block_sum_f64(sum, parts);
        if (c < head_width) out[(size_t)blockIdx.y * pitch + head * head_width + c] = mixed / sum;
    }
}

// f = b + LayerNorm(s) + type, where s = sum of softmax(r . b / sqrt(W)) r over the question's own options: `list` has first
// option, options, kind, unused of each question; scores has room for all options. b lies in f. Grid: a block a question.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_summary(const double* options, const int4* list, const float* weight, const float* bias, const float* types, double* scores,
                 double* f, int width, int pitch) {
    extern __shared__ double s[];
    __shared__ float tops[THREADS / 32];
    __shared__ double parts[THREADS / 32];
    const int4 question = list[blockIdx.x];
    double* b = f + (size_t)blockIdx.x * pitch;
    const double* r = options + (size_t)question.x * pitch;
    scores += question.x;
    const double root = sqrt((double)width);
    for (int o = threadIdx.x >> 5; o < question.y; o += THREADS / 32) {
        double sum = 0;
        for (int i = threadIdx.x & 31; i < width; i += 32) sum += r[(size_t)o * pitch + i] * b[i];
        sum = warp_sum_f64(sum);
        if ((threadIdx.x & 31) == 0) scores[o] = sum / root;
    }
    __syncthreads();
    float top = -INFINITY;
    for (int o = threadIdx.x; o < question.y; o += THREADS) top = fmaxf(top, (float)scores[o]);
    top = block_max(top, tops);
    double sum = 0;
    for (int o = threadIdx.x; o < question.y; o += THREADS) scores[o] = exp(scores[o] - top), sum += scores[o];
    sum = block_sum_f64(sum, parts);
    for (int i = threadIdx.x; i < width; i += THREADS) {
        double mixed = 0;
        for (int o = 0; o < question.y; o++) mixed += scores[o] / sum * r[(size_t)o * pitch + i];
        s[i] = mixed;
    }
    // Each thread reads what it wrote itself.
    norm_f64(s, weight, bias, s, width);
    for (int i = threadIdx.x; i < width; i += THREADS) b[i] += s[i] + types[question.z * width + i];
}

// [f, o, f o, |f - o|] of options, [4 width] in rows of 4 pitch, each of the four from a multiple of width; and their cosines.
// Grid: a block an option.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_features(const double* options, const double* fields, const int* question_of, double* features, double* cosines, int width,
                  int pitch) {
    __shared__ double parts[THREADS / 32];
    const double *o = options + (size_t)blockIdx.x * pitch, *f = fields + (size_t)question_of[blockIdx.x] * pitch;
    double* to = features + (size_t)blockIdx.x * 4 * pitch;
    double ff = 0, oo = 0, fo = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const double a = f[i], b = o[i];
        to[i] = a, to[width + i] = b, to[2 * width + i] = a * b, to[3 * width + i] = fabs(a - b);
        ff += a * a, oo += b * b, fo += a * b;
    }
    ff = block_sum_f64(ff, parts), oo = block_sum_f64(oo, parts), fo = block_sum_f64(fo, parts);
    if (threadIdx.x == 0) cosines[blockIdx.x] = fo / (fmax(sqrt(ff), 1e-8) * fmax(sqrt(oo), 1e-8));
}

// logit = prior + gate (joint cos + residual). Grid: 256 options a block.
extern "C" __global__ void __launch_bounds__(THREADS)
    head_logits(const double* priors, const double* cosines, const double* residuals, float* logits, int count, int residual_pitch,
                double gate, double joint) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) logits[i] = (float)(priors[i] + gate * (joint * cosines[i] + residuals[(size_t)i * residual_pitch]));
}

// The products of head_sm90.cu with mma.sync: the same parts, splits and order, chains of 32 of K.
// Grid: x: tiles of 64 columns; y: of 64 rows; z: splits. Warps of 32 x 32.
// Shared: two stages of A high, A low [64][40], B high, B low [64][40] or, across, [32][72].
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <int PARTS, bool ACROSS>
__device__ __forceinline__ void split_product(const uint16_t* const (&a)[2], const uint16_t* const (&b)[2], float* out,
                                              float scale, int m, int n, int k, int k_split, int lda,
                                              int ldb, int ldc) {
    constexpr int PITCH = 40, ACROSS_PITCH = 72, PART = 64 * PITCH * 2, STAGE = 4 * PART;
    __shared__ __align__(16) uint8_t raw[2 * STAGE];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp / 2 * 32, wn = warp % 2 * 32;
    const int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64, k0 = blockIdx.z * k_split, end = min(k, k0 + k_split);
    const int blocks = (end - k0 + 31) / 32;
    const uint32_t base = shared_address(raw);
    auto fetch = [&](int block) {
        const uint32_t to = base + (block & 1) * STAGE;
        const int at = k0 + block * 32;
        for (int i = threadIdx.x; i < 64 * 4; i += 128) {
            const int r = i >> 2, d = at + (i & 3) * 8;
            const bool there = m0 + r < m && d < end;
            for (int part = 0; part < 2; part++)
                copy_16(to + part * PART + (r * PITCH + (i & 3) * 8) * 2, a[part] + (there ? (size_t)(m0 + r) * lda + d : 0), there);
        }
        for (int i = threadIdx.x; i < 64 * 4; i += 128) {
            const int r = ACROSS ? i >> 3 : i >> 2, c = (ACROSS ? i & 7 : i & 3) * 8;
            const bool there = ACROSS ? at + r < end && n0 + c < ldb : n0 + r < n && at + c < end;
            const size_t from = ACROSS ? (size_t)(at + r) * ldb + n0 + c : (size_t)(n0 + r) * ldb + at + c;
            for (int part = 0; part < PARTS; part++)
                copy_16(to + (2 + part) * PART + (r * (ACROSS ? ACROSS_PITCH : PITCH) + c) * 2, b[part] + (there ? from : 0), there);
        }
        copies_commit();
    };
    float sum[2][4][4] = {};
    if (blocks > 0) fetch(0);
    for (int block = 0; block < blocks; block++) {
        if (block + 1 < blocks) fetch(block + 1), copies_wait<1>();
        else copies_wait<0>();
        __syncthreads();
        float d[2][4][4] = {};
        const uint32_t stage = base + (block & 1) * STAGE;
        auto chain = [&](int part_a, int part_b) {
#pragma unroll
            for (int step = 0; step < 2; step++) {
                uint32_t left[2][4], right[2][4];
                const uint32_t at = stage + part_a * PART, bt = stage + (2 + part_b) * PART;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    load_tiles(left[i], at + ((wm + i * 16 + (lane & 15)) * PITCH + step * 16 + (lane >> 4) * 8) * 2);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if (ACROSS)
                        load_tiles_across(right[j], bt + ((step * 16 + (lane & 15)) * ACROSS_PITCH + wn + j * 16 + (lane >> 4) * 8) * 2);
                    else
                        load_tiles(right[j], bt + ((wn + j * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + step * 16 + ((lane >> 3) & 1) * 8) * 2);
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) mma_f16(d[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
            }
        };
        chain(1, 0);
        if (PARTS == 2) chain(0, 1);
        chain(0, 0);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] += d[i][j][e];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = m0 + wm + i * 16 + lane / 4 + 8 * half, column = n0 + wn + j * 8 + 2 * (lane & 3);
                if (row >= m || column >= n) continue;
                *(float2*)(out + ((size_t)blockIdx.z * m + row) * ldc + column) =
                    make_float2(sum[i][j][2 * half] * scale, sum[i][j][2 * half + 1] * scale);
            }
}
#define SPLIT_KERNEL(NAME, PARTS, ACROSS)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                                                        \
        NAME(const uint16_t* a_high, const uint16_t* a_low, const uint16_t* b_high, const uint16_t* b_low, float* out,       \
             float scale, int m, int n, int k, int k_split, int lda, int ldb, int ldc) {                                     \
        split_product<PARTS, ACROSS>({a_high, a_low}, {b_high, b_low}, out, scale, m, n, k, k_split, lda, ldb, ldc);            \
    }
SPLIT_KERNEL(head_split_nt_1, 1, false)
SPLIT_KERNEL(head_split_nt_2, 2, false)
SPLIT_KERNEL(head_split_across_2, 2, true)
