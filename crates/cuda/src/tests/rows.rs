//! Whole rows.

use descant_model::reference::ops::{rms_norm, rms_normalise, silu};

use super::{ROUNDED, Random, close, device, wide};

#[test]
fn norms_add_and_normalise() {
    let Some(device) = device(false) else { return };
    for (rows, width) in [(1, 48), (5, 96), (3, 4096), (7, 5120), (2, 8192)] {
        let mut random = Random::new(width as u64);
        let (h, add) = (
            random.bf16(rows * width, 2.0),
            random.bf16(rows * width, 0.5),
        );
        let w = random.f32(width, 0.3, 0.0);
        let weight = device.with(&w.iter().map(|w| 1.0 + w).collect::<Vec<f32>>());
        let w: Vec<f64> = w.iter().map(|w| f64::from(1.0 + w) - 1.0).collect();
        let norm = |x: &[f64]| -> Vec<f64> {
            x.chunks_exact(width)
                .flat_map(|row| rms_norm(row, &w, 1e-6))
                .collect()
        };

        let (residual, out) = (device.with(&h), device.poisoned(rows * width));
        device
            .kernels
            .rows
            .norm(&device.gpu, (&residual, None), (&weight, 1e-6), &out, rows)
            .unwrap();
        close(
            &format!("norm {rows}x{width}"),
            &device.read_bf16(&out),
            &norm(&wide(&h)),
            ROUNDED,
        );

        let more = device.with(&add);
        device
            .kernels
            .rows
            .norm(
                &device.gpu,
                (&residual, Some(&more)),
                (&weight, 1e-6),
                &out,
                rows,
            )
            .unwrap();
        let sum = device.read_bf16(&residual);
        for ((h, add), sum) in wide(&h).iter().zip(wide(&add)).zip(&sum) {
            assert_eq!(
                half::bf16::from_f32((h + add) as f32).to_f32().to_bits(),
                sum.to_bits(),
                "the residual sum is rounded once"
            );
        }
        let sum: Vec<f64> = sum.iter().map(|x| f64::from(*x)).collect();
        close(
            &format!("sum and norm {rows}x{width}"),
            &device.read_bf16(&out),
            &norm(&sum),
            ROUNDED,
        );
    }
}

#[test]
fn heads_are_normed_and_gated() {
    let Some(device) = device(false) else { return };
    for (rows, heads, dim) in [(3, 4, 16), (5, 6, 24), (9, 32, 128), (2, 3, 256)] {
        let mut random = Random::new(dim as u64);
        let (z_width, z_at) = (heads * dim + 40, 8);
        let (x, z) = (
            random.bf16(rows * heads * dim, 0.7),
            random.bf16(rows * z_width, 3.0),
        );
        let weight = random.f32(dim, 0.5, 1.0);
        let (block, z_block, weights) = (device.with(&x), device.with(&z), device.with(&weight));
        device
            .kernels
            .rows
            .gated_norm(
                &device.gpu,
                &block,
                (&z_block, z_width, z_at),
                (&weights, 1e-6),
                (rows, heads),
            )
            .unwrap();
        let (x, z) = (wide(&x), wide(&z));
        let mut wanted = Vec::new();
        for (cell, x) in x.chunks_exact(dim).enumerate() {
            let z = &z[cell / heads * z_width + z_at + cell % heads * dim..][..dim];
            wanted.extend(
                rms_normalise(x, 1e-6)
                    .iter()
                    .enumerate()
                    .map(|(d, x)| x * f64::from(weight[d]) * silu(z[d])),
            );
        }
        close(
            &format!("gated norm {rows}x{heads}x{dim}"),
            &device.read_bf16(&block),
            &wanted,
            2.0 * ROUNDED,
        );
    }
}

#[test]
fn rows_are_gathered() {
    let Some(device) = device(false) else { return };
    let (width, ids) = (48, [3, 0, 3, 6]);
    let table = Random::new(1).bf16(7 * width, 1.0);
    let (block, list, out) = (
        device.with(&table),
        device.with(&ids),
        device.poisoned(4 * width),
    );
    device
        .kernels
        .rows
        .gather(&device.gpu, &block, &list, &out, width)
        .unwrap();
    let wanted: Vec<u16> = ids
        .iter()
        .flat_map(|id| table[*id as usize * width..][..width].to_vec())
        .collect();
    assert_eq!(device.read(&out), wanted);
}

#[test]
fn random_weights_are_normal() {
    let Some(device) = device(false) else { return };
    let block = device.poisoned::<f32>(100_000);
    device
        .kernels
        .rows
        .fill_f32(&device.gpu, &block, 7, (0.5, 2.0))
        .unwrap();
    let values = device.read(&block);
    let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e5;
    let variance = values
        .iter()
        .map(|x| (f64::from(*x) - mean).powi(2))
        .sum::<f64>()
        / 1e5;
    // Six standard errors.
    assert!(
        (mean - 2.0).abs() < 6.0 * 0.5 / 1e5_f64.sqrt(),
        "mean {mean}"
    );
    assert!(
        (variance - 0.25).abs() < 6.0 * 0.25 * (2.0 / 1e5_f64).sqrt(),
        "variance {variance}"
    );
}
