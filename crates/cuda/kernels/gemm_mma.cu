// Matrix product with mma.sync (sm_80 and up), "NT": C[M,N] = A[M,K] W[N,K]^T, bf16 in and out, f32 sums.
//
// Shapes    rows of A, W and C lie lda, K and ldc values apart, multiples of 8; K and N multiples of 8.
// Grid      x: tiles of BN columns, y: tiles of BM rows. Warps of 32 x 32.
// Sum order one mma chain over K in ascending steps of 16, from 0, then one rounding: the same for every M, row and tile,
//           and the same bits as gemm_sm90.cu.
// Shared    STAGES of A [BM][40] and W [BN][40] bf16: blocks of 32 of K, fetched two blocks ahead.
#include "ptx.cuh"

constexpr int BK = 32, PITCH = 40, STAGES = 3;

template <int BM, int BN>
__device__ __forceinline__ void gemm(const bf16* a, const bf16* w, bf16* c, int m, int n, int k, int lda, int ldc) {
    constexpr int WARPS_N = BN / 32, THREADS = BM / 32 * WARPS_N * 32, STAGE = (BM + BN) * PITCH * 2;
    extern __shared__ __align__(16) uint8_t raw[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, wm = warp / WARPS_N * 32, wn = warp % WARPS_N * 32;
    const uint32_t base = shared_address(raw);
    const int blocks = (k + BK - 1) / BK;

    auto fetch = [&](int block) {
        const uint32_t to = base + block % STAGES * STAGE;
        for (int i = threadIdx.x; i < (BM + BN) * 4; i += THREADS) {
            const int r = i >> 2, d = block * BK + (i & 3) * 8;
            const bool is_a = r < BM;
            const int row = is_a ? m0 + r : n0 + r - BM;
            const bool there = d < k && row < (is_a ? m : n);
            const bf16* from = is_a ? a + (size_t)(there ? row : 0) * lda : w + (size_t)(there ? row : 0) * k;
            copy_16(to + (r * PITCH + (i & 3) * 8) * 2, from + (there ? d : 0), there);
        }
    };
    float d[2][4][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) d[i][j][e] = 0;
    for (int block = 0; block < STAGES - 1; block++) {
        if (block < blocks) fetch(block);
        copies_commit();
    }
    for (int block = 0; block < blocks; block++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (block + STAGES - 1 < blocks) fetch(block + STAGES - 1);
        copies_commit();
        const uint32_t at = base + block % STAGES * STAGE;
#pragma unroll
        for (int step = 0; step < BK / 16; step++) {
            uint32_t left[2][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_tiles(left[i], at + ((wm + i * 16 + (lane & 15)) * PITCH + step * 16 + (lane >> 4) * 8) * 2);
#pragma unroll
            for (int j = 0; j < 2; j++)
                load_tiles(right[j], at + ((BM + wn + j * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + step * 16 + ((lane >> 3) & 1) * 8) * 2);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(d[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = m0 + wm + i * 16 + lane / 4 + 8 * half, column = n0 + wn + j * 8 + 2 * (lane & 3);
                if (row < m && column < n)
                    *(uint32_t*)(c + (size_t)row * ldc + column) = pack_bf16(d[i][j][2 * half], d[i][j][2 * half + 1]);
            }
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_mma_128x64(const bf16* a, const bf16* w, bf16* c, int m, int n, int k, int lda, int ldc) {
    chain();
    gemm<128, 64>(a, w, c, m, n, k, lda, ldc);
}
extern "C" __global__ void __launch_bounds__(64)
    gemm_mma_32x64(const bf16* a, const bf16* w, bf16* c, int m, int n, int k, int lda, int ldc) {
    chain();
    gemm<32, 64>(a, w, c, m, n, k, lda, ldc);
}
