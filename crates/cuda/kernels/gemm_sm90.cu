// Matrix product for Hopper (sm_90a), "NT": C[M,N] = A[M,K] W[N,K]^T, bf16 in and out, f32 sums; or SwiGLU of it; or
// C += A W^T.
//
// Layouts   A, W and C are row-major and densely packed; K is the contiguous axis of A and W, N of C.
//           K and N must be multiples of 8 (tensor maps want 16-byte row strides); M >= 1 is free.
//           Rows and columns past the end are zero-filled on load and clipped on store by the copy engine.
//           The box of A's tensor map has min(M, BM) rows: zero-filled rows cost time,
//           and with M < BM the rest of the tile may hold anything, since a row meets only its own sums.
//
// Tiles     A CTA owns BM x BN of C: WGS consumer warpgroups, each 64 rows x BN columns with the whole
//           accumulator in registers (BN/2 f32 a thread), and one producer warpgroup of which one thread
//           works. K moves in blocks of 64 (one 128-byte swizzled row), STAGES blocks deep.
//           The grid is persistent: CTA c takes cluster tiles c, c + grid, ... in a raster that walks
//           `group` cluster rows down M before it steps along N, so one wave touches a near-square patch.
//
// Clusters  CLM > 1: CLM CTAs stacked along M share a W tile, each fetches 1/CLM of its rows and
//           multicasts them to all.
//
// Swizzle   A and W tiles lie in shared memory as the copy engine writes them with SWIZZLE_128B: row r at
//           r*128 bytes, 16-byte chunk c of the row at chunk position c ^ (r & 7). The matrix descriptors
//           say so: layout 1 (128-byte swizzle), 1024 bytes between groups of 8 rows; a step of 16 in K is
//           +32 bytes on the start address. C goes through a per-warp 16 x CN staging tile with the same
//           rule (64-byte swizzle when CN = 32), written by stmatrix, read by the copy engine.
//
// Barriers  full[s]:  one arrival (the CTA's own producer, with the byte count of both tiles) + the bytes;
//           empty[s]: one arrival per consumer warp of every CTA in the cluster, since a multicast
//           overwrites the slot in all of them. Stage and phase run on across tiles.
//
// Sum order Every element of C is one chain over K in ascending steps of 16, first step with the
//           accumulator ignored, then one rounding to bf16. K is never split, so the bits of a row depend
//           on neither M nor the tile shape, the cluster shape or the row's position.
//
// Chaining  Launched with programmatic stream serialization and chained = 1, the kernel fetches its first W
//           tiles while the kernel before it drains, and touches A and C only after that one has completed.
//           W must therefore not be an output of that kernel. Launched plainly (chained = 0), the two
//           griddepcontrol instructions do nothing.
//
// Needs     128 threads per warpgroup, the cluster size is compiled in; dynamic shared memory
//           of Shape::SMEM bytes; compute_90a for wgmma and setmaxnreg. At run time only the driver is needed.
//
// SwiGLU    With SWIGLU, W has 8 rows of the gate, then 8 of up, and so on; C is [M, N/2]: silu(gate) up, both rounded to
//           bf16 first and the activation too, as the reference's bf16 run does. A gate and its up lie in one thread.
//
// Adding    With ADD, the product is rounded to bf16 and the sum with C again, as a sum in a pass of its own would be. Each warp
//           fetches its first two pieces of C into its staging tiles before it multiplies, the others as these are stored.
//
// Ladder    own / cuBLAS 13.1 on one H200, M >= 1024: 128x256 without clusters 0.96-0.98; with clusters of two along M
//           0.98-1.01. 8 cluster rows in a raster group; 4, 6, 12 and 16 lose 0.2 to 1.5 %.
#include "wgmma.cuh"

namespace sm90 {

constexpr int BK = 64;  // one 128-byte row of bf16

enum Kind { PLAIN, SWIGLU, ADD };

template <int WGS_, int BN_, int STAGES_, int CLM_, Kind KIND_> struct Shape {
    static constexpr int WGS = WGS_, BM = 64 * WGS_, BN = BN_, STAGES = STAGES_, CLM = CLM_, CL = CLM_;
    static constexpr bool SWIGLU = KIND_ == sm90::SWIGLU, ADD = KIND_ == sm90::ADD;
    static constexpr int OUT = SWIGLU ? BN / 2 : BN;    // columns of C in a tile
    static constexpr int THREADS = 128 * (WGS_ + 1);
    static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int CN = OUT % 64 == 0 ? 64 : 32;  // columns of one store
    static constexpr int C_BYTES = 16 * CN * 2;        // staging of one warp, two of them
    static constexpr int SMEM = 1024 + STAGES * STAGE_BYTES + WGS * 4 * 2 * C_BYTES + 2 * STAGES * 8 + WGS * 4 * 2 * 8;
    static_assert(BN % (8 * CLM) == 0 && OUT % CN == 0, "a multicast slice is whole 8-row groups, a tile whole stores");
    static_assert(SMEM <= 232448, "shared memory of one SM");
};

__device__ __forceinline__ float swiglu(float gate, float up) {
    return round_bf16(silu_fast(round_bf16(gate))) * round_bf16(up);
}

// Columns at .. at + 16 of a thread's two rows of C, as stmatrix stores them.
template <class S> __device__ __forceinline__ void out_16(const float (&d)[S::BN / 2], int at, uint32_t (&v)[4]) {
    if (S::SWIGLU) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int e = at + (i >> 1) * 8 + (i & 1) * 2;  // the gate's accumulator; up's is 4 on
            v[i] = pack_bf16(swiglu(d[e], d[e + 4]), swiglu(d[e + 1], d[e + 5]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = pack_bf16(d[at / 2 + 2 * i], d[at / 2 + 2 * i + 1]);
    }
}

// Cluster tile t of an nm x nn raster, `group` rows at a time.
__device__ __forceinline__ void tile_of(int t, int nm, int nn, int group, int& cm, int& cn) {
    int per = group * nn, g = t / per, r = t - g * per, first = g * group;
    int h = min(group, nm - first);
    cn = r / h;
    cm = first + (r - cn * h);
}

template <class S>
__device__ __forceinline__ void gemm_nt(const CUtensorMap& ta, const CUtensorMap& tb, const CUtensorMap& tc,
                                        int M, int N, int K, int group, int chained) {
    extern __shared__ uint8_t raw[];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    const uint32_t staging = base + S::STAGES * S::STAGE_BYTES;
    const uint32_t full = staging + S::WGS * 4 * 2 * S::C_BYTES, empty = full + S::STAGES * 8;
    const uint32_t addends = empty + S::STAGES * 8;

    const int wg = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    const uint32_t rank = S::CL > 1 ? blockIdx.x % S::CL : 0;

    if (threadIdx.x == S::WGS * 128) {
        asm volatile("prefetch.tensormap [%0];\nprefetch.tensormap [%1];\nprefetch.tensormap [%2];\n" ::"l"(&ta), "l"(&tb), "l"(&tc) : "memory");
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, S::WGS * 4 * S::CL);
        }
        for (int b = 0; S::ADD && b < S::WGS * 4 * 2; b++) mbar_init(addends + 8 * b, 1);
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
    }
    if (S::CL > 1) cluster_sync(); else __syncthreads();
    asm volatile("griddepcontrol.launch_dependents;\n");

    const int kblocks = (K + BK - 1) / BK;
    const uint32_t stage_tx = S::B_BYTES + (M < S::BM ? M : S::BM) * BK * 2;
    const int nm = (M + S::BM * S::CLM - 1) / (S::BM * S::CLM), nn = (N + S::BN - 1) / S::BN;
    const int tiles = nm * nn, first = blockIdx.x / S::CL, step = gridDim.x / S::CL;

    if (wg == S::WGS) {
        // ---- producer ----
        if (S::WGS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (warp == 0 && lane == 0) {
            int s = 0, ahead = 0;
            uint32_t phase = 1;
            auto load_w = [&](int slot, int kb, int n0) {
                const uint32_t b = base + slot * S::STAGE_BYTES + S::A_BYTES, bar = full + 8 * slot;
                mbar_expect(bar, stage_tx);
                if (S::CLM > 1) {
                    constexpr int rows = S::BN / S::CLM;
                    tma_load_multicast(b + rank * rows * 128, &tb, bar, kb * BK, n0 + rank * rows, (1 << S::CL) - 1);
                } else {
                    tma_load(b, &tb, bar, kb * BK, n0);
                }
            };
            for (int t = first; t < tiles; t += step) {
                int cm, cn;
                tile_of(t, nm, nn, group, cm, cn);
                const int m0 = (cm * S::CLM + (S::CLM > 1 ? rank : 0)) * S::BM;
                const int n0 = cn * S::BN;
                if (t == first) {
                    // W does not come from the kernel before: fill the pipeline with it, then wait for that kernel.
                    for (; chained && ahead < S::STAGES && ahead < kblocks; ahead++) load_w(ahead, ahead, n0);
                    asm volatile("griddepcontrol.wait;\n" ::: "memory");
                }
                for (int kb = 0; kb < kblocks; kb++) {
                    const uint32_t a = base + s * S::STAGE_BYTES, bar = full + 8 * s;
                    if (ahead > 0) {
                        ahead--;
                    } else {
                        mbar_wait(empty + 8 * s, phase);
                        load_w(s, kb, n0);
                    }
                    tma_load(a, &ta, bar, kb * BK, m0);
                    if (++s == S::STAGES) { s = 0; phase ^= 1; }
                }
            }
        }
    } else {
        // ---- consumers ----
        if (S::WGS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        float d[S::BN / 2];
        int s = 0, sbuf = 0;
        uint32_t phase = 0;
        const uint32_t mine = staging + (wg * 4 + warp) * 2 * S::C_BYTES, my_addends = addends + (wg * 4 + warp) * 16;
        uint32_t addend_phase = 0;
        if (S::ADD && lane == 0) asm volatile("griddepcontrol.wait;\n" ::: "memory");
        auto release = [&](int slot) {
            if (S::CL == 1) {
                if (lane == 0) mbar_arrive(empty + 8 * slot);
            } else {
                if (lane < S::CL) mbar_arrive_cta(empty + 8 * slot, lane);
            }
        };
        for (int t = first; t < tiles; t += step) {
            int cm, cn;
            tile_of(t, nm, nn, group, cm, cn);
            const int m0 = (cm * S::CLM + (S::CLM > 1 ? rank : 0)) * S::BM + wg * 64 + warp * 16;
            const int n0 = cn * S::BN;
            // Piece c of C, into staging tile c % 2, from which what was stored before has been read.
            auto fetch = [&](int c) {
                const int column = n0 + c * S::CN;
                if (lane == 0 && m0 < M && column < N) {
                    mbar_expect(my_addends + 8 * (c & 1), S::C_BYTES);
                    tma_load(mine + (c & 1) * S::C_BYTES, &tc, my_addends + 8 * (c & 1), column, m0);
                }
            };
            if (S::ADD) {
                if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
                fetch(0);
                if (S::OUT > S::CN) fetch(1);
            }
            int prev = -1;
            for (int kb = 0; kb < kblocks; kb++) {
                mbar_wait(full + 8 * s, phase);
                const uint64_t da = matrix_desc(base + s * S::STAGE_BYTES + wg * 64 * 128);
                const uint64_t db = matrix_desc(base + s * S::STAGE_BYTES + S::A_BYTES);
                fence_regs(d);
                asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
                for (int k = 0; k < BK / 16; k++) Wgmma<S::BN>::mma(d, da + 2 * k, db + 2 * k, k > 0 ? 1 : kb);
                asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
                fence_regs(d);
                // One block of products stays in flight; the block before it has been read.
                asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
                if (prev >= 0) release(prev);
                prev = s;
                if (++s == S::STAGES) { s = 0; phase ^= 1; }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
            fence_regs(d);
            release(prev);

            // Epilogue: registers -> staging (stmatrix) -> C (bulk tensor store), CN columns at a time.
            const int row = lane & 15, half = lane >> 4;
#pragma unroll
            for (int c = 0; c < S::OUT / S::CN; c++) {
                const uint32_t buf = mine + (S::ADD ? c & 1 : sbuf) * S::C_BYTES;
                if (S::ADD) {
                    if (m0 < M && n0 + c * S::CN < N) {
                        mbar_wait(my_addends + 8 * (c & 1), addend_phase >> (c & 1) & 1);
                        addend_phase ^= 1 << (c & 1);
                    }
                } else {
                    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;\n" ::: "memory");
                }
                __syncwarp();
#pragma unroll
                for (int j = 0; j < S::CN / 16; j++) {
                    uint32_t v[4];  // 16 columns, rows r and r + 8
                    out_16<S>(d, c * S::CN + j * 16, v);
                    const int chunk = j * 2 + half;
                    const uint32_t at = S::CN == 64 ? buf + row * 128 + ((chunk ^ (row & 7)) << 4)
                                                    : buf + row * 64 + ((chunk ^ ((row >> 1) & 3)) << 4);
                    if (S::ADD) {
                        uint32_t old[4];
                        load_tiles(old, at);
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            v[i] = pack_bf16(low_half(old[i]) + low_half(v[i]), high_half(old[i]) + high_half(v[i]));
                    }
                    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at),
                                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
                }
                asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
                __syncwarp();
                if (lane == 0) {
                    const int column = (S::SWIGLU ? n0 / 2 : n0) + c * S::CN;
                    if (m0 < M && column < (S::SWIGLU ? N / 2 : N)) tma_store(&tc, buf, column, m0);
                    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
                }
                if (S::ADD && c + 2 < S::OUT / S::CN) {
                    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
                    fetch(c + 2);
                }
                sbuf ^= 1;
            }
        }
        if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
    }
    // No CTA may leave while a neighbour can still arrive on its barriers.
    if (S::CL > 1) cluster_sync();
}

}  // namespace sm90

#define GEMM_KERNEL(NAME, KIND, WGS, BM, BN, STAGES, CLM)                                                       \
    extern "C" __global__ void __cluster_dims__(CLM, 1, 1) __launch_bounds__(128 * (WGS + 1), 1)                  \
        NAME##_##BM##x##BN##_c##CLM(                                                                              \
            const __grid_constant__ CUtensorMap ta, const __grid_constant__ CUtensorMap tb,                      \
            const __grid_constant__ CUtensorMap tc, int M, int N, int K, int group, int chained) {               \
        static_assert(BM == 64 * WGS, "");                                                                       \
        sm90::gemm_nt<sm90::Shape<WGS, BN, STAGES, CLM, sm90::KIND>>(ta, tb, tc, M, N, K, group, chained);       \
    }

// `Tile` in gemm.rs lists the same, with the shared memory of each.
#define GEMM_KERNELS(X)                   \
    X(gemm, PLAIN, 2, 128, 256, 4, 2)     \
    X(gemm, PLAIN, 2, 128, 256, 4, 1)     \
    X(gemm, PLAIN, 2, 128, 192, 4, 2)     \
    X(gemm, PLAIN, 2, 128, 128, 6, 2)     \
    X(gemm, PLAIN, 2, 128, 128, 6, 1)     \
    X(gemm, PLAIN, 2, 128, 64, 8, 2)      \
    X(gemm, PLAIN, 2, 128, 64, 8, 1)      \
    X(gemm, PLAIN, 1, 64, 192, 6, 2)      \
    X(gemm, PLAIN, 1, 64, 96, 10, 1)      \
    X(gemm, PLAIN, 1, 64, 64, 12, 2)      \
    X(gemm, PLAIN, 1, 64, 64, 12, 1)      \
    X(gemm, PLAIN, 1, 64, 32, 16, 1)      \
    X(swiglu, SWIGLU, 2, 128, 256, 4, 2)  \
    X(swiglu, SWIGLU, 2, 128, 256, 4, 1)  \
    X(swiglu, SWIGLU, 2, 128, 128, 6, 2)  \
    X(swiglu, SWIGLU, 2, 128, 128, 6, 1)  \
    X(swiglu, SWIGLU, 1, 64, 192, 6, 2)   \
    X(swiglu, SWIGLU, 1, 64, 192, 6, 1)   \
    X(swiglu, SWIGLU, 1, 64, 128, 8, 1)   \
    X(swiglu, SWIGLU, 1, 64, 64, 12, 1)   \
    X(add, ADD, 2, 128, 256, 4, 2)        \
    X(add, ADD, 2, 128, 256, 4, 1)        \
    X(add, ADD, 2, 128, 192, 4, 2)        \
    X(add, ADD, 2, 128, 128, 6, 2)        \
    X(add, ADD, 2, 128, 128, 6, 1)        \
    X(add, ADD, 2, 128, 64, 8, 2)         \
    X(add, ADD, 2, 128, 64, 8, 1)         \
    X(add, ADD, 1, 64, 192, 6, 2)         \
    X(add, ADD, 1, 64, 96, 10, 1)         \
    X(add, ADD, 1, 64, 64, 12, 2)         \
    X(add, ADD, 1, 64, 64, 12, 1)         \
    X(add, ADD, 1, 64, 32, 16, 1)

GEMM_KERNELS(GEMM_KERNEL)
