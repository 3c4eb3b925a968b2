// Matrix products of f32 accuracy for Hopper (sm_90a): C = A B, where A is a sum of two f16 parts, B of one or two. Alone, or the
// two of attention over the memory in one launch: scores of memory rows, then sums of these, weighted.
//
// Shapes    A [M, K] f16, twice (high and low part); B [N, K] or, of weighted rows, [K, N], each part; out f32
//           [splits, M, out_pitch]: out = sum * scale. Rows of A and B lie at multiples of 16 bytes.
// Ends      scores of memory rows do not go out: each warp makes weights of them for the softmax, in groups of 64 keys with marks
//           of their own, which differ by powers of two (`soften` in head.cuh). Weighted rows take these as A, and a chain, which
//           is one group, is multiplied by its group's power of two as it joins the sum.
// Steps     there may be more pairs than there is room for weights of; then scores and weighted rows take turns, a span of the
//           pairs at a time (`Steps` in head.cuh). A launch takes a range of these steps.
// Precision a value of 22 bits is the sum of two of 11. Products of parts are exact; of two and two parts the three greater
//           products count, what is left out is below 2^-22 of the greatest. The tensor core truncates its sums, so a chain
//           is at most 64 of K long: its sum is then added, rounded to nearest, to that of the chains before.
// Sum order K in blocks of 64 from the split's start; of a block low A high B, high A low B, high A high B, each in steps of
//           16; blocks in order. A split is `k_split` of K. So the bits of a row of A depend on neither M nor the grid.
// Grid      any number of blocks; block b takes tiles b, b + blocks, ... of a product: 128 rows by 128 columns or, where those are
//           too few to fill a device, 64 by 64, which give the same bits. Blocks of attention are all on the device at one time (a
//           cooperative launch), since a step begins when all blocks have ended the one before.
// Warps     two consumer warpgroups of 64 rows x 128 columns, sums in registers, and a third: a producer, which brings the next
//           tile's stages while the consumers end this one's, and three warps that do the same for factors of groups. Of small
//           tiles the second consumer has nothing to do.
// Shared    (1024-byte aligned) 192 KiB of stages of A high, A low, B high (B low), of a small tile 8 KiB, else 16 each, in the
//           128-byte swizzle: K-major tiles are [128][64], those of [K, N] 2 x [64 of K][64 of N]. Then for each of two products full
//           and empty barriers of six stages at most, those of factors, and of attention factors of two tiles' groups, each
//           [128][17] f32.
// Barriers  of stages, full: one arrival and the bytes; empty: one arrival of each of the consumer warps. Of factors, full and empty:
//           one arrival of each thread that wrote or read them, so that a checker of races can follow. A product has barriers of its
//           own, whose turns run on from tile to tile and from span to span; its stages are the other's once a step has ended.
//           `ended`, `begun`, around the gate: all blocks have ended a step.
// Bound     4 (one part of B) or 6 operations of the tensor core for each of M N K.
#include "head.cuh"
#include "wgmma.cuh"

using namespace sm90;

constexpr int DEPTH = 64;
constexpr int GROUPS = 17;  // at most 16 groups of 64 keys a split, and one place so that rows lie in different banks
constexpr int STAGES_BYTES = 3 << 16, STAGES_MOST = 6, BARRIERS_BYTES = 256;

// d[64][N] (+)= A[64][16] B[16][N], f16; ACROSS: B is stored [k][n].
template <int ACROSS> __device__ __forceinline__ void mma_f16(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, %67;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(keep), "n"(ACROSS));
}

template <int ACROSS> __device__ __forceinline__ void mma_f16(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, %35;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(keep), "n"(ACROSS));
}

// A tile stored [k][n] with the 128-byte swizzle, 64 columns n a part: 8192 bytes between parts, 1024 between groups of 8 k.
__device__ __forceinline__ uint64_t across_desc(uint32_t at) {
    return (uint64_t)((at & 0x3FFFF) >> 4) | ((uint64_t)(8192 >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

template <bool ACROSS, int COUNT> __device__ __forceinline__ void chain(float (&d)[COUNT], uint32_t a, uint32_t b, int keep) {
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++)
        mma_f16<ACROSS>(d, matrix_desc(a) + 2 * k, ACROSS ? across_desc(b + 2048 * k) : matrix_desc(b) + 2 * k, keep || k > 0);
}

// Views of both parts of A and of B for the copy engine.
struct Maps {
    CUtensorMap a[2], b[2];
};

// By one thread: the views are there when the first of them is needed.
__device__ __forceinline__ void prefetch(const Maps& maps) {
#pragma unroll
    for (int part = 0; part < 2; part++)
        asm volatile("prefetch.tensormap [%0];\nprefetch.tensormap [%1];\n" ::"l"(&maps.a[part]), "l"(&maps.b[part]) : "memory");
}

// Stages of tiles of 64 WGS rows and N columns.
template <int PARTS, int WGS, int N> struct Shape {
    static constexpr uint32_t A_PART = 64 * WGS * DEPTH * 2, B_PART = N * DEPTH * 2, STAGE = 2 * A_PART + PARTS * B_PART;
    static constexpr int STAGES = STAGES_BYTES / STAGE;
    static_assert(STAGES <= STAGES_MOST, "a barrier for each");
};

// A product's way through the stages in one block: where its full barriers lie, the empty ones behind them, and the blocks of K so
// far, which run on from tile to tile and from span to span: block i is in stage i % STAGES, for the i / STAGES-th time.
struct Ring {
    uint32_t stages, full;
    unsigned turn;
    __device__ __forceinline__ uint32_t empty() const { return full + 8 * STAGES_MOST; }
};

// The same for the factors of groups of two tiles, whose turns are the block's tiles of weighted rows so far.
struct Factors {
    float* room;
    uint32_t full;
    unsigned turn;
    __device__ __forceinline__ uint32_t empty() const { return full + 16; }
    __device__ __forceinline__ float* own() const { return room + (turn & 1) * 128 * GROUPS; }
};

// By one thread: brings the stages of the block's tiles. A's rows are those of all pairs or, of weights, those of the span.
template <int PARTS, bool ACROSS, int WGS, int N>
__device__ __forceinline__ void produce(const Maps& maps, const Product& product, Span span, Ring& ring) {
    using S = Shape<PARTS, WGS, N>;
    const int tiles = tiles_of<64 * WGS, N>(product, span);
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_of<64 * WGS, N, DEPTH>(product, span, index);
        const int row = ACROSS ? tile.m0 - span.first : tile.m0;
#pragma unroll 1
        for (int block = 0; block < tile.blocks; block++, ring.turn++) {
            const int stage = ring.turn % S::STAGES, at = tile.k0 + block * DEPTH;
            const uint32_t to = ring.stages + stage * S::STAGE, bar = ring.full + 8 * stage;
            mbar_wait(ring.empty() + 8 * stage, (ring.turn / S::STAGES & 1) ^ 1);
            mbar_expect(bar, S::STAGE);
            tma_load(to, &maps.a[0], bar, at, row);
            tma_load(to + S::A_PART, &maps.a[1], bar, at, row);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const uint32_t b = to + 2 * S::A_PART + part * S::B_PART;
                if (!ACROSS) tma_load(b, &maps.b[part], bar, at, tile.n0);
#pragma unroll
                for (int n = 0; ACROSS && n < N; n += 64) tma_load(b + n * 128, &maps.b[part], bar, tile.n0 + n, at);
            }
        }
    }
}

// By three warps, `helper` of whose threads is the caller: the factors of the block's tiles, up to two tiles ahead, since they
// come from memory, one access after the other.
constexpr int HELPERS = 96;
template <int WGS, int N>
__device__ __forceinline__ void weigh(const Product& product, Span span, Factors& factors, int helper) {
    const int tiles = tiles_of<64 * WGS, N>(product, span);
    for (int index = blockIdx.x; index < tiles; index += gridDim.x, factors.turn++) {
        const Tile tile = tile_of<64 * WGS, N, DEPTH>(product, span, index);
        mbar_wait(factors.empty() + 8 * (factors.turn & 1), (factors.turn / 2 & 1) ^ 1);
#pragma unroll 1
        for (int row = helper; row < 64 * WGS; row += HELPERS)
            weigh_groups(product, tile.m0 + row, tile.k0 / DEPTH, tile.blocks, factors.own() + row * GROUPS);
        mbar_arrive(factors.full + 8 * (factors.turn & 1));
    }
}

// By WGS warpgroups: the sums of the block's tiles, and what becomes of them.
template <int PARTS, End END, int WGS, int N>
__device__ __forceinline__ void consume(const Product& product, Span span, Ring& ring, Factors& factors) {
    using S = Shape<PARTS, WGS, N>;
    constexpr bool ACROSS = END == WEIGHTED;
    constexpr int COUNT = N / 2;
    const int wg = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    const int local = wg * 64 + warp * 16 + lane / 4;
    const int tiles = tiles_of<64 * WGS, N>(product, span);
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_of<64 * WGS, N, DEPTH>(product, span, index);
        const float* own = factors.own() + local * GROUPS;
        if (ACROSS) mbar_wait(factors.full + 8 * (factors.turn & 1), factors.turn / 2 & 1);
        float sum[COUNT], d[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) sum[i] = 0;
        for (int block = 0; block < tile.blocks; block++, ring.turn++) {
            const int stage = ring.turn % S::STAGES;
            const uint32_t a = ring.stages + stage * S::STAGE + wg * 64 * 128, b = ring.stages + stage * S::STAGE + 2 * S::A_PART;
            mbar_wait(ring.full + 8 * stage, ring.turn / S::STAGES & 1);
            fence_regs(d);
            asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
            chain<ACROSS>(d, a + S::A_PART, b, 0);
            if (PARTS == 2) chain<ACROSS>(d, a, b + S::B_PART, 1);
            chain<ACROSS>(d, a, b, 1);
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
            fence_regs(d);
            if (lane == 0) mbar_arrive(ring.empty() + 8 * stage);
            if (ACROSS) {
                const float factor[2] = {own[block], own[8 * GROUPS + block]};
#pragma unroll
                for (int i = 0; i < COUNT; i++) sum[i] = fmaf(d[i], factor[i / 2 % 2], sum[i]);
            } else {
#pragma unroll
                for (int i = 0; i < COUNT; i++) sum[i] += d[i];
            }
        }
        if (ACROSS) {
            mbar_arrive(factors.empty() + 8 * (factors.turn & 1));
            factors.turn++;
        }
        const int row = tile.m0 + local, column = tile.n0 + 2 * (lane & 3);
        if constexpr (END == SCORES_NORMED || END == SCORES) {
#pragma unroll
            for (int g = 0; g < N / 8; g += 8) soften<END == SCORES_NORMED, 8>(product, span, sum, g, row, column + 8 * g);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = row + 8 * half;
                if (at >= span.end) continue;
                float* to = product.out + ((size_t)tile.split * product.m + at) * product.out_pitch;
#pragma unroll
                for (int g = 0; g < N / 8; g++)
                    if (column + 8 * g < product.n)
                        *(float2*)(to + column + 8 * g) =
                            make_float2(sum[4 * g + 2 * half] * product.scale, sum[4 * g + 2 * half + 1] * product.scale);
            }
        }
    }
}

// Where a block's threads learn that all blocks have ended a step: `ended` has an arrival of each warp but the producer's, `begun` one
// of the producer. Not __syncthreads, since producer and consumers come from different places.
struct StepEnd {
    uint32_t ended;
    unsigned turn;
    __device__ __forceinline__ uint32_t begun() const { return ended + 8; }
};

// A block's shared memory: stages, barriers of two products and of factors, factors of two tiles.
struct Room {
    uint32_t stages, barriers;
    float* wide;
    __device__ __forceinline__ explicit Room(uint8_t* raw) {
        stages = (shared_address(raw) + 1023) & ~1023u, barriers = stages + STAGES_BYTES;
        wide = (float*)(raw + (barriers - shared_address(raw)) + BARRIERS_BYTES);
    }
    __device__ __forceinline__ Ring ring(int product) const { return {stages, barriers + product * 16 * STAGES_MOST, 0}; }
    __device__ __forceinline__ Factors factors() const { return {wide, barriers + 2 * 16 * STAGES_MOST, 0}; }
    __device__ __forceinline__ StepEnd step_end() const { return {barriers + 2 * 16 * STAGES_MOST + 32, 0}; }
};
static_assert(2 * 16 * STAGES_MOST + 32 + 16 <= BARRIERS_BYTES, "room for all barriers");
// By one thread, for so many consumer warps.
__device__ __forceinline__ void make_barriers(const Ring& ring, int warps) {
    for (int s = 0; s < STAGES_MOST; s++) mbar_init(ring.full + 8 * s, 1), mbar_init(ring.empty() + 8 * s, warps);
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void make_barriers(const Factors& factors, int warps) {
    for (int i = 0; i < 2; i++) mbar_init(factors.full + 8 * i, HELPERS), mbar_init(factors.empty() + 8 * i, 32 * warps);
}

constexpr int PRODUCER = 2 * 128, THREADS = 3 * 128;
__device__ __forceinline__ void producer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n"); }
__device__ __forceinline__ void consumer_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n"); }

template <int PARTS> __device__ __forceinline__ void split_product(const Maps& maps, const Product& product) {
    extern __shared__ uint8_t raw[];
    const Room room(raw);
    Ring ring = room.ring(0);
    const Span all = {0, product.m};
    if (threadIdx.x == PRODUCER) make_barriers(ring, 8);
    __syncthreads();
    if (threadIdx.x >= PRODUCER) {
        producer_registers();
        if (threadIdx.x == PRODUCER) produce<PARTS, false, 2, 128>(maps, product, all, ring);
    } else {
        consumer_registers();
        Factors none = room.factors();
        consume<PARTS, PLAIN, 2, 128>(product, all, ring, none);
    }
}
#define SPLIT_KERNEL(NAME, PARTS)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                              \
        NAME(const __grid_constant__ Maps maps, const __grid_constant__ Product product) {                                \
        split_product<PARTS>(maps, product);                                                                              \
    }
SPLIT_KERNEL(split_1, 1)
SPLIT_KERNEL(split_2, 2)

__device__ __forceinline__ void make_barriers(const StepEnd& end) { mbar_init(end.ended, THREADS / 32 - 1), mbar_init(end.begun(), 1); }

// All threads, at the end of a step: those of the next begin when all blocks are there. Weights are written by plain stores and then
// read by the copy engine, mostly another block's: a fence on either side orders the two ways to memory.
__device__ __forceinline__ void wait_for_blocks(unsigned* gate, StepEnd& end) {
    const unsigned parity = end.turn++ & 1;
    if (threadIdx.x == PRODUCER) {
        mbar_wait(end.ended, parity);
        gate_come(gate);
        gate_wait(gate, end.turn * gridDim.x);
        asm volatile("fence.proxy.async.global;\n" ::: "memory");
        mbar_arrive(end.begun());
    } else {
        asm volatile("fence.proxy.async.global;\n" ::: "memory");
        if (threadIdx.x / 32 != PRODUCER / 32) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbar_arrive(end.ended);
        }
        mbar_wait(end.begun(), parity);
    }
}

template <End SCORED>
__device__ __forceinline__ void go_through(const Maps& pairs, const Maps& weights, const Product& scores, const Product& weighted,
                                           const Steps& steps) {
    extern __shared__ uint8_t raw[];
    const Room room(raw);
    Ring of_scores = room.ring(0), of_weighted = room.ring(1);
    Factors factors = room.factors();
    StepEnd step_end = room.step_end();
    if (threadIdx.x == 0) prefetch(pairs), prefetch(weights);
    if (threadIdx.x == PRODUCER) {
        make_barriers(factors, steps.small[1] ? 4 : 8);
        make_barriers(step_end);
        make_barriers(of_scores, steps.small[0] ? 4 : 8), make_barriers(of_weighted, steps.small[1] ? 4 : 8);
    }
    __syncthreads();
    if (threadIdx.x >= PRODUCER) {
        producer_registers();
        const int helper = (int)threadIdx.x - PRODUCER - 32;
        for (int step = steps.first;;) {
            const Span span = span_of(scores, steps, step);
            if (threadIdx.x == PRODUCER) {
                if (step % 2 == 0) {
                    if (steps.small[0]) produce<2, false, 1, 64>(pairs, scores, span, of_scores);
                    else produce<2, false, 2, 128>(pairs, scores, span, of_scores);
                } else {
                    if (steps.small[1]) produce<2, true, 1, 64>(weights, weighted, span, of_weighted);
                    else produce<2, true, 2, 128>(weights, weighted, span, of_weighted);
                }
            } else if (helper >= 0 && step % 2 == 1) {
                if (steps.small[1]) weigh<1, 64>(weighted, span, factors, helper);
                else weigh<2, 128>(weighted, span, factors, helper);
            }
            if (++step == steps.end) break;
            wait_for_blocks(steps.gate, step_end);
        }
        if (threadIdx.x == PRODUCER) gate_leave(steps.gate);
    } else {
        consumer_registers();
        const bool first = threadIdx.x < 128;
        for (int step = steps.first;;) {
            const Span span = span_of(scores, steps, step);
            if (step % 2 == 0) {
                if (!steps.small[0]) consume<2, SCORED, 2, 128>(scores, span, of_scores, factors);
                else if (first) consume<2, SCORED, 1, 64>(scores, span, of_scores, factors);
            } else {
                if (!steps.small[1]) consume<2, WEIGHTED, 2, 128>(weighted, span, of_weighted, factors);
                else if (first) consume<2, WEIGHTED, 1, 64>(weighted, span, of_weighted, factors);
            }
            if (++step == steps.end) break;
            wait_for_blocks(steps.gate, step_end);
        }
    }
}
#define ATTEND_KERNEL(NAME, SCORED)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                              \
        NAME(const __grid_constant__ Maps pairs, const __grid_constant__ Maps weights,                                    \
             const __grid_constant__ Product scores, const __grid_constant__ Product weighted,                            \
             const __grid_constant__ Steps steps) {                                                                       \
        go_through<SCORED>(pairs, weights, scores, weighted, steps);                                                      \
    }
ATTEND_KERNEL(attend_normed, SCORES_NORMED)
ATTEND_KERNEL(attend, SCORES)
