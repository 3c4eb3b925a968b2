//! Attention against plain f64: prefill in pieces, decode, company; and on bits against itself.

use descant_model::reference::{ops, rotary_angles, rotate};
use descant_release::AttentionConfig;

use super::{Device, Random, close, device, wide};
use crate::driver::Block;
use crate::launch::{AttentionShape, Cache, SHARE};

struct Case {
    config: AttentionConfig,
    shape: AttentionShape,
    rows: usize,
    wide: Vec<u16>,
    norms: [Vec<f32>; 2],
}

impl Case {
    fn new([heads, kv_heads, dim]: [usize; 3], rows: usize) -> Case {
        let rotary_dims = (dim / 4).next_multiple_of(2);
        let config = AttentionConfig {
            heads,
            kv_heads,
            head_dim: dim,
            rotary_dims,
            rope_theta: 1e7,
            mrope_section: [11, 11, 10],
        };
        let width = 2 * (heads + kv_heads) * dim;
        let shape = AttentionShape {
            heads,
            kv_heads,
            dim,
            half: rotary_dims / 2,
            positions: 1024,
            slots: 3,
            wide: width,
        };
        let mut random = Random::new((heads * dim + rows) as u64);
        let wide = random.bf16(rows * width, 2.0);
        Case {
            config,
            shape,
            rows,
            wide,
            norms: [random.f32(dim, 0.3, 1.0), random.f32(dim, 0.3, 1.0)],
        }
    }

    /// Gated rows of the heads, `[rows, heads · dim]`, in f64 but for the rounding of normed and turned heads.
    fn wanted(&self) -> Vec<f64> {
        let AttentionShape {
            heads,
            kv_heads,
            dim,
            wide: width,
            ..
        } = self.shape;
        let round = |x: f64| f64::from(half::bf16::from_f32(x as f32).to_f32());
        let turned = |head: &[f64], norm: &[f32], position: usize| {
            let mut head: Vec<f64> = ops::rms_normalise(head, 1e-6)
                .iter()
                .zip(norm)
                .map(|(x, w)| round(x * f64::from(*w)))
                .collect();
            rotate(
                &mut head[..self.config.rotary_dims],
                &rotary_angles(&self.config, [position; 3]),
            );
            head.iter().map(|x| round(*x)).collect::<Vec<f64>>()
        };
        let rows = wide(&self.wide);
        let rows: Vec<&[f64]> = rows.chunks_exact(width).collect();
        let part = |row: usize, at: usize| &rows[row][at * dim..][..dim];
        let keys: Vec<Vec<f64>> = (0..self.rows * kv_heads)
            .map(|i| {
                turned(
                    part(i / kv_heads, 2 * heads + i % kv_heads),
                    &self.norms[1],
                    i / kv_heads,
                )
            })
            .collect();
        let mut out = Vec::new();
        for row in 0..self.rows {
            for head in 0..heads {
                let query = turned(part(row, 2 * head), &self.norms[0], row);
                let kv_head = head / (heads / kv_heads);
                let mut weights: Vec<f64> = (0..=row)
                    .map(|key| {
                        ops::dot(&query, &keys[key * kv_heads + kv_head]) / (dim as f64).sqrt()
                    })
                    .collect();
                ops::softmax(&mut weights);
                for d in 0..dim {
                    let sum: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(key, w)| w * part(key, 2 * heads + kv_heads + kv_head)[d])
                        .sum();
                    out.push(sum * ops::sigmoid(part(row, 2 * head + 1)[d]));
                }
            }
        }
        out
    }
}

/// A case on a device, in slot 1 of three.
struct Run<'a> {
    device: &'a Device,
    case: &'a Case,
    norms: [Block<f32>; 2],
    turns: Block<[f32; 2]>,
    cache: Cache,
}

impl<'a> Run<'a> {
    fn new(device: &'a Device, case: &'a Case) -> Run<'a> {
        let AttentionShape {
            kv_heads,
            dim,
            positions,
            slots,
            half,
            ..
        } = case.shape;
        let round = |x: f64| half::bf16::from_f32(x as f32).to_f32();
        let turns: Vec<[f32; 2]> = (0..positions)
            .flat_map(|position| rotary_angles(&case.config, [position; 3]))
            .map(|angle| [round(angle.cos()), round(angle.sin())])
            .collect();
        assert_eq!(turns.len(), positions * half);
        let values = slots * kv_heads * positions * dim;
        // Keys that were never written are NaN, values zero, as in a slot.
        Run {
            device,
            case,
            norms: case.norms.each_ref().map(|norm| device.with(norm)),
            turns: device.with(&turns),
            cache: Cache {
                keys: device.poisoned(values),
                values: device.with(&vec![0; values]),
            },
        }
    }

    /// Rows `start..end` in one round, behind `before` rows of another stream's prompt in slot 2 (the case's first rows).
    fn rows(&self, start: usize, end: usize, before: usize, decode: bool) -> Vec<f32> {
        let (shape, kernels) = (&self.case.shape, &self.device.kernels.attention);
        let (width, heads) = (shape.wide, shape.heads * shape.dim);
        let rows = before + end - start;
        let data = [
            &self.case.wide[..before * width],
            &self.case.wide[start * width..end * width],
        ]
        .concat();
        let wide = self.device.with(&data);
        let positions: Vec<i32> = (0..before).chain(start..end).map(|x| x as i32).collect();
        let slots: Vec<i32> = (0..rows)
            .map(|row| if row < before { 2 } else { 1 })
            .collect();
        let (positions, slots) = (self.device.with(&positions), self.device.with(&slots));
        let (queries, out) = (
            self.device.poisoned(rows * heads),
            self.device.poisoned(rows * heads),
        );
        let gpu = &self.device.gpu;
        kernels
            .turn(
                gpu,
                shape,
                &wide,
                (self.norms.each_ref(), 1e-6),
                &self.turns,
                [&positions, &slots],
                (&queries, &self.cache),
            )
            .unwrap();
        let mut tiles = Vec::new();
        let step = kernels.tile_rows(shape);
        for at in (0..before).step_by(step) {
            tiles.push([at as i32, (before - at).min(step) as i32, at as i32, 2]);
        }
        if decode {
            assert_eq!(end - start, 1);
            let streams = self.device.with(&[[before as i32, start as i32, 1, 0]]);
            let shares = shape.positions.div_ceil(SHARE);
            let (marks, sums) = (
                self.device.poisoned(shape.heads * shares),
                self.device.poisoned(heads * shares),
            );
            kernels
                .decode(
                    gpu,
                    shape,
                    (&streams, start),
                    (&queries, &self.cache, &wide),
                    (&marks, &sums),
                    &out,
                    rows,
                )
                .unwrap();
        } else {
            for at in (start..end).step_by(step) {
                tiles.push([
                    (before + at - start) as i32,
                    (end - at).min(step) as i32,
                    at as i32,
                    1,
                ]);
            }
        }
        if !tiles.is_empty() {
            kernels
                .attend(
                    gpu,
                    shape,
                    &self.device.with(&tiles),
                    (&queries, &self.cache, &wide),
                    &out,
                    rows,
                )
                .unwrap();
        }
        self.device.read_bf16(&out)[before * heads..].to_vec()
    }
}

/// Exponentials are rounded to bf16, and so are the sum, the gate and the product: four roundings.
const LIMIT: f64 = 6e-3;

fn prefill(portable: bool) {
    let Some(device) = device(portable) else {
        return;
    };
    for sizes in [
        [4, 2, 256],
        [4, 1, 64],
        [6, 2, 32],
        [5, 1, 16],
        [2, 2, 128],
        [3, 1, 24],
        [8, 4, 256],
    ] {
        for rows in [1, 63, 64, 65, 200, 321] {
            let case = Case::new(sizes, rows);
            let whole = Run::new(&device, &case).rows(0, rows, 0, false);
            if rows != 63 {
                close(
                    &format!("attention {sizes:?} of {rows} rows"),
                    &whole,
                    &case.wanted(),
                    LIMIT,
                );
            }
            for piece in [64, 128] {
                for before in [0, 1, 70] {
                    let run = Run::new(&device, &case);
                    let pieces: Vec<f32> = (0..rows)
                        .step_by(piece)
                        .flat_map(|at| {
                            run.rows(at, (at + piece).min(rows), before.min(rows), false)
                        })
                        .collect();
                    let what = format!(
                        "attention {sizes:?} of {rows} rows in pieces of {piece} behind {before}"
                    );
                    descant_testkit::assert_same_bits(
                        &what,
                        case.shape.heads * case.shape.dim,
                        &pieces,
                        &whole,
                    );
                }
            }
        }
    }
}

#[test]
fn prefill_with_hoppers_kernel() {
    prefill(false);
}

#[test]
fn prefill_with_mma_sync() {
    prefill(true);
}

#[test]
fn decode_attends_to_all_shares() {
    let Some(device) = device(false) else { return };
    for (sizes, rows) in [
        ([4, 1, 256], 600),
        ([6, 2, 32], 300),
        ([5, 1, 16], 70),
        ([24, 2, 64], 257),
    ] {
        let case = Case::new(sizes, rows);
        let run = Run::new(&device, &case);
        run.rows(0, rows, 0, false);
        let width = case.shape.heads * case.shape.dim;
        let wanted = case.wanted();
        for row in [0, 1, 63, rows / 2, rows - 1] {
            let found = run.rows(row, row + 1, 0, true);
            close(
                &format!("decode {sizes:?} at {row}"),
                &found,
                &wanted[row * width..][..width],
                LIMIT,
            );
            let again = run.rows(row, row + 1, 33.min(rows), true);
            descant_testkit::assert_same_bits("decode in company", width, &again, &found);
        }
    }
}
