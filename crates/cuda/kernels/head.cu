// The joint schema head, as far as it goes over the prompt's rows: memory rows and spans, and on devices without Hopper's
// instructions the products. What comes once every row is there is head_finish.cu.
//
// Letters   T rows of the prompt, H hidden, W width; a pair is one head of one query. Widths of stored rows ("pitch") are
//           multiples of 8, filled with zeros.
// Layouts   normed hidden rows as two f16 parts, scaled by a power of two; memory rows as two f16 parts of 1024 times
//           the row's normal form (mean 0, variance 1), with the row's (deviation, mean): so one copy serves the layers that
//           norm the memory and those that do not.
// Precision rows of the prompt have 22 bits, their statistics and the sums of spans are f64.
// Sum order fixed by the row alone: a block adds each thread's values in ascending order, the lanes over distances 16, 8, 4,
//           2, 1, then the warps in order; spans add their rows in order. No sum depends on how a prompt was cut.
// Grid      given with each kernel.
#include "head.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ float value(bf16 x) { return widen(x); }

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

// The products of head_sm90.cu with mma.sync: the same parts, splits, steps and ends, chains of 32 of K, groups of 32 keys.
// Grid: any number of blocks, which take tiles of 64 x 64 in turns; those of attention are all on the device at one time.
// Warps of 32 x 32.
// Shared: two stages of A high, A low [64][40], B high, B low [64][40] or, across, [32][72]; of attention the factors of a split's
// groups [64][32] besides: together all of the 48 KiB that a kernel has without asking.
constexpr int PITCH = 40, ACROSS_PITCH = 72, PART_BYTES = 64 * PITCH * 2, STAGE_BYTES = 4 * PART_BYTES, GROUPS = 32;
// High and low parts.
struct Operands {
    const uint16_t *a[2], *b[2];
};
__device__ __forceinline__ void mma_f16(float (&d)[16], int j, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[4 * j]), "+f"(d[4 * j + 1]), "+f"(d[4 * j + 2]), "+f"(d[4 * j + 3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <int PARTS, End END>
__device__ __forceinline__ void split_tile(const Operands& operands, const Product& product, Span span, const Tile& tile, uint8_t* raw,
                                           float* factors) {
    constexpr bool ACROSS = END == WEIGHTED;
    const uint16_t* const* a = operands.a;
    const uint16_t* const* b = operands.b;
    const int n = product.n, lda = product.a_pitch, ldb = product.b_pitch;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp / 2 * 32, wn = warp % 2 * 32;
    const int m0 = tile.m0, n0 = tile.n0, k0 = tile.k0, blocks = tile.blocks, end = min(product.k, k0 + product.k_split);
    // A's rows are those of all pairs or, of weights, those of the span.
    const int first_row = ACROSS ? span.first : 0;
    const uint32_t base = shared_address(raw);
    auto fetch = [&](int block) {
        const uint32_t to = base + (block & 1) * STAGE_BYTES;
        const int at = k0 + block * 32;
        for (int i = threadIdx.x; i < 64 * 4; i += 128) {
            const int r = i >> 2, d = at + (i & 3) * 8;
            const bool there = m0 + r < span.end && d < end;
            for (int part = 0; part < 2; part++)
                copy_16(to + part * PART_BYTES + (r * PITCH + (i & 3) * 8) * 2,
                        a[part] + (there ? (size_t)(m0 + r - first_row) * lda + d : 0), there);
        }
        for (int i = threadIdx.x; i < 64 * 4; i += 128) {
            const int r = ACROSS ? i >> 3 : i >> 2, c = (ACROSS ? i & 7 : i & 3) * 8;
            const bool there = ACROSS ? at + r < end && n0 + c < ldb : n0 + r < n && at + c < end;
            const size_t from = ACROSS ? (size_t)(at + r) * ldb + n0 + c : (size_t)(n0 + r) * ldb + at + c;
            for (int part = 0; part < PARTS; part++)
                copy_16(to + (2 + part) * PART_BYTES + (r * (ACROSS ? ACROSS_PITCH : PITCH) + c) * 2, b[part] + (there ? from : 0),
                        there);
        }
        copies_commit();
    };
    float sum[2][16] = {};
    if (blocks > 0) fetch(0);
    if (ACROSS && threadIdx.x < 64) weigh_groups(product, m0 + threadIdx.x, k0 / 32, blocks, factors + threadIdx.x * GROUPS);
    for (int block = 0; block < blocks; block++) {
        if (block + 1 < blocks) fetch(block + 1), copies_wait<1>();
        else copies_wait<0>();
        __syncthreads();
        float d[2][16] = {};
        const uint32_t stage = base + (block & 1) * STAGE_BYTES;
        auto chain = [&](int part_a, int part_b) {
#pragma unroll
            for (int step = 0; step < 2; step++) {
                uint32_t left[2][4], right[2][4];
                const uint32_t at = stage + part_a * PART_BYTES, bt = stage + (2 + part_b) * PART_BYTES;
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
                    for (int j = 0; j < 4; j++) mma_f16(d[i], j, left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
            }
        };
        chain(1, 0);
        if (PARTS == 2) chain(0, 1);
        chain(0, 0);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float factor[2] = {1, 1};
            if (ACROSS)
#pragma unroll
                for (int half = 0; half < 2; half++) factor[half] = factors[(wm + i * 16 + lane / 4 + 8 * half) * GROUPS + block];
#pragma unroll
            for (int e = 0; e < 16; e++) sum[i][e] = fmaf(d[i][e], factor[e / 2 % 2], sum[i][e]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int first = m0 + wm + i * 16 + lane / 4, column = n0 + wn + 2 * (lane & 3);
        if constexpr (END == SCORES_NORMED || END == SCORES) {
            soften<END == SCORES_NORMED, 4>(product, span, sum[i], 0, first, column);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int row = first + 8 * half;
                    if (row >= span.end || column + 8 * j >= n) continue;
                    *(float2*)(product.out + ((size_t)tile.split * product.m + row) * product.out_pitch + column + 8 * j) =
                        make_float2(sum[i][4 * j + 2 * half] * product.scale, sum[i][4 * j + 2 * half + 1] * product.scale);
                }
        }
    }
}
// The block's tiles of a span. Every thread has left the shared memory when it ends.
template <int PARTS, End END>
__device__ __forceinline__ void split_product(const Operands& operands, const Product& product, Span span, uint8_t* raw, float* factors) {
    const int tiles = tiles_of<64, 64>(product, span);
    for (int index = blockIdx.x; index < tiles; index += gridDim.x)
        split_tile<PARTS, END>(operands, product, span, tile_of<64, 64, 32>(product, span, index), raw, factors);
}
#define SPLIT_KERNEL(NAME, PARTS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                                                                        \
        NAME(const __grid_constant__ Operands operands, const __grid_constant__ Product product) {                           \
        __shared__ __align__(16) uint8_t raw[2 * STAGE_BYTES];                                                               \
        split_product<PARTS, PLAIN>(operands, product, {0, product.m}, raw, nullptr);                                        \
    }
SPLIT_KERNEL(head_split_1, 1)
SPLIT_KERNEL(head_split_2, 2)

template <End SCORED>
__device__ __forceinline__ void attend(const Operands& pairs, const Operands& weights, const Product& scores, const Product& weighted,
                                       const Steps& steps) {
    __shared__ __align__(16) uint8_t raw[2 * STAGE_BYTES];
    __shared__ float factors[64 * GROUPS];
    unsigned ended = 0;
    for (int step = steps.first;;) {
        const Span span = span_of(scores, steps, step);
        if (step % 2 == 0) split_product<2, SCORED>(pairs, scores, span, raw, factors);
        else split_product<2, WEIGHTED>(weights, weighted, span, raw, factors);
        if (++step == steps.end) break;
        ended++;
        __syncthreads();
        if (threadIdx.x == 0) gate_come(steps.gate), gate_wait(steps.gate, ended * gridDim.x);
        __syncthreads();
    }
    if (threadIdx.x == 0) gate_leave(steps.gate);
}
#define ATTEND_KERNEL(NAME, SCORED)                                                                                          \
    extern "C" __global__ void __launch_bounds__(128)                                                                        \
        NAME(const __grid_constant__ Operands pairs, const __grid_constant__ Operands weights,                               \
             const __grid_constant__ Product scores, const __grid_constant__ Product weighted,                               \
             const __grid_constant__ Steps steps) {                                                                          \
        attend<SCORED>(pairs, weights, scores, weighted, steps);                                                             \
    }
ATTEND_KERNEL(head_attend_normed, SCORES_NORMED)
ATTEND_KERNEL(head_attend, SCORES)
