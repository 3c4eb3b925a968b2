// Matrix products of f32 accuracy for Hopper (sm_90a): C = A B, where A is a sum of two f16 parts, B of one or two.
//
// Shapes    A [M, K] f16, twice (high and low part); B [N, K] or, of weighted rows, [K, N], each part; out f32
//           [splits, M, out_pitch]: out = sum * scale. Rows of A and B lie at multiples of 16 bytes.
// Ends      scores of memory rows do not go out: each warp makes weights of them for the softmax, in groups of 64 keys with marks
//           of their own, which differ by powers of two (`soften` in head.cuh). Weighted rows take these as A, and a chain, which
//           is one group, is multiplied by its group's power of two as it joins the sum.
// Precision a value of 22 bits is the sum of two of 11. Products of parts are exact; of two and two parts the three greater
//           products count, what is left out is below 2^-22 of the greatest. The tensor core truncates its sums, so a chain
//           is at most 64 of K long: its sum is then added, rounded to nearest, to that of the chains before.
// Sum order K in blocks of 64 from the split's start; of a block low A high B, high A low B, high A high B, each in steps of
//           16; blocks in order. A split is `k_split` of K. So the bits of a row of A depend on neither M nor the grid.
// Grid      x, y: tiles of 128 columns and of 128 rows, or the other way round; z: splits. Where those are too few to fill a
//           device, tiles of 64 by 64, which give the same bits.
// Warps     two consumer warpgroups of 64 rows x 128 columns, sums in registers, and a producer; of a small tile one consumer.
// Shared    (1024-byte aligned) stages of A high, A low, B high (B low), of a small tile 8 KiB, else 16 each, in the 128-byte
//           swizzle: K-major tiles are [128][64], those of [K, N] 2 x [64 of K][64 of N]. Then full and empty barriers of each stage, and factors of groups [128][17] f32.
// Barriers  full: one arrival and the bytes; empty: one arrival of each of the consumer warps.
// Bound     4 (one part of B) or 6 operations of the tensor core for each of M N K.
#include "head.cuh"
#include "wgmma.cuh"

using namespace sm90;

constexpr int DEPTH = 64;
constexpr int GROUPS = 17;  // at most 16 groups of 64 keys a split, and one place so that rows lie in different banks

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

template <int PARTS, End END, int WGS, int N>
__device__ __forceinline__ void split_product(const CUtensorMap& a_high, const CUtensorMap& a_low, const CUtensorMap& b_high,
                                              const CUtensorMap& b_low, const Product& product) {
    constexpr bool ACROSS = END == WEIGHTED;
    constexpr int TILE = 64 * WGS, COUNT = N / 2;
    constexpr uint32_t A_PART = TILE * DEPTH * 2, B_PART = N * DEPTH * 2, STAGE = 2 * A_PART + PARTS * B_PART;
    constexpr int STAGES = 3 * 65536 / STAGE;
    extern __shared__ uint8_t raw[];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    const uint32_t full = base + STAGES * STAGE, empty = full + 8 * STAGES;
    float* factors = (float*)(raw + (base - shared_address(raw)) + STAGES * STAGE + 128);
    const int wg = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    const int m0 = (product.rows_first ? blockIdx.x : blockIdx.y) * TILE, n0 = (product.rows_first ? blockIdx.y : blockIdx.x) * N;
    const int k0 = blockIdx.z * product.k_split, blocks = (min(product.k - k0, product.k_split) + DEPTH - 1) / DEPTH;

    if (threadIdx.x == 128 * WGS) {
        for (int s = 0; s < STAGES; s++) mbar_init(full + 8 * s, 1), mbar_init(empty + 8 * s, 4 * WGS);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
    }
    __syncthreads();

    if (wg == WGS) {
        if (WGS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (warp == 0 && lane == 0) {
            for (int block = 0; block < blocks; block++) {
                const int stage = block % STAGES, at = k0 + block * DEPTH;
                const uint32_t to = base + stage * STAGE, bar = full + 8 * stage;
                mbar_wait(empty + 8 * stage, (block / STAGES & 1) ^ 1);
                mbar_expect(bar, STAGE);
                tma_load(to, &a_high, bar, at, m0);
                tma_load(to + A_PART, &a_low, bar, at, m0);
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const CUtensorMap* map = part ? &b_low : &b_high;
                    const uint32_t b = to + 2 * A_PART + part * B_PART;
                    if (!ACROSS) tma_load(b, map, bar, at, n0);
#pragma unroll
                    for (int n = 0; ACROSS && n < N; n += 64) tma_load(b + n * 128, map, bar, n0 + n, at);
                }
            }
        }
    } else {
        if (WGS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        const int local = wg * 64 + warp * 16 + lane / 4;
        if (ACROSS) {
            if (threadIdx.x < TILE) weigh_groups(product, m0 + threadIdx.x, k0 / DEPTH, blocks, factors + threadIdx.x * GROUPS);
            asm volatile("bar.sync 1, %0;\n" ::"n"(128 * WGS) : "memory");
        }
        float sum[COUNT], d[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) sum[i] = 0;
        for (int block = 0; block < blocks; block++) {
            const int stage = block % STAGES;
            const uint32_t a = base + stage * STAGE + wg * 64 * 128, b = base + stage * STAGE + 2 * A_PART;
            mbar_wait(full + 8 * stage, block / STAGES & 1);
            fence_regs(d);
            asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
            chain<ACROSS>(d, a + A_PART, b, 0);
            if (PARTS == 2) chain<ACROSS>(d, a, b + B_PART, 1);
            chain<ACROSS>(d, a, b, 1);
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
            fence_regs(d);
            if (lane == 0) mbar_arrive(empty + 8 * stage);
            if (ACROSS) {
                const float factor[2] = {factors[local * GROUPS + block], factors[(local + 8) * GROUPS + block]};
#pragma unroll
                for (int i = 0; i < COUNT; i++) sum[i] = fmaf(d[i], factor[i / 2 % 2], sum[i]);
            } else {
#pragma unroll
                for (int i = 0; i < COUNT; i++) sum[i] += d[i];
            }
        }
        const int row = m0 + local, column = n0 + 2 * (lane & 3);
        if constexpr (END == SCORES_NORMED || END == SCORES) {
#pragma unroll
            for (int g = 0; g < N / 8; g += 8) soften<END == SCORES_NORMED, 8>(product, sum, g, row, column + 8 * g);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = row + 8 * half;
                if (at >= product.m) continue;
                float* to = product.out + ((size_t)blockIdx.z * product.m + at) * product.out_pitch;
#pragma unroll
                for (int g = 0; g < N / 8; g++)
                    if (column + 8 * g < product.n)
                        *(float2*)(to + column + 8 * g) =
                            make_float2(sum[4 * g + 2 * half] * product.scale, sum[4 * g + 2 * half + 1] * product.scale);
            }
        }
    }
}

#define SPLIT_KERNEL(NAME, PARTS, END, WGS, N)                                                                            \
    extern "C" __global__ void __launch_bounds__(128 * WGS + 128, 1)                                                      \
        NAME(const __grid_constant__ CUtensorMap a_high, const __grid_constant__ CUtensorMap a_low,                       \
             const __grid_constant__ CUtensorMap b_high, const __grid_constant__ CUtensorMap b_low,                       \
             const __grid_constant__ Product product) {                                                                   \
        split_product<PARTS, END, WGS, N>(a_high, a_low, b_high, b_low, product);                                         \
    }
SPLIT_KERNEL(split_1, 1, PLAIN, 2, 128)
SPLIT_KERNEL(split_2, 2, PLAIN, 2, 128)
SPLIT_KERNEL(scores_normed, 2, SCORES_NORMED, 2, 128)
SPLIT_KERNEL(scores, 2, SCORES, 2, 128)
SPLIT_KERNEL(weighted, 2, WEIGHTED, 2, 128)
SPLIT_KERNEL(scores_normed_small, 2, SCORES_NORMED, 1, 64)
SPLIT_KERNEL(scores_small, 2, SCORES, 1, 64)
SPLIT_KERNEL(weighted_small, 2, WEIGHTED, 1, 64)
