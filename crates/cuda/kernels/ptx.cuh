// What all kernels share: bf16 as bits, warp sums, tensor-core tiles of mma.sync, asynchronous copies.
//
// bf16 values are kept as their bits; arithmetic is f32. `round_bf16` rounds to nearest, ties to even, as the reference's
// casts do. Sums over a warp go over lane distances 16, 8, 4, 2, 1, so every lane ends with the same bits.
#pragma once
#include <stdint.h>

typedef uint16_t bf16;

__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((uint32_t)x << 16); }
__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Two values as bf16, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// Of a pair, since the conversion of one value alone goes through a slow pipe.
__device__ __forceinline__ bf16 narrow(float x) { return (bf16)pack_bf16(x, 0.0f); }
__device__ __forceinline__ float round_bf16(float x) { return __uint_as_float(pack_bf16(0.0f, x)); }

// Two values as the sum of two bf16 each: what is lost is below 2^-17 of the value.
__device__ __forceinline__ void split_bf16(float a, float b, uint32_t& high, uint32_t& low) {
    high = pack_bf16(a, b);
    low = pack_bf16(a - low_half(high), b - high_half(high));
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// The same within 2^-20, for what is rounded to bf16 right after.
__device__ __forceinline__ float silu_fast(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exp2_fast(-1.4426950408889634f * x)));
    return x * inverse;
}
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// The first statement of a kernel that is launched beside the end of the one before: lets the next one's blocks come as soon as
// all of this one's have begun, and waits until the one before is done. Before it nothing is touched that a kernel writes.
__device__ __forceinline__ void chain() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Copies 16 bytes to shared memory, or fills them with zeros.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Four 8x8 tiles of 16-bit values. Lane l names row l % 8 of tile l / 8; it gets, of each tile, row l / 4, columns
// 2 (l % 4) and the next (across: column l / 4, rows 2 (l % 4) and the next).
__device__ __forceinline__ void load_tiles(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_tiles_across(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Exchanges rows and columns of an 8x8 tile that lies in a warp as `load_tiles` leaves it.
__device__ __forceinline__ uint32_t turn_tile(uint32_t x) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
    return r;
}

// d[16][8] += a[16][16] b[16][8]. Lane l has of d: row l / 4, columns 2 (l % 4) and the next (d0, d1), and row l / 4 + 8
// (d2, d3); of a: rows l / 4 (a0, a2) and l / 4 + 8 (a1, a3), k 2 (l % 4) and the next (a0, a1) and 8 more (a2, a3); of b:
// column l / 4, the same k.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
