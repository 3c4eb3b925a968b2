//! Linear maps by number of rows: `cargo bench -p descant-cpu --bench gemm [-- THREADS]`.
//!
//! A line reads: operation, shape, path and threads, median (min–max, n), GFLOP/s, share of the peak measured in the same
//! run, GB/s of weights, hash of the result. The small size of the ordinary tests checks one output against a chain.
#![allow(clippy::print_stdout, reason = "a bench reports on stdout")]

#[path = "common/mod.rs"]
mod common;

use common::{Seeded, hash, machine_peak, measure};
use descant_cpu::Linear;
use descant_release::{Dtype, Tensor};

fn main() {
    let options = common::Options::from_args();
    let pool = options.pool();
    let (outputs, inputs) = if options.small {
        (96, 130)
    } else {
        (4096, 4096)
    };
    let rows_max = if options.small { 20 } else { 2048 };
    let mut seeded = Seeded::new(1);
    let bytes: Vec<u8> = (0..outputs * inputs)
        .flat_map(|_| half::bf16::from_f32(seeded.unit()).to_le_bytes())
        .collect();
    let shape = [outputs, inputs];
    let tensor = Tensor {
        name: "weights",
        dtype: Dtype::BF16,
        shape: &shape,
        bytes: &bytes,
    };
    let linear = Linear::pack(&pool, &[tensor]).expect("memory for the weights");
    let x: Vec<f32> = (0..rows_max * inputs)
        .map(|_| half::bf16::from_f32(seeded.unit()).to_f32())
        .collect();
    let peak = machine_peak(&pool, options.small);
    println!(
        "peak {peak}, {} {} threads",
        pool.isa().name(),
        pool.threads()
    );
    for rows in [1, 8, 64, 512, 2048]
        .into_iter()
        .filter(|rows| *rows <= rows_max)
    {
        for (name, bf16) in [("f32", false), ("bf16", true)] {
            let mut out = vec![f32::NAN; rows * outputs];
            let times = measure(options.small, || {
                let x = &x[..rows * inputs];
                if bf16 {
                    linear.forward_bf16(&pool, x, rows, &mut out)
                } else {
                    linear.forward_f32(&pool, x, rows, &mut out)
                }
            });
            check(&linear, &x, &bytes, &out);
            let flop = 2.0 * (rows * outputs * inputs) as f64;
            let gflops = flop / times.median / 1e9;
            let bandwidth = (outputs * inputs * 2) as f64 / times.median / 1e9;
            println!(
                "linear_{name} [{rows}, {inputs}]x[{outputs}, {inputs}] {}x{} {times} {gflops:.1} GFLOP/s {:.0}% of peak \
                 {bandwidth:.1} GB/s {:016x}",
                pool.isa().name(),
                pool.threads(),
                100.0 * gflops / if bf16 { peak.bf16 } else { peak.f32 },
                hash(&out),
            );
        }
    }
}

/// Checks the first output of the first row against its exact sum.
fn check(linear: &Linear, x: &[f32], weights: &[u8], out: &[f32]) {
    let exact: f64 = weights
        .chunks(2)
        .zip(&x[..linear.inputs()])
        .map(|(w, x)| half::bf16::from_le_bytes([w[0], w[1]]).to_f64() * f64::from(*x))
        .sum();
    assert!(
        (exact - f64::from(out[0])).abs() < 1e-2,
        "{exact} {}",
        out[0]
    );
}
