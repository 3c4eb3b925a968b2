//! Sixteen f32 at a time: the operations that every instruction set gives, with the same bits.
//!
//! All of them are IEEE operations rounded to nearest even (fused multiply-add, division included), bit
//! operations, or comparisons with a stated answer for NaN. Sums across the lanes have one order, [`Simd::sum`].

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Vectors of sixteen f32 and of sixteen i32.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixteen-wide panels beside which a tile of so many rows keeps its sums in registers; 0 for no such tile.
    const PANELS: [usize; 7];
    /// The same where the right operand is pairs, whose widening takes registers too.
    const PAIR_PANELS: [usize; 7];

    /// Asks for the cache line of a place; any place will do.
    #[inline(always)]
    fn prefetch(_: *const f32) {}

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;

    /// Sixteen values from memory.
    ///
    /// # Safety
    /// `from` is valid for reading sixteen f32, aligned to nothing.
    unsafe fn load_raw(self, from: *const f32) -> Self::F;

    /// Sixteen values to memory.
    ///
    /// # Safety
    /// `to` is valid for writing sixteen f32, aligned to nothing.
    unsafe fn store_raw(self, to: *mut f32, x: Self::F);

    /// Sixteen pairs of bf16, widened: the low halves of sixteen u32 (`.0`) and the high ones (`.1`).
    ///
    /// # Safety
    /// `from` is valid for reading sixteen u32, aligned to nothing.
    unsafe fn load_pairs_raw(self, from: *const u32) -> (Self::F, Self::F);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a − b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c − a · b`, rounded once.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a` where `a > b`, else `b` (also where one of them is NaN).
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a < b`, else `b` (also where one of them is NaN).
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `yes` where `a < b`, else `no` (also where one of them is NaN).
    fn if_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `no` where `a` is NaN, else `yes`.
    fn if_number(self, a: Self::F, yes: Self::F, no: Self::F) -> Self::F;

    /// The nearest integer, ties to even. The lanes must lie within i32.
    fn to_int(self, a: Self::F) -> Self::I;
    /// The nearest f32.
    fn to_float(self, a: Self::I) -> Self::F;
    /// The bits.
    fn to_bits(self, a: Self::F) -> Self::I;
    /// The value of the bits.
    #[allow(
        clippy::wrong_self_convention,
        reason = "`self` is the instruction set, not the value"
    )]
    fn from_bits(self, a: Self::I) -> Self::F;
    /// All lanes `x`.
    fn splat_int(self, x: i32) -> Self::I;
    /// `a + b`, wrapping.
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a − b`, wrapping.
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a & b`.
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << BITS`.
    fn shl<const BITS: i32>(self, a: Self::I) -> Self::I;
    /// `a >> BITS`, the sign moving in.
    fn sar<const BITS: i32>(self, a: Self::I) -> Self::I;

    /// Sixteen values of a slice.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::F {
        let from: &[f32; LANES] = from[..LANES].try_into().expect("sixteen were taken");
        // SAFETY: an array of sixteen f32 is valid for reading sixteen f32.
        unsafe { self.load_raw(from.as_ptr()) }
    }

    /// Sixteen values to the front of a slice.
    ///
    /// # Panics
    /// If there are fewer places.
    #[inline(always)]
    fn store(self, to: &mut [f32], x: Self::F) {
        let to: &mut [f32; LANES] = (&mut to[..LANES]).try_into().expect("sixteen were taken");
        // SAFETY: an array of sixteen f32 is valid for writing sixteen f32.
        unsafe { self.store_raw(to.as_mut_ptr(), x) }
    }

    /// The values of a slice of at most sixteen; the other lanes are `fill`.
    #[inline(always)]
    fn load_part(self, from: &[f32], fill: f32) -> Self::F {
        let mut all = [fill; LANES];
        all[..from.len()].copy_from_slice(from);
        self.load(&all)
    }

    /// The first lanes to a slice of at most sixteen.
    #[inline(always)]
    fn store_part(self, to: &mut [f32], x: Self::F) {
        let all = self.to_array(x);
        to.copy_from_slice(&all[..to.len()]);
    }

    /// The lanes.
    #[inline(always)]
    fn to_array(self, x: Self::F) -> [f32; LANES] {
        let mut all = [0.0; LANES];
        self.store(&mut all, x);
        all
    }

    /// The sum of the lanes: lane i and lane i + 8, then i and i + 4, i + 2, i + 1.
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        fold(self.to_array(x), |a, b| a + b)
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        fold(self.to_array(x), |a, b| if a > b { a } else { b })
    }

    /// `−a`.
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.sub(self.splat(-0.0), a)
    }

    /// The nearest bf16, ties to even, as an f32; NaN stays NaN.
    #[inline(always)]
    fn round_bf16(self, x: Self::F) -> Self::F {
        let bits = self.to_bits(x);
        let odd = self.and_int(self.sar::<16>(bits), self.splat_int(1));
        let up = self.add_int(bits, self.add_int(odd, self.splat_int(0x7fff)));
        let kept = self.and_int(up, self.splat_int(-0x1_0000));
        self.if_number(x, self.from_bits(kept), self.splat(f32::NAN))
    }
}

/// Folds the lanes pairwise, halves on each other.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}
