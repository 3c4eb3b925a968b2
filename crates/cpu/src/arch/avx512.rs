//! AVX-512: a vector of sixteen is one register.
//!
//! Why `unsafe`: the instructions may be missing. The two proofs are made by their `detect` alone; pointers are covered
//! by the contract of [`Simd`].

use std::arch::x86_64::*;

use super::isa::Kernel;
use super::simd::{LANES, Simd};
use super::tile::{DotsProduct, Fill, Pairs, row_places};

/// Proof of AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

/// Proof of AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Bf16(Avx512);

impl Avx512 {
    /// The proof, if the machine has the instructions.
    pub(super) fn detect() -> Option<Avx512> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        found.then_some(Avx512(()))
    }

    /// Runs a kernel compiled for these instructions.
    pub(super) fn call<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn compiled<K: Kernel>(isa: Avx512, kernel: K) -> K::Out {
            kernel.run(isa)
        }
        // SAFETY: only `detect` makes an `Avx512`, so these parts of AVX-512 exist, and with them AVX2 and FMA.
        unsafe { compiled(self, kernel) }
    }
}

impl Avx512Bf16 {
    /// The proof, if the machine has the instructions.
    pub(super) fn detect() -> Option<Avx512Bf16> {
        let base = Avx512::detect()?;
        is_x86_feature_detected!("avx512bf16").then_some(Avx512Bf16(base))
    }

    /// Runs a product by the bf16 dot product, compiled for these instructions.
    pub(super) fn call_dots(self, product: DotsProduct<'_>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
        fn compiled(product: DotsProduct<'_>) {
            product.run();
        }
        // SAFETY: only `detect` makes an `Avx512Bf16`, so all these instructions exist.
        unsafe { compiled(product) };
    }

    /// Twelve independent chains of sixteen bf16 dot products of two, `rounds` long.
    pub(super) fn dot_products(self, rounds: usize) -> f32 {
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn compiled(rounds: usize) -> f32 {
            let mut sums: [__m512; 12] = std::array::from_fn(|i| _mm512_set1_ps(i as f32));
            // SAFETY: the vectors are equally large, and any bits are bf16 values.
            let pair =
                unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(0x3e80_3f00)) };
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, pair, pair);
                }
            }
            sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
        }
        // SAFETY: only `detect` makes an `Avx512Bf16`, so all these instructions exist.
        unsafe { compiled(rounds) }
    }

    /// The proof of the rest.
    pub(super) fn base(self) -> Avx512 {
        self.0
    }
}

/// Methods whose body is made of AVX-512 instructions on values.
macro_rules! instructions {
    ($(fn $name:ident ($($arg:ident: $type:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name (self, $($arg: $type),*) -> $out {
            // SAFETY: only `detect` makes an `Avx512`, so these parts of it exist; the instructions touch values alone.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    // Thirty-two registers: at most twenty-four sums, four weights, one activation.
    const PANELS: [usize; 7] = [0, 4, 4, 4, 4, 4, 4];
    const PAIR_PANELS: [usize; 7] = [0, 4, 4, 4, 4, 4, 4];

    #[inline(always)]
    fn prefetch(at: *const f32) {
        // SAFETY: every x86-64 machine has the instruction; it reads nothing and takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }

    #[inline(always)]
    unsafe fn load_raw(self, from: *const f32) -> __m512 {
        // SAFETY: AVX-512 exists (see `detect`); the caller gives sixteen readable f32.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_raw(self, to: *mut f32, x: __m512) {
        // SAFETY: AVX-512 exists (see `detect`); the caller gives sixteen writable f32.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_pairs_raw(self, from: *const u32) -> (__m512, __m512) {
        // SAFETY: AVX-512 exists (see `detect`); the caller gives sixteen readable u32.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000));
            (
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(high),
            )
        }
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: AVX-512 exists (see `detect`); the instruction touches values alone.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(BITS)) }
    }

    #[inline(always)]
    fn sar<const BITS: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: AVX-512 exists (see `detect`); the instruction touches values alone.
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(BITS)) }
    }

    instructions! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn if_less(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes);
        fn if_number(a: __m512, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(a, a), no, yes);
        fn to_int(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        fn to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn to_bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        fn from_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        fn splat_int(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn add_int(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub_int(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn and_int(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
    }
}

/// Tiles by the bf16 dot product: `vdpbf16ps` adds the odd product of a pair, rounds, adds the even one, rounds. It takes
/// subnormal numbers as zero; none comes here (see [`crate::Linear`]).
pub(super) struct Dots<'a> {
    pub(super) pairs: Pairs<'a>,
    pub(super) steps: usize,
    pub(super) row_stride: usize,
    pub(super) k_stride: usize,
}

impl Fill for Dots<'_> {
    const PANELS: [usize; 7] = [0, 4, 4, 4, 4, 4, 4];

    #[inline(always)]
    fn prefetch(at: *const f32) {
        // SAFETY: every x86-64 machine has the instruction; it reads nothing and takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }

    #[inline(always)]
    unsafe fn fill<const R: usize, const C: usize>(
        &self,
        left: *const f32,
        panel: usize,
        to: *mut f32,
        stride: usize,
        more: bool,
    ) {
        // SAFETY: AVX-512 with bf16 exists, for only `Avx512Bf16::call_dots` leads here. The caller promises the tile's rows
        // and panels over all steps, and `R` rows of `16 · C` sums. The casts keep the bits of equally large vectors.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); C]; R];
            if more {
                for (r, row) in sums.iter_mut().enumerate() {
                    for (c, sum) in row.iter_mut().enumerate() {
                        *sum = _mm512_loadu_ps(to.add(r * stride + c * LANES));
                    }
                }
            }
            let mut step = 0;
            let rows = row_places::<R>(left, self.row_stride);
            if self.k_stride == 1 {
                while step + 4 <= self.steps {
                    for next in step..step + 4 {
                        self.add_step(&mut sums, &rows, 1, panel, next);
                    }
                    step += 4;
                }
            }
            let rows = row_places::<R>(left, self.row_stride);
            while step < self.steps {
                self.add_step(&mut sums, &rows, self.k_stride, panel, step);
                step += 1;
            }
            for (r, row) in sums.iter().enumerate() {
                for (c, sum) in row.iter().enumerate() {
                    _mm512_storeu_ps(to.add(r * stride + c * LANES), *sum);
                }
            }
        }
    }
}

impl Dots<'_> {
    /// Adds one step's pairs to a tile's sums.
    ///
    /// # Safety
    /// The operands hold the tile's rows and panels at the step, and AVX-512 with bf16 exists.
    #[inline(always)]
    unsafe fn add_step<const R: usize, const C: usize>(
        &self,
        sums: &mut [[__m512; C]; R],
        rows: &[*const f32; R],
        k_stride: usize,
        panel: usize,
        step: usize,
    ) {
        // SAFETY: the caller promises the instructions, and the tile's rows and panels at the step. The casts keep the bits
        // of equally large vectors.
        unsafe {
            let mut weights = [_mm512_setzero_si512(); C];
            for (c, weights) in weights.iter_mut().enumerate() {
                let from = panel.wrapping_add(c).wrapping_mul(self.pairs.panel_stride);
                let from = from.wrapping_add(step.wrapping_mul(LANES));
                *weights = _mm512_loadu_si512(self.pairs.data.as_ptr().wrapping_add(from).cast());
            }
            let at = step.wrapping_mul(k_stride);
            for (row, sums) in rows.iter().zip(sums) {
                let pair = _mm512_set1_ps(*row.wrapping_add(at));
                let pair = std::mem::transmute::<__m512, __m512bh>(pair);
                for (sum, weights) in sums.iter_mut().zip(&weights) {
                    let weights = std::mem::transmute::<__m512i, __m512bh>(*weights);
                    *sum = _mm512_dpbf16_ps(*sum, pair, weights);
                }
            }
        }
    }
}
