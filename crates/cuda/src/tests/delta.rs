//! The delta net against plain f64: convolution, chunks, the recurrence.

use descant_model::reference::{DeltaStep, convolve};

use super::{Device, ROUNDED, Random, close, device, wide, widen};
use crate::driver::Block;
use crate::launch::{DeltaSizes, Recurrence, SQUARES, SUMS};

struct Case {
    sizes: DeltaSizes,
    channels: usize,
    width: usize,
    /// `[rows, width]`: channels, z, b, a.
    wide: Vec<u16>,
    /// `[channels, 4]`.
    taps: Vec<f32>,
    rates: Vec<f32>,
    biases: Vec<f32>,
}

impl Case {
    fn new([key_heads, value_heads, key, value]: [usize; 4], rows: usize) -> Case {
        let channels = 2 * key_heads * key + value_heads * value;
        let width = (channels + value_heads * value + 2 * value_heads).next_multiple_of(8);
        let mut random = Random::new((channels + rows) as u64);
        let int = |x: usize| x as i32;
        let sizes = DeltaSizes {
            key_heads: int(key_heads),
            value_heads: int(value_heads),
            key: int(key),
            value: int(value),
            channels: int(channels),
            wide: int(width),
        };
        let wide = random.bf16(rows * width, 2.0);
        let taps = random
            .f32(4 * channels, 0.6, 0.1)
            .into_iter()
            .map(|x| widen(super::narrow(x)))
            .collect();
        // From states that stay to states that are forgotten within a few rows.
        let rates = (0..value_heads)
            .map(|head| -0.003 * 3.0_f32.powi(head as i32 % 6))
            .collect();
        Case {
            sizes,
            channels,
            width,
            wide,
            taps,
            rates,
            biases: random.f32(value_heads, 0.5, -0.5),
        }
    }

    fn outputs(&self) -> usize {
        (self.sizes.value_heads * self.sizes.value) as usize
    }

    /// Convolved rows before q and k are brought to unit length.
    fn convolved(&self) -> Vec<f64> {
        let x: Vec<f64> = wide(&self.wide)
            .chunks_exact(self.width)
            .flat_map(|row| row[..self.channels].to_vec())
            .collect();
        let taps: Vec<f64> = self.taps.iter().map(|x| f64::from(*x)).collect();
        convolve(&x, &taps, self.channels)
    }

    /// The rule over rows of `mixed`, which the device made: outputs and last states, `[value_heads, V, K]`.
    fn rule(&self, mixed: &[u16]) -> (Vec<f64>, Vec<f64>) {
        let [key_heads, value_heads, key, value] = [
            self.sizes.key_heads,
            self.sizes.value_heads,
            self.sizes.key,
            self.sizes.value,
        ]
        .map(|x| x as usize);
        let mixed = wide(mixed);
        let mut states = vec![vec![0.0; key * value]; value_heads];
        let mut out = Vec::new();
        for (row, mixed) in mixed.chunks_exact(self.channels).enumerate() {
            let gates = &self.wide[row * self.width + self.channels + self.outputs()..];
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (value_heads / key_heads) * key;
                let beta = 1.0 / (1.0 + (-f64::from(widen(gates[head]))).exp());
                let a = f64::from(widen(gates[value_heads + head]) + self.biases[head]);
                let step = DeltaStep {
                    q: &mixed[key_head..][..key],
                    k: &mixed[key_heads * key + key_head..][..key],
                    v: &mixed[2 * key_heads * key + head * value..][..value],
                    g: f64::from(self.rates[head]) * (a.max(0.0) + (-a.abs()).exp().ln_1p()),
                    beta: f64::from(half::bf16::from_f32(beta as f32).to_f32()),
                };
                out.extend(unit_rule(state, step));
            }
        }
        let turned = states
            .iter()
            .flat_map(|state| (0..value * key).map(move |i| state[i % key * value + i / key]));
        (out, turned.collect())
    }
}

/// The reference's `delta_rule` for queries and keys that have their length already, as the device's rounded rows have.
fn unit_rule(state: &mut [f64], step: DeltaStep<'_>) -> Vec<f64> {
    let (decay, values) = (step.g.exp(), step.v.len());
    state.iter_mut().for_each(|s| *s *= decay);
    let read = |state: &[f64], x: &[f64]| -> Vec<f64> {
        let mut out = vec![0.0; values];
        for (row, x) in state.chunks_exact(values).zip(x) {
            out.iter_mut().zip(row).for_each(|(out, s)| *out += s * x);
        }
        out
    };
    let held = read(state, step.k);
    for (row, k) in state.chunks_exact_mut(values).zip(step.k) {
        for ((s, v), held) in row.iter_mut().zip(step.v).zip(&held) {
            *s += k * step.beta * (v - held);
        }
    }
    let root = (step.q.len() as f64).sqrt();
    read(state, step.q).iter().map(|o| o / root).collect()
}

/// A case on a device, in slot 1 of two; behind them is a place for a mark.
struct Run<'a> {
    device: &'a Device,
    case: &'a Case,
    taps: Block<f32>,
    rates: Block<f32>,
    biases: Block<f32>,
    states: Block<f32>,
    inputs: Block<u16>,
}

impl<'a> Run<'a> {
    fn new(device: &'a Device, case: &'a Case) -> Run<'a> {
        let taps: Vec<f32> = (0..4 * case.channels)
            .map(|i| case.taps[i % case.channels * 4 + i / case.channels])
            .collect();
        Run {
            device,
            case,
            taps: device.with(&taps),
            rates: device.with(&case.rates),
            biases: device.with(&case.biases),
            states: device.with(&vec![0.0; 3 * case.outputs() * case.sizes.key as usize]),
            inputs: device.with(&vec![0; 3 * 3 * case.channels]),
        }
    }

    /// Rows `start..end`, behind `before` rows of another stream in slot 0; gives convolved rows and outputs, as bits.
    fn rows(&self, start: usize, end: usize, before: usize, decode: bool) -> (Vec<u16>, Vec<f32>) {
        self.rows_marked(start, end, before, decode, 0)
    }

    /// The same with a mark after so many of the rows, if not 0.
    fn rows_marked(
        &self,
        start: usize,
        end: usize,
        before: usize,
        decode: bool,
        mark: usize,
    ) -> (Vec<u16>, Vec<f32>) {
        let (case, kernels, gpu) = (self.case, &self.device.kernels.delta, &self.device.gpu);
        let rows = before + end - start;
        let data = [
            &case.wide[..before * case.width],
            &case.wide[start * case.width..end * case.width],
        ]
        .concat();
        let (wide, mixed) = (
            self.device.with(&data),
            self.device.poisoned(rows * case.channels),
        );
        let firsts: Vec<i32> = (0..rows)
            .map(|row| if row < before { 0 } else { before as i32 })
            .collect();
        let slots: Vec<i32> = (0..rows).map(|row| i32::from(row >= before)).collect();
        let (firsts, slots) = (self.device.with(&firsts), self.device.with(&slots));
        kernels
            .convolve(
                gpu,
                case.sizes,
                (&wide, &mixed),
                (&self.taps, &self.inputs),
                [&firsts, &slots],
            )
            .unwrap();
        let mut kept = vec![[before as i32, (end - start) as i32, 1, 0]];
        if mark > 0 {
            kept.push([before as i32, mark as i32, 2, 0]);
        }
        kernels
            .keep(
                gpu,
                case.sizes,
                &wide,
                &self.inputs,
                &self.device.with(&kept),
            )
            .unwrap();
        let out = self.device.poisoned(rows * case.outputs());
        let recurrence = Recurrence {
            rates: &self.rates,
            biases: &self.biases,
            states: &self.states,
        };
        let (mut chunks, mut prefills) = (Vec::new(), Vec::new());
        let mut prefill = |first: usize, count: usize, slot: i32| {
            prefills.push([first as i32, count as i32, slot, chunks.len() as i32]);
            chunks.extend(
                (0..count)
                    .step_by(64)
                    .map(|at| [(first + at) as i32, (count - at).min(64) as i32, 0, 0]),
            );
        };
        if before > 0 {
            prefill(0, before, 0);
        }
        if !decode {
            prefill(before, end - start, 1);
        }
        if !chunks.is_empty() {
            let heads = case.sizes.value_heads as usize;
            let (squares, sums) = (
                self.device.poisoned(chunks.len() * heads * SQUARES),
                self.device.poisoned(chunks.len() * heads * SUMS),
            );
            let mut marks = vec![[0; 4]; prefills.len()];
            *marks.last_mut().expect("there is a prefill") = [(mark / 64) as i32, 2, 0, 0];
            let lists = [&chunks, &prefills, &marks].map(|list| self.device.with(list));
            let lists = (&lists[0], [&lists[1], &lists[2]]);
            kernels
                .prefill(
                    gpu,
                    case.sizes,
                    (&wide, &mixed),
                    recurrence,
                    lists,
                    (&squares, &sums),
                    (&out, rows),
                )
                .unwrap();
        }
        if decode {
            let streams = self.device.with(&[[before as i32, start as i32, 1, 0]]);
            kernels
                .step(
                    gpu,
                    case.sizes,
                    (&wide, &mixed),
                    recurrence,
                    &streams,
                    (&out, rows),
                )
                .unwrap();
        }
        let out = self.device.read_bf16(&out)[before * case.outputs()..].to_vec();
        (
            self.device.read(&mixed)[before * case.channels..].to_vec(),
            out,
        )
    }

    fn state(&self) -> Vec<f32> {
        self.place(1).0
    }

    /// The states and the inputs at a place.
    fn place(&self, index: usize) -> (Vec<f32>, Vec<u16>) {
        let (states, inputs) = (
            self.device.read(&self.states),
            self.device.read(&self.inputs),
        );
        let part = |len: usize| index * len / 3..(index + 1) * len / 3;
        (
            states[part(states.len())].to_vec(),
            inputs[part(inputs.len())].to_vec(),
        )
    }
}

const SIZES: [[usize; 4]; 5] = [
    [2, 4, 16, 16],
    [2, 6, 16, 24],
    [4, 4, 8, 16],
    [2, 4, 32, 48],
    [2, 4, 128, 128],
];

#[test]
fn channels_are_convolved_whatever_the_cut() {
    let Some(device) = device(false) else { return };
    for sizes in SIZES {
        let case = Case::new(sizes, 150);
        let run = Run::new(&device, &case);
        let (mixed, _) = run.rows(0, 150, 0, false);
        let values_at = 2 * (case.sizes.key_heads * case.sizes.key) as usize;
        let values = |x: &[f64]| -> Vec<f64> {
            x.chunks_exact(case.channels)
                .flat_map(|row| row[values_at..].to_vec())
                .collect()
        };
        let found: Vec<f32> = values(&wide(&mixed)).iter().map(|x| *x as f32).collect();
        let convolved = case.convolved();
        close(
            &format!("convolution {sizes:?}"),
            &found,
            &values(&convolved),
            2.0 * ROUNDED,
        );
        // Queries and keys at unit length.
        let key = case.sizes.key as usize;
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        for (mixed, x) in wide(&mixed)
            .chunks_exact(case.channels)
            .zip(convolved.chunks_exact(case.channels))
        {
            for (mixed, x) in mixed[..values_at]
                .chunks_exact(key)
                .zip(x[..values_at].chunks_exact(key))
            {
                found.extend(mixed.iter().map(|x| *x as f32));
                wanted.extend(descant_model::reference::ops::l2_normalise(x));
            }
        }
        close(
            &format!("unit length {sizes:?}"),
            &found,
            &wanted,
            3.0 * ROUNDED,
        );
        for cuts in [
            vec![64, 128, 150],
            vec![1, 2, 3, 4, 5, 150],
            (1..=150).collect(),
        ] {
            let run = Run::new(&device, &case);
            let mut start = 0;
            let mut pieces = Vec::new();
            for end in cuts {
                pieces.extend(run.rows(start, end, 2, by_recurrence(start, end)).0);
                start = end;
            }
            assert!(pieces == mixed, "{sizes:?}: a cut changes convolved rows");
        }
    }
}

/// One row goes by the recurrence, which cuts at any row.
fn by_recurrence(start: usize, end: usize) -> bool {
    end - start == 1
}

/// Products of two bf16 each lose 2^-16 of a term; sums over 64 rows and the chunks before add a few of them.
const STATE: f64 = 3e-5;

#[test]
fn chunks_follow_the_rule() {
    let Some(device) = device(false) else { return };
    for sizes in SIZES {
        for rows in [1, 63, 64, 65, 130, 321] {
            let case = Case::new(sizes, rows);
            let run = Run::new(&device, &case);
            let (mixed, whole) = run.rows(0, rows, 0, false);
            let (outputs, states) = case.rule(&mixed);
            close(
                &format!("chunks {sizes:?} of {rows} rows"),
                &whole,
                &outputs,
                ROUNDED,
            );
            let state = run.state();
            close(
                &format!("states {sizes:?} after {rows} rows"),
                &state,
                &states,
                STATE,
            );
            for (piece, before) in [(64, 0), (128, 5), (192, 100)] {
                let run = Run::new(&device, &case);
                let pieces: Vec<f32> = (0..rows)
                    .step_by(piece)
                    .flat_map(|at| {
                        run.rows(at, (at + piece).min(rows), before.min(rows), false)
                            .1
                    })
                    .collect();
                descant_testkit::assert_same_bits(
                    &format!("chunks {sizes:?} in pieces of {piece}"),
                    case.outputs(),
                    &pieces,
                    &whole,
                );
                descant_testkit::assert_same_bits("their states", 1, &run.state(), &state);
            }
        }
    }
}

/// On Hopper both its own kernels and the portable ones.
#[test]
fn what_is_kept_at_a_mark_is_what_a_piece_that_ends_there_leaves() {
    for portable in [false, true] {
        let Some(device) = device(portable) else {
            return;
        };
        for sizes in SIZES {
            let case = Case::new(sizes, 321);
            let (rows, state) = {
                let run = Run::new(&device, &case);
                (run.rows(0, 321, 0, false), run.state())
            };
            for (start, mark, before) in [(0, 64, 0), (0, 320, 70), (64, 256, 3), (256, 320, 0)] {
                let (ended, marked) = (Run::new(&device, &case), Run::new(&device, &case));
                for run in [&ended, &marked] {
                    (start > 0).then(|| run.rows(0, start, 0, false));
                }
                ended.rows(start, mark, before, false);
                let found = marked.rows_marked(start, 321, before, false, mark - start);
                let what = format!("{sizes:?}, a mark at {mark} of rows from {start} on");
                let (states, inputs) = marked.place(2);
                let (wanted, wanted_inputs) = ended.place(1);
                assert!(
                    wanted.iter().any(|x| *x != 0.0),
                    "{what}: there is something to keep"
                );
                descant_testkit::assert_same_bits(&what, 1, &states, &wanted);
                assert!(inputs == wanted_inputs, "{what}: other inputs");
                // And nothing else is another for it.
                let outputs = &rows.1[start * case.outputs()..];
                descant_testkit::assert_same_bits(&what, case.outputs(), &found.1, outputs);
                descant_testkit::assert_same_bits(&what, 1, &marked.state(), &state);
            }
        }
    }
}

#[test]
fn steps_follow_the_rule() {
    let Some(device) = device(false) else { return };
    for sizes in SIZES {
        let case = Case::new(sizes, 80);
        let run = Run::new(&device, &case);
        let (mut mixed, mut found) = run.rows(0, 64, 0, false);
        for row in 64..80 {
            let (next, out) = run.rows(row, row + 1, row % 3, true);
            mixed.extend(next);
            found.extend(out);
        }
        let (outputs, states) = case.rule(&mixed);
        close(&format!("steps {sizes:?}"), &found, &outputs, ROUNDED);
        close(
            &format!("states {sizes:?} after steps"),
            &run.state(),
            &states,
            STATE,
        );
    }
}
