//! Matrix products: every kernel against f64, and on bits against one another.

use super::{Device, ROUNDED, Random, close, device, wide};
use crate::driver::Block;
use crate::launch::{Kind, Product};

struct Case {
    rows: usize,
    outputs: usize,
    inputs: usize,
    x: Vec<u16>,
    weight: Vec<u16>,
}

impl Case {
    fn new(rows: usize, outputs: usize, inputs: usize) -> Case {
        let mut random = Random::new((rows * 7 + outputs * 3 + inputs) as u64);
        let (x, weight) = (
            random.bf16(rows * inputs, 1.0),
            random.bf16(outputs * inputs, 1.0 / (inputs as f32).sqrt()),
        );
        Case {
            rows,
            outputs,
            inputs,
            x,
            weight,
        }
    }

    /// Row `m` of the product, in f64.
    fn row(&self, m: usize) -> Vec<f64> {
        let x = wide(&self.x[m * self.inputs..][..self.inputs]);
        let rows = self.weight.chunks_exact(self.inputs);
        rows.map(|row| {
            row.iter()
                .zip(&x)
                .map(|(w, x)| f64::from(super::widen(*w)) * x)
                .sum()
        })
        .collect()
    }

    /// Some rows: the first, the last, and a few between.
    fn samples(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..6).map(|i| i * (self.rows - 1) / 5).collect();
        rows.dedup();
        rows
    }
}

/// SwiGLU of a row of gate and up in turns of 8.
fn swiglu(row: &[f64]) -> Vec<f64> {
    let pairs = row
        .chunks_exact(16)
        .flat_map(|turn| (0..8).map(move |i| (turn[i], turn[i + 8])));
    pairs
        .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
        .collect()
}

/// Runs a product into a poisoned block with a guard behind it, and gives its bits.
fn run(device: &Device, case: &Case, swiglu: bool, launch: impl FnOnce(Product<'_>)) -> Vec<u16> {
    let columns = if swiglu {
        case.outputs / 2
    } else {
        case.outputs
    };
    let (x, weight) = (device.with(&case.x), device.with(&case.weight));
    let out: Block<u16> = device.poisoned(case.rows * columns + 4096);
    launch(Product {
        x: &x,
        weight: &weight,
        out: &out,
        rows: case.rows,
        inputs: case.inputs,
        outputs: case.outputs,
        swiglu,
    });
    let mut bits = device.read(&out);
    let guard = bits.split_off(case.rows * columns);
    assert!(
        guard.iter().all(|bits| *bits == 0xFFFF),
        "the guard behind the product is torn"
    );
    bits
}

const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1104, 520),
    (3, 64, 8),
    (17, 4096, 1024),
    (64, 368, 96),
    (65, 1104, 520),
    (128, 512, 4096),
    (333, 1104, 520),
    (1000, 768, 512),
    (1024, 2048, 1024),
];

#[test]
fn every_kernel_multiplies() {
    let Some(device) = device(false) else { return };
    for (rows, outputs, inputs) in SHAPES {
        let case = Case::new(rows, outputs, inputs);
        let portable = run(&device, &case, false, |product| {
            device
                .kernels
                .gemm
                .run_portable(&device.gpu, product)
                .unwrap()
        });
        let columns = case.outputs;
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        for m in case.samples() {
            found.extend(
                portable[m * columns..][..columns]
                    .iter()
                    .map(|bits| super::widen(*bits)),
            );
            wanted.extend(case.row(m));
        }
        close(
            &format!("mma.sync {rows}x{outputs}x{inputs}"),
            &found,
            &wanted,
            ROUNDED,
        );
        for (index, name) in device.kernels.gemm.names(Kind::Plain) {
            let bits = run(&device, &case, false, |product| {
                device
                    .kernels
                    .gemm
                    .run_tile(&device.gpu, product, index)
                    .unwrap()
            });
            let differ = bits.iter().zip(&portable).filter(|(a, b)| a != b).count();
            assert_eq!(
                differ, 0,
                "{name} {rows}x{outputs}x{inputs}: values that differ from mma.sync's"
            );
        }
        println!(
            "{} kernels of {rows}x{outputs}x{inputs} give the same bits",
            device.kernels.gemm.names(Kind::Plain).len()
        );
    }
}

#[test]
fn every_kernel_of_swiglu() {
    let Some(device) = device(false) else { return };
    for (rows, outputs, inputs) in SHAPES {
        let case = Case::new(rows, outputs / 16 * 16, inputs);
        let columns = case.outputs / 2;
        let raw = run(&device, &case, false, |product| {
            device
                .kernels
                .gemm
                .run_portable(&device.gpu, product)
                .unwrap()
        });
        let (raw, apart) = (device.with(&raw), device.poisoned(rows * columns));
        device
            .kernels
            .rows
            .swiglu(&device.gpu, &raw, &apart, rows, columns)
            .unwrap();
        let apart = device.read(&apart);
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        for m in case.samples() {
            found.extend(
                apart[m * columns..][..columns]
                    .iter()
                    .map(|bits| super::widen(*bits)),
            );
            wanted.extend(swiglu(&case.row(m)));
        }
        // Gate, up, the activation and the product are rounded: four roundings.
        close(
            &format!("SwiGLU {rows}x{outputs}x{inputs}"),
            &found,
            &wanted,
            2.0 * ROUNDED,
        );
        for (index, name) in device.kernels.gemm.names(Kind::Swiglu) {
            let bits = run(&device, &case, true, |product| {
                device
                    .kernels
                    .gemm
                    .run_tile(&device.gpu, product, index)
                    .unwrap()
            });
            let differ = bits.iter().zip(&apart).filter(|(a, b)| a != b).count();
            assert_eq!(
                differ, 0,
                "{name} {rows}x{outputs}x{inputs}: values that differ from a pass of its own"
            );
        }
    }
}

#[test]
fn every_kernel_that_adds() {
    let Some(device) = device(false) else { return };
    for (rows, outputs, inputs) in SHAPES {
        let case = Case::new(rows, outputs, inputs);
        let gemm = &device.kernels.gemm;
        let product = run(&device, &case, false, |product| {
            gemm.run_portable(&device.gpu, product).unwrap()
        });
        let before = Random::new(rows as u64).bf16(rows * outputs, 3.0);
        let sums: Vec<u16> = before
            .iter()
            .zip(&product)
            .map(|(a, b)| super::narrow(super::widen(*a) + super::widen(*b)))
            .collect();
        let (x, weight) = (device.with(&case.x), device.with(&case.weight));
        for (index, name) in gemm.names(Kind::Add) {
            let guarded = [&before[..], &[0xFFFF; 4096]].concat();
            let out = device.with(&guarded);
            let product = Product {
                x: &x,
                weight: &weight,
                out: &out,
                rows,
                inputs,
                outputs,
                swiglu: false,
            };
            gemm.run_tile(&device.gpu, product, index).unwrap();
            let mut found = device.read(&out);
            let guard = found.split_off(rows * outputs);
            assert!(
                guard.iter().all(|bits| *bits == 0xFFFF),
                "{name}: the guard behind the sum is torn"
            );
            let differ = found.iter().zip(&sums).filter(|(a, b)| a != b).count();
            assert_eq!(
                differ, 0,
                "{name} {rows}x{outputs}x{inputs}: values that differ from a sum of its own"
            );
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_company() {
    let Some(device) = device(false) else { return };
    let case = Case::new(4096, 512, 1024);
    let whole = run(&device, &case, false, |product| {
        device.kernels.gemm.run(&device.gpu, product).unwrap()
    });
    for rows in [1, 2, 17, 64, 100, 256, 1000, 1024] {
        for first in [0, 1777] {
            let part = Case {
                rows,
                x: case.x[first * 1024..][..rows * 1024].to_vec(),
                weight: case.weight.clone(),
                ..case
            };
            let bits = run(&device, &part, false, |product| {
                device.kernels.gemm.run(&device.gpu, product).unwrap()
            });
            assert!(
                bits == whole[first * 512..][..rows * 512],
                "{rows} rows from {first} differ from those of 4096"
            );
        }
    }
}
