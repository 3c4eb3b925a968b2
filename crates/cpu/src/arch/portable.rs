//! The path for every machine: arrays of sixteen, one IEEE operation a lane.
//!
//! Where the compiler targets NEON (or any other vectors with fused multiply-add), it makes vectors of these loops. On
//! an x86 machine without FMA, `mul_add` is a call and the path is slow, with the same bits.

use super::simd::{LANES, Simd};

/// No particular instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable;

/// Applies a function lane by lane.
#[inline(always)]
fn map<A: Copy, B: Copy, T>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> T) -> [T; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    // As for NEON: thirty-two registers of four lanes.
    const PANELS: [usize; 7] = [0, 4, 3, 2, 1, 1, 1];
    const PAIR_PANELS: [usize; 7] = [0, 4, 2, 1, 1, 0, 0];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load_raw(self, from: *const f32) -> Self::F {
        // SAFETY: the caller gives sixteen readable f32; the read asks for no alignment.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_raw(self, to: *mut f32, x: Self::F) {
        // SAFETY: the caller gives sixteen writable f32; the write asks for no alignment.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn load_pairs_raw(self, from: *const u32) -> (Self::F, Self::F) {
        // SAFETY: the caller gives sixteen readable u32; the read asks for no alignment.
        let pairs = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        (
            pairs.map(|pair| f32::from_bits(pair << 16)),
            pairs.map(|pair| f32::from_bits(pair & 0xffff_0000)),
        )
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn if_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn if_number(self, a: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i].is_nan() { no[i] } else { yes[i] })
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the caller keeps the lanes within i32"
    )]
    fn to_int(self, a: Self::F) -> Self::I {
        a.map(|x| x.round_ties_even() as i32)
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        a.map(|x| x as f32)
    }

    #[inline(always)]
    fn to_bits(self, a: Self::F) -> Self::I {
        a.map(|x| x.to_bits().cast_signed())
    }

    #[inline(always)]
    fn from_bits(self, a: Self::I) -> Self::F {
        a.map(|x| f32::from_bits(x.cast_unsigned()))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, i32::wrapping_sub)
    }

    #[inline(always)]
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn shl<const BITS: i32>(self, a: Self::I) -> Self::I {
        a.map(|x| x << BITS)
    }

    #[inline(always)]
    fn sar<const BITS: i32>(self, a: Self::I) -> Self::I {
        a.map(|x| x >> BITS)
    }
}
