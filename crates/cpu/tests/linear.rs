//! Linear maps on every path of this machine against a chain of `mul_add`, on bits, and against f64.
#![allow(
    clippy::float_cmp,
    clippy::unwrap_used,
    reason = "sums of small whole numbers are exact; what cannot be set up fails its test"
)]

mod common;

use common::{Owned, Seeded, assert_same_bits, bf16, pools};
use descant_cpu::{Linear, Pool};

/// Outputs, inputs: odd, smaller than a panel, not whole panels, longer than a stretch.
const SHAPES: [(usize, usize); 7] = [
    (1, 1),
    (3, 5),
    (16, 64),
    (37, 259),
    (64, 512),
    (70, 2049),
    (130, 33),
];
/// Few rows and many, at the borders of tiles and groups.
const ROWS: [usize; 10] = [1, 2, 3, 5, 7, 8, 12, 13, 65, 251];

struct Case {
    x: Vec<f32>,
    w: Vec<f32>,
    outputs: usize,
    inputs: usize,
}

impl Case {
    fn new(seed: u64, (outputs, inputs): (usize, usize)) -> Case {
        let mut seeded = Seeded::new(seed);
        let w = seeded
            .units(outputs * inputs)
            .into_iter()
            .map(bf16)
            .collect();
        Case {
            x: seeded.units(251 * inputs),
            w,
            outputs,
            inputs,
        }
    }

    /// The chain in the order of k, of a row and an output.
    fn rising(&self, row: usize, output: usize) -> f32 {
        let (x, w) = (
            &self.x[row * self.inputs..],
            &self.w[output * self.inputs..],
        );
        (0..self.inputs).fold(0.0, |sum, k| x[k].mul_add(w[k], sum))
    }

    /// The chain of rounded activations, odd term of each pair first.
    fn odd_first(&self, row: usize, output: usize) -> f32 {
        let (x, w) = (
            &self.x[row * self.inputs..],
            &self.w[output * self.inputs..],
        );
        let term = |k: usize, sum: f32| {
            if k < self.inputs {
                bf16(x[k]).mul_add(w[k], sum)
            } else {
                sum
            }
        };
        (0..self.inputs)
            .step_by(2)
            .fold(0.0, |sum, k| term(k, term(k + 1, sum)))
    }

    fn chains(&self, rows: usize, chain: impl Fn(&Case, usize, usize) -> f32) -> Vec<f32> {
        (0..rows * self.outputs)
            .map(|i| chain(self, i / self.outputs, i % self.outputs))
            .collect()
    }
}

/// Runs on a buffer with a guard behind it, which must stay.
fn run(rows: usize, outputs: usize, forward: impl Fn(&mut [f32])) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * outputs + 16];
    out[rows * outputs..].fill(7.0);
    forward(&mut out[..rows * outputs]);
    assert!(
        out.drain(rows * outputs..).all(|guard| guard == 7.0),
        "the guard was overwritten"
    );
    out
}

#[test]
fn every_path_gives_the_bits_of_a_chain() {
    for threads in [1, 3] {
        for pool in pools(threads) {
            for (i, shape) in SHAPES.into_iter().enumerate() {
                let case = Case::new(i as u64, shape);
                let weights = Owned::bf16(&[case.outputs, case.inputs], &case.w);
                let linear = Linear::pack(&pool, &[weights.tensor()]).unwrap();
                for rows in ROWS {
                    let what = format!("{pool:?} {shape:?} rows {rows}");
                    let x = &case.x[..rows * case.inputs];
                    let out = run(rows, case.outputs, |out| {
                        linear.forward_f32(&pool, x, rows, out)
                    });
                    assert_same_bits(&out, &case.chains(rows, Case::rising), &what);
                    let out = run(rows, case.outputs, |out| {
                        linear.forward_bf16(&pool, x, rows, out)
                    });
                    assert_same_bits(
                        &out,
                        &case.chains(rows, Case::odd_first),
                        &format!("{what} bf16"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_at_any_place() {
    let case = Case::new(9, (70, 2049));
    let weights = Owned::bf16(&[70, 2049], &case.w);
    for pool in pools(2) {
        let linear = Linear::pack(&pool, &[weights.tensor()]).unwrap();
        let whole = run(251, 70, |out| linear.forward_f32(&pool, &case.x, 251, out));
        for (start, rows) in [(250, 1), (3, 4), (1, 13), (100, 151)] {
            let x = &case.x[start * 2049..(start + rows) * 2049];
            let out = run(rows, 70, |out| linear.forward_f32(&pool, x, rows, out));
            assert_same_bits(
                &out,
                &whole[start * 70..(start + rows) * 70],
                &format!("{pool:?} {start} {rows}"),
            );
        }
    }
}

#[test]
fn stacked_tensors_are_one_map() {
    let (a, b) = (Case::new(1, (37, 65)), Case::new(2, (5, 65)));
    let (wa, wb) = (Owned::bf16(&[37, 65], &a.w), Owned::bf16(&[5, 65], &b.w));
    let pool = Pool::new(2).unwrap();
    let linear = Linear::pack(&pool, &[wa.tensor(), wb.tensor()]).unwrap();
    assert_eq!((linear.outputs(), linear.inputs()), (42, 65));
    let out = run(3, 42, |out| {
        linear.forward_f32(&pool, &a.x[..3 * 65], 3, out)
    });
    for (row, out) in out.chunks(42).enumerate() {
        let wanted: Vec<f32> = (0..37).map(|n| a.rising(row, n)).collect();
        assert_same_bits(&out[..37], &wanted, "first");
        let b = Case {
            x: a.x.clone(),
            w: b.w.clone(),
            ..b
        };
        let wanted: Vec<f32> = (0..5).map(|n| b.rising(row, n)).collect();
        assert_same_bits(&out[37..], &wanted, "second");
    }
}

#[test]
fn weights_that_are_no_bf16_stay_f32() {
    let mut seeded = Seeded::new(5);
    let (outputs, inputs, rows) = (37, 67, 15);
    let w = seeded.units(outputs * inputs);
    let f16s: Vec<f32> = w.iter().map(|x| half::f16::from_f32(*x).to_f32()).collect();
    let bias = seeded.units(outputs);
    let case = Case {
        x: seeded.units(rows * inputs),
        w,
        outputs,
        inputs,
    };
    for pool in pools(2) {
        for (w, owned) in [
            (&case.w, Owned::f32(&[37, 67], &case.w)),
            (&f16s, Owned::f16(&[37, 67], &f16s)),
        ] {
            let stored_bias = Owned::f32(&[37], &bias);
            let linear =
                Linear::pack_with_bias(&pool, &[owned.tensor()], &stored_bias.tensor()).unwrap();
            for rows in [1, 6, 15] {
                let out = run(rows, outputs, |out| {
                    linear.forward_f32(&pool, &case.x[..rows * inputs], rows, out)
                });
                let case = Case {
                    x: case.x.clone(),
                    w: w.clone(),
                    outputs,
                    inputs,
                };
                let wanted: Vec<f32> = case
                    .chains(rows, Case::rising)
                    .iter()
                    .zip(bias.iter().cycle())
                    .map(|(sum, bias)| sum + bias)
                    .collect();
                assert_same_bits(&out, &wanted, &format!("{pool:?} rows {rows}"));
            }
        }
    }
}

#[test]
fn tiny_and_huge_activations_make_no_subnormal_sums() {
    // Products of 2^-62 and 2^-49 are the smallest that may occur; smaller operands are zero.
    let (tiny, least) = (f32::powi(2.0, -63), f32::powi(2.0, -62));
    let weights = [f32::powi(2.0, -49), f32::powi(2.0, -50), 1.0, -1.0];
    let owned = Owned::bf16(&[1, 4], &weights);
    for pool in pools(1) {
        let linear = Linear::pack(&pool, &[owned.tensor()]).unwrap();
        let mut out = [f32::NAN];
        for (x, wanted) in [
            ([least, 0.0, 0.0, 0.0], f32::powi(2.0, -111)),
            ([0.0, 0.0, tiny, 0.0], 0.0),
            ([0.0, 0.0, 1e-40, -1e-40], 0.0),
            ([0.0, 0.0, f32::INFINITY, 1.0], f32::INFINITY),
        ] {
            linear.forward_bf16(&pool, &x, 1, &mut out);
            assert_same_bits(&out, &[wanted], &format!("{pool:?} {x:?}"));
        }
        linear.forward_bf16(&pool, &[0.0, 0.0, f32::NAN, 1.0], 1, &mut out);
        assert!(out[0].is_nan());
    }
}

#[test]
fn sums_are_near_the_exact_ones() {
    let case = Case::new(3, (130, 2049));
    let owned = Owned::bf16(&[130, 2049], &case.w);
    let pool = Pool::new(2).unwrap();
    let linear = Linear::pack(&pool, &[owned.tensor()]).unwrap();
    let out = run(65, 130, |out| {
        linear.forward_f32(&pool, &case.x[..65 * 2049], 65, out)
    });
    let mut worst: f64 = 0.0;
    for (i, found) in out.iter().enumerate() {
        let (x, w) = (&case.x[i / 130 * 2049..], &case.w[i % 130 * 2049..]);
        let terms = (0..2049).map(|k| f64::from(x[k]) * f64::from(w[k]));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| {
            (sum + term, size + term.abs())
        });
        worst = worst.max((sum - f64::from(*found)).abs() / size);
    }
    println!("worst error {worst:.1e} of the sum of sizes");
    // 2049 roundings, each by at most 2^-24 of the partial sum: 1.2e-4 of the sum of sizes.
    assert!(worst <= 2049.0 * f64::powi(2.0, -24));
    // A chain that lost a term would be off by about 1/2049 of the sum of sizes.
    assert!(worst < 1e-5);
}
