//! AVX2 and FMA: a vector of sixteen is two registers of eight.
//!
//! Why `unsafe`: the instructions may be missing. An [`Avx2`] is made by [`Avx2::detect`] alone, so holding one is the
//! proof that they are there; pointers are covered by the contract of [`Simd`].

use std::arch::x86_64::*;

use super::isa::Kernel;
use super::simd::Simd;

/// Proof of AVX2 and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Sixteen f32: the first eight, the last eight.
#[derive(Clone, Copy)]
pub(crate) struct F(__m256, __m256);

/// Sixteen i32: the first eight, the last eight.
#[derive(Clone, Copy)]
pub(crate) struct I(__m256i, __m256i);

impl Avx2 {
    /// The proof, if the machine has the instructions.
    pub(super) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }

    /// Runs a kernel compiled for these instructions.
    pub(super) fn call<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma")]
        fn compiled<K: Kernel>(isa: Avx2, kernel: K) -> K::Out {
            kernel.run(isa)
        }
        // SAFETY: only `detect` makes an `Avx2`, so AVX2 and FMA exist.
        unsafe { compiled(self, kernel) }
    }
}

/// Methods whose body is made of AVX2 and FMA instructions on values.
macro_rules! instructions {
    ($(fn $name:ident $(<const $bits:ident: i32>)? ($($arg:ident: $type:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name $(<const $bits: i32>)? (self, $($arg: $type),*) -> $out {
            // SAFETY: only `detect` makes an `Avx2`, so AVX2 and FMA exist; the instructions touch values alone.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx2 {
    type F = F;
    type I = I;
    // Sixteen registers: at most twelve sums, two weights, one activation.
    const PANELS: [usize; 7] = [0, 4, 3, 2, 1, 1, 1];
    const PAIR_PANELS: [usize; 7] = [0, 4, 2, 1, 1, 0, 0];

    #[inline(always)]
    fn prefetch(at: *const f32) {
        // SAFETY: every x86-64 machine has the instruction; it reads nothing and takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }

    #[inline(always)]
    unsafe fn load_raw(self, from: *const f32) -> F {
        // SAFETY: AVX exists (see `detect`); the caller gives sixteen readable f32, of which these are 0..8 and 8..16.
        unsafe { F(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store_raw(self, to: *mut f32, x: F) {
        // SAFETY: AVX exists (see `detect`); the caller gives sixteen writable f32, of which these are 0..8 and 8..16.
        unsafe {
            _mm256_storeu_ps(to, x.0);
            _mm256_storeu_ps(to.add(8), x.1);
        }
    }

    #[inline(always)]
    unsafe fn load_pairs_raw(self, from: *const u32) -> (F, F) {
        // SAFETY: AVX2 exists (see `detect`); the caller gives sixteen readable u32, of which these are 0..8 and 8..16.
        unsafe {
            let (a, b) = (
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(8).cast()),
            );
            let high = _mm256_set1_epi32(-0x1_0000);
            (
                F(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b)),
                ),
                F(
                    _mm256_castsi256_ps(_mm256_and_si256(a, high)),
                    _mm256_castsi256_ps(_mm256_and_si256(b, high)),
                ),
            )
        }
    }

    instructions! {
        fn splat(x: f32) -> F = F(_mm256_set1_ps(x), _mm256_set1_ps(x));
        fn add(a: F, b: F) -> F = F(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
        fn sub(a: F, b: F) -> F = F(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
        fn mul(a: F, b: F) -> F = F(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
        fn div(a: F, b: F) -> F = F(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1));
        fn fma(a: F, b: F, c: F) -> F = F(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
        fn fnma(a: F, b: F, c: F) -> F = F(_mm256_fnmadd_ps(a.0, b.0, c.0), _mm256_fnmadd_ps(a.1, b.1, c.1));
        fn max(a: F, b: F) -> F = F(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
        fn min(a: F, b: F) -> F = F(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1));
        fn if_less(a: F, b: F, yes: F, no: F) -> F = F(
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
        );
        fn if_number(a: F, yes: F, no: F) -> F = F(
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_ORD_Q>(a.0, a.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_ORD_Q>(a.1, a.1)),
        );
        fn to_int(a: F) -> I = I(_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(a.1));
        fn to_float(a: I) -> F = F(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1));
        fn to_bits(a: F) -> I = I(_mm256_castps_si256(a.0), _mm256_castps_si256(a.1));
        fn from_bits(a: I) -> F = F(_mm256_castsi256_ps(a.0), _mm256_castsi256_ps(a.1));
        fn splat_int(x: i32) -> I = I(_mm256_set1_epi32(x), _mm256_set1_epi32(x));
        fn add_int(a: I, b: I) -> I = I(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1));
        fn sub_int(a: I, b: I) -> I = I(_mm256_sub_epi32(a.0, b.0), _mm256_sub_epi32(a.1, b.1));
        fn and_int(a: I, b: I) -> I = I(_mm256_and_si256(a.0, b.0), _mm256_and_si256(a.1, b.1));
        fn shl<const BITS: i32>(a: I) -> I = I(_mm256_slli_epi32::<BITS>(a.0), _mm256_slli_epi32::<BITS>(a.1));
        fn sar<const BITS: i32>(a: I) -> I = I(_mm256_srai_epi32::<BITS>(a.0), _mm256_srai_epi32::<BITS>(a.1));
    }
}
