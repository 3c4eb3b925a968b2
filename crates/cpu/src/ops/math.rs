//! Functions of sixteen f32, from IEEE operations alone, so that every path gives the same bits.
//!
//! Errors, over all finite arguments whose result is a normal number: `exp` 1.1 ulp of f32, `softplus` 2 ulp, `sigmoid` and
//! `silu` 2.5 ulp (1.1 and a rounding of the sum, twice as many ulp across a power of two, and a rounding of the quotient). Where `exp(−x)` overflows, `sigmoid` and `silu` give 0; the true
//! value is below 3e-37 in size.

use crate::arch::Simd;

/// `eˣ`: with n the nearest integer to x / ln 2 and r = x − n ln 2, 2ⁿ times the Taylor series of eʳ to r⁷
/// (|r| ≤ 0.347, so the first term left out is below 5.3e-9 of the value, a twelfth of an ulp).
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // Beyond these the result is infinite or zero whatever the rest.
    let inside = s.min(s.max(x, s.splat(-104.0)), s.splat(89.0));
    let n = s.to_int(s.mul(inside, s.splat(std::f32::consts::LOG2_E)));
    let turns = s.to_float(n);
    let r = s.fnma(turns, s.splat(LN_2_HIGH), inside);
    let r = s.fnma(turns, s.splat(LN_2_LOW), r);
    let mut sum = s.splat(1.0 / 5040.0);
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        sum = s.fma(sum, r, s.splat(term));
    }
    let sum = s.add(s.splat(1.0), s.fma(s.mul(r, r), sum, r));
    // Two factors: 2ⁿ alone may not be an f32 where the result is.
    let first = s.sar::<1>(n);
    let second = s.sub_int(n, first);
    s.if_number(
        x,
        s.mul(s.mul(sum, power_of_two(s, first)), power_of_two(s, second)),
        x,
    )
}

/// `2ⁿ` of a normal result.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, n: S::I) -> S::F {
    s.from_bits(s.shl::<23>(s.add_int(n, s.splat_int(127))))
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// `x / (1 + e⁻ˣ)`.
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// `ln(1 + eˣ)`, and x itself above 20, as torch's `softplus` does.
#[inline(always)]
pub(super) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let twenty = s.splat(20.0);
    // `min` takes NaN for 20; `if_number` brings it back.
    let soft = ln_1p(s, exp(s, s.min(x, twenty)));
    s.if_number(x, s.if_less(twenty, x, x, soft), x)
}

/// `ln(1 + y)` of y ≥ 0: with u = 1 + y rounded and its error e, ln u + e / u.
///
/// u = 2ᵏ m with m in [√½, √2), f = m − 1, q = f / (2 + f); then ln m = 2 artanh q, whose series is taken to q¹¹
/// (|q| ≤ 0.172, so the first term left out is below 1e-10 of the value).
#[inline(always)]
fn ln_1p<S: Simd>(s: S, y: S::F) -> S::F {
    let one = s.splat(1.0);
    let u = s.add(one, y);
    // The rounding error of the sum, exactly: the smaller addend less what of it arrived.
    let error = s.if_less(one, y, s.sub(one, s.sub(u, y)), s.sub(y, s.sub(u, one)));
    let bits = s.to_bits(u);
    let k = s.sar::<23>(s.sub_int(bits, s.splat_int(ROOT_HALF_BITS)));
    let m = s.from_bits(s.sub_int(bits, s.shl::<23>(k)));
    let k = s.to_float(k);
    let f = s.sub(m, one);
    let q = s.div(f, s.add(s.splat(2.0), f));
    let z = s.mul(q, q);
    let mut series = s.splat(2.0 / 11.0);
    for term in [2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0] {
        series = s.fma(series, z, s.splat(term));
    }
    let series = s.mul(series, z);
    // 2 artanh q = f − f²/2 + q (f²/2 + series): f is exact, so the large part of the value is.
    let half_square = s.mul(s.mul(s.splat(0.5), f), f);
    let small = s.fma(q, s.add(half_square, series), s.div(error, u));
    let small = s.sub(s.fma(k, s.splat(LN_2_LOW), small), half_square);
    s.fma(k, s.splat(LN_2_HIGH), s.add(f, small))
}

/// ln 2 to fifteen bits, so that its multiples by an exponent are exact, and so is what they leave of x; and what is missing.
const LN_2_HIGH: f32 = 0.693_145_75;
const LN_2_LOW: f32 = 1.428_606_8e-6;
/// Bits of √½.
const ROOT_HALF_BITS: i32 = 0x3f35_04f3;

#[cfg(test)]
mod tests {
    use super::super::lanes::map;
    use super::*;
    use crate::arch::{Isa, kernel};

    kernel! {
        fn apply<'a>(s, which: usize, x: &'a [f32], out: &'a mut [f32]) {
            match which {
                0 => map(s, x, out, #[inline(always)] |x| exp(s, x)),
                1 => map(s, x, out, #[inline(always)] |x| sigmoid(s, x)),
                2 => map(s, x, out, #[inline(always)] |x| silu(s, x)),
                _ => map(s, x, out, #[inline(always)] |x| softplus(s, x)),
            }
        }
    }

    type Truth = fn(f64) -> f64;

    /// The functions in f64, with the bound of their error in ulp.
    const FUNCTIONS: [(&str, Truth, f64); 4] = [
        ("exp", f64::exp, 1.1),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()), 2.5),
        ("silu", |x| x / (1.0 + (-x).exp()), 2.5),
        (
            "softplus",
            |x| if x > 20.0 { x } else { x.exp().ln_1p() },
            2.0,
        ),
    ];

    /// Every 1009th f32 between −110 and 110, and those near zero.
    fn arguments() -> Vec<f32> {
        let positive = (0..110f32.to_bits()).step_by(1009).map(f32::from_bits);
        positive.flat_map(|x| [x, -x]).collect()
    }

    /// Distance in units of the last place of the true value.
    fn ulps(found: f32, wanted: f64) -> f64 {
        let unit = f64::from((wanted as f32).abs()).log2().floor() - 23.0;
        (f64::from(found) - wanted).abs() / unit.exp2()
    }

    #[test]
    fn functions_are_within_their_ulps() {
        let x = arguments();
        let mut out = vec![0.0; x.len()];
        for (which, (name, truth, bound)) in FUNCTIONS.into_iter().enumerate() {
            apply(Isa::detect(), which, &x, &mut out);
            let mut worst = (0.0, 0.0);
            for (x, found) in x.iter().zip(&out) {
                let wanted = truth(f64::from(*x));
                if wanted.abs() > f64::from(f32::MAX) {
                    assert!(found.is_infinite(), "{name}({x:e}) is {found:e}");
                } else if wanted.abs() < 4e-37 {
                    assert!(
                        f64::from(*found).abs() < 4e-37,
                        "{name}({x:e}) is {found:e}"
                    );
                } else if ulps(*found, wanted) > worst.0 {
                    worst = (ulps(*found, wanted), *x);
                }
            }
            println!("{name}: worst {:.2} ulp at {:e}", worst.0, worst.1);
            assert!(
                worst.0 <= bound,
                "{name} is off by {:.2} ulp at {:e}",
                worst.0,
                worst.1
            );
        }
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        let mut x = arguments();
        x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45]);
        let (mut wanted, mut found) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for which in 0..FUNCTIONS.len() {
            apply(Isa::all()[0], which, &x, &mut wanted);
            for isa in Isa::all() {
                apply(isa, which, &x, &mut found);
                for ((x, found), wanted) in x.iter().zip(&found).zip(&wanted) {
                    let same =
                        found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
                    assert!(same, "{} {x:e}: {found:e}, not {wanted:e}", isa.name());
                }
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for isa in Isa::all() {
            for which in 0..FUNCTIONS.len() {
                let mut out = [0.0];
                apply(isa, which, &[f32::NAN], &mut out);
                assert!(out[0].is_nan(), "{} {which}", isa.name());
            }
        }
    }
}
