// Causal attention of grouped query heads for Hopper (sm_90a), heads of 256 values.
//
// Shapes    queries [rows, heads * 256] bf16, normed and turned; gates in rows of `wide` (a head's query and gate side by
//           side); keys and values [slots, kv_heads, positions, 256] bf16; out [rows, heads * 256] bf16.
// Grid      x: query heads; y: tiles of 128 query rows of one stream, longest first, so that the device ends on short ones. A
//           tile is 4 ints: first row of the round, rows, position of the first row (a multiple of 64), slot.
// Warps     two consumer warpgroups, 64 query rows each with all 256 columns of the sum in registers; one producer.
// Sum order keys in blocks of 64 from the stream's first position, in order, up to the last position of the warpgroup's 64
//           rows, which begin at a multiple of 64: so a row meets the same blocks however its prompt was cut. Scores and
//           weighted values are wgmma chains, the maximum and the sum of exponentials run over the blocks (Milakov and
//           Gimelshein 2018); exponentials are rounded to bf16 before they weigh values, as in the reference's attention.
// Unwritten positions of the value cache are finite (zero): keys that a row may not see get weight 0.
//
// Shared memory (1024-byte aligned; every tile is rows of 64 values, 128 bytes, in the 128-byte swizzle)
//   0       queries   4 x [128][64]   64 KiB: 64 values of the head each
//   65536   keys      2 stages of 4 x [64][64]   32 KiB each
//   131072  values    2 stages of 4 x [64][64]   32 KiB each
//   196608  barriers: queries; keys full, empty; values full, empty (two of each)
// Barriers  full: one arrival and the bytes; empty: one arrival of each of the eight consumer warps.
// Pipeline  the product of the next block's keys is issued before the weighted sum of this block's values, so the softmax
//           of the next block runs while the tensor cores add the values.
// Bound     4 * 256 operations a query and visible key.
#include "wgmma.cuh"

using namespace sm90;

constexpr int DIM = 256;
constexpr int QUERIES = 128, KEYS = 64;
constexpr uint32_t QUERY_PART = QUERIES * 128, KEY_PART = KEYS * 128;
constexpr uint32_t KEYS_AT = 4 * QUERY_PART, KEY_STAGE = 4 * KEY_PART;
constexpr uint32_t VALUES_AT = KEYS_AT + 2 * KEY_STAGE, BARRIERS_AT = VALUES_AT + 2 * KEY_STAGE;

// A tile stored [k][n] with the 128-byte swizzle, 64 columns n a part: 8192 bytes between parts, 1024 between groups of 8 k.
__device__ __forceinline__ uint64_t across_desc(uint32_t at) {
    return (uint64_t)((at & 0x3FFFF) >> 4) | ((uint64_t)(KEY_PART >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

__device__ __forceinline__ void scores(float (&s)[32], uint32_t queries, uint32_t keys) {
    fence_regs(s);
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const uint64_t a = matrix_desc(queries + (k / 4) * QUERY_PART) + 2 * (k % 4);
        const uint64_t b = matrix_desc(keys + (k / 4) * KEY_PART) + 2 * (k % 4);
        Wgmma<KEYS>::mma(s, a, b, k > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    fence_regs(s);
}

__device__ __forceinline__ void weigh(float (&o)[128], const uint32_t (&p)[16], uint32_t values, bool keep) {
    fence_regs(o);
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const uint32_t a[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
        WgmmaRegisters<DIM, true>::mma(o, a, across_desc(values + k * 2048), k > 0 || keep);
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    fence_regs(o);
}

// What a thread keeps of its two rows: maximum of the scores so far (times scale, base 2) and its share of the sum of
// exponentials.
struct Running {
    float max[2], sum[2];
};

// Makes exponentials of a block's scores; gives what the sums so far must be multiplied by.
__device__ __forceinline__ void soften(float (&s)[32], Running& run, float (&fade)[2], float scale) {
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; i++) top[(i >> 1) & 1] = fmaxf(top[(i >> 1) & 1], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        const float max = fmaxf(run.max[r], top[r] * scale);
        fade[r] = exp2_fast(run.max[r] - max);
        run.max[r] = max;
    }
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int r = (i >> 1) & 1;
        s[i] = exp2_fast(fmaf(s[i], scale, -run.max[r]));
        sum[r] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) run.sum[r] = fmaf(run.sum[r], fade[r], sum[r]);
}

__device__ __forceinline__ void pack_weights(const float (&s)[32], uint32_t (&p)[16]) {
#pragma unroll
    for (int i = 0; i < 16; i++) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

extern "C" __global__ void __launch_bounds__(384, 1) attend_256(
    const __grid_constant__ CUtensorMap queries_map, const __grid_constant__ CUtensorMap keys_map,
    const __grid_constant__ CUtensorMap values_map, const int4* tiles, const bf16* wide, bf16* out, int wide_width,
    int heads, int kv_heads, int positions, float scale) {
    chain();
    extern __shared__ uint8_t raw[];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
    const uint32_t queries_full = base + BARRIERS_AT, keys_full = queries_full + 8, keys_empty = keys_full + 16,
                   values_full = keys_empty + 16, values_empty = values_full + 16;
    const int wg = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;
    const int4 tile = tiles[blockIdx.y];
    const int first_row = tile.x, rows = tile.y, position = tile.z, head = blockIdx.x;
    const int kv_head = head / (heads / kv_heads);
    const int blocks = (position + rows + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        mbar_init(queries_full, 1);
        for (int s = 0; s < 2; s++) {
            mbar_init(keys_full + 8 * s, 1), mbar_init(values_full + 8 * s, 1);
            mbar_init(keys_empty + 8 * s, 8), mbar_init(values_empty + 8 * s, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
    }
    __syncthreads();

    if (wg == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
        if (warp == 0 && lane == 0) {
            const int from = (tile.w * kv_heads + kv_head) * positions;
            auto load = [&](const CUtensorMap& map, uint32_t to, uint32_t bar, int block) {
                mbar_expect(bar, KEY_STAGE);
                for (int part = 0; part < 4; part++) tma_load(to + part * KEY_PART, &map, bar, part * 64, from + block * KEYS);
            };
            mbar_expect(queries_full, 4 * QUERY_PART);
            for (int part = 0; part < 4; part++)
                tma_load(base + part * QUERY_PART, &queries_map, queries_full, head * DIM + part * 64, first_row);
            for (int block = 0; block < blocks; block++) {
                const int stage = block & 1;
                const uint32_t parity = ((block >> 1) & 1) ^ 1;
                mbar_wait(keys_empty + 8 * stage, parity);
                load(keys_map, base + KEYS_AT + stage * KEY_STAGE, keys_full + 8 * stage, block);
                mbar_wait(values_empty + 8 * stage, parity);
                load(values_map, base + VALUES_AT + stage * KEY_STAGE, values_full + 8 * stage, block);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
        const uint32_t queries = base + wg * 64 * 128;
        // A warpgroup without rows goes through the motions, since the producer waits for it. One whose rows end a block
        // earlier stops there: the stages that it then does not release are not filled again.
        const int own = min(rows - wg * 64, 64);
        const int own_blocks = own <= 0 ? blocks : (position + wg * 64 + own + KEYS - 1) / KEYS;
        const int row = warp * 16 + lane / 4;                     // and 8 more, of the warpgroup's
        const int at = position + wg * 64 + row;                  // position of that row
        float s[32], o[128], fade[2];
        uint32_t p[16];
        Running run = {{-INFINITY, -INFINITY}, {0, 0}};
        auto hide = [&](int block) {
            if ((block + 1) * KEYS <= position + wg * 64 + 1) return;  // every row sees all of it
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const int key = block * KEYS + (i >> 2) * 8 + 2 * (lane & 3) + (i & 1);
                if (key > at + 8 * ((i >> 1) & 1)) s[i] = -INFINITY;
            }
        };
        auto release = [&](uint32_t bar) {
            if (lane == 0) mbar_arrive(bar);
        };

        mbar_wait(queries_full, 0);
        mbar_wait(keys_full, 0);
        scores(s, queries, base + KEYS_AT);
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        fence_regs(s);
        release(keys_empty);
        hide(0);
        soften(s, run, fade, scale);
        pack_weights(s, p);
        for (int block = 1; block < own_blocks; block++) {
            const int stage = block & 1, before = stage ^ 1;
            mbar_wait(keys_full + 8 * stage, (block >> 1) & 1);
            scores(s, queries, base + KEYS_AT + stage * KEY_STAGE);
            mbar_wait(values_full + 8 * before, ((block - 1) >> 1) & 1);
            weigh(o, p, base + VALUES_AT + before * KEY_STAGE, block > 1);
            asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
            fence_regs(s);
            release(keys_empty + 8 * stage);
            hide(block);
            soften(s, run, fade, scale);
            asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
            fence_regs(o);
            release(values_empty + 8 * before);
            // Maxima seldom grow after the first blocks, and a factor of one changes no bit.
            if (__any_sync(~0u, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < 128; i++) o[i] *= fade[(i >> 1) & 1];
            }
            pack_weights(s, p);
        }
        const int last = (own_blocks - 1) & 1;
        mbar_wait(values_full + 8 * last, ((own_blocks - 1) >> 1) & 1);
        weigh(o, p, base + VALUES_AT + last * KEY_STAGE, own_blocks > 1);
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        fence_regs(o);
        release(values_empty + 8 * last);

#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = run.sum[r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const float inverse = 1.0f / sum;
            if (row + 8 * r >= own) continue;
            const size_t round_row = first_row + wg * 64 + row + 8 * r;
            const bf16* gate = wide + round_row * wide_width + (2 * head + 1) * DIM + 2 * (lane & 3);
            bf16* to = out + (round_row * heads + head) * DIM + 2 * (lane & 3);
#pragma unroll
            for (int g = 0; g < 32; g++) {
                const uint32_t open = *(const uint32_t*)(gate + 8 * g);
                const float a = round_bf16(o[4 * g + 2 * r] * inverse) * round_bf16(sigmoid(low_half(open)));
                const float b = round_bf16(o[4 * g + 2 * r + 1] * inverse) * round_bf16(sigmoid(high_half(open)));
                *(uint32_t*)(to + 8 * g) = pack_bf16(a, b);
            }
        }
    }
}
