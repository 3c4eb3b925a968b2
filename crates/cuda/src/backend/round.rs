//! One round: the rows of all segments pass through the layers together.
//!
//! A layer's matrix products take all rows of the round at once; the mixers take each segment with the states of its slot.

use descant_model::{CHUNK_ROWS, Capacity};
use descant_release::ModelConfig;

use super::plan::{OnDevice, Plan};
use super::slots::{LayerState, Slots};
use super::weights::{
    AttentionWeights, DeltaWeights, LayerWeights, Linear, Mixer, Weights, attention_width,
    delta_width,
};
use crate::bench::{Part, Profile};
use crate::driver::{Arena, Block, Gpu};
use crate::error::CudaError;
use crate::launch::{Cache, Kernels, Product, Recurrence, SHARE, SQUARES, SUMS};

/// Most rows whose logits are computed at one time.
const LOGITS_ROWS: usize = 64;

/// Activations of one round.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// `[rows, H]`: the residual stream.
    residual: Block<u16>,
    /// `[rows, H]`: normed rows; after a round the final ones.
    pub(crate) normed: Block<u16>,
    /// `[rows, H]`: what a branch adds, where the product does not add it itself.
    branch: Block<u16>,
    /// The widest projection of a layer.
    pub(crate) wide: Block<u16>,
    /// What is made of it: convolved channels, queries, or SwiGLU.
    pub(crate) narrow: Block<u16>,
    /// What a mixer gives, before its output projection.
    pub(crate) mixed: Block<u16>,
    /// Chunks of the delta rule: four squares of each head, and sums.
    squares: Block<u16>,
    sums: Block<f32>,
    /// Shares of decode's attention.
    marks: Block<[f32; 2]>,
    weighted: Block<f32>,
    /// `[positions, half]`: cosines and sines, rounded to bf16.
    turns: Block<[f32; 2]>,
    /// `[LOGITS_ROWS, H]` and `[LOGITS_ROWS, vocab]`.
    pub(crate) picked: Block<u16>,
    pub(crate) logits: Block<u16>,
    logits_rows: usize,
}

/// Lengths of the buffers of bf16 values, of f32 values and of pairs, in the order of their fields.
struct Lengths {
    halves: [usize; 9],
    floats: [usize; 2],
    pairs: [usize; 2],
}

fn logits_rows(capacity: Capacity) -> usize {
    LOGITS_ROWS.min(capacity.rows)
}

fn lengths(config: &ModelConfig, capacity: Capacity) -> Lengths {
    let (attention, linear) = (&config.attention, &config.linear);
    let (rows, hidden) = (capacity.rows, config.hidden);
    let queries = attention.heads * attention.head_dim;
    let values = linear.value_heads * linear.value_dim;
    let wide = attention_width(attention)
        .max(delta_width(linear))
        .max(2 * config.intermediate);
    let narrow = queries.max(linear.conv_channels()).max(config.intermediate);
    // A short chunk a segment at most.
    let chunks = (rows.div_ceil(CHUNK_ROWS) + capacity.slots) * linear.value_heads;
    let shares = capacity.slots * attention.heads * capacity.positions.div_ceil(SHARE);
    let logits = logits_rows(capacity);
    Lengths {
        halves: [
            rows * hidden,
            rows * hidden,
            rows * hidden,
            rows * wide,
            rows * narrow,
            rows * queries.max(values),
            chunks * SQUARES,
            logits * hidden,
            logits * config.vocab.next_multiple_of(8),
        ],
        floats: [chunks * SUMS, shares * attention.head_dim],
        pairs: [shares, capacity.positions * attention.rotary_dims / 2],
    }
}

impl Buffers {
    pub(crate) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        capacity: Capacity,
    ) -> Result<Buffers, CudaError> {
        let mut arena = Arena::new(
            gpu,
            "activations of a round",
            Buffers::bytes(config, capacity),
        )?;
        let lengths = lengths(config, capacity);
        let [
            residual,
            normed,
            branch,
            wide,
            narrow,
            mixed,
            squares,
            picked,
            logits,
        ] = lengths.halves.map(|len| arena.take(len));
        let [sums, weighted] = lengths.floats.map(|len| arena.take(len));
        let [marks, turns] = lengths.pairs.map(|len| arena.take(len));
        gpu.upload(&turns, &rotary_turns(config, capacity.positions))?;
        Ok(Buffers {
            residual,
            normed,
            branch,
            wide,
            narrow,
            mixed,
            squares,
            sums,
            marks,
            weighted,
            turns,
            picked,
            logits,
            logits_rows: logits_rows(capacity),
        })
    }

    pub(crate) fn bytes(config: &ModelConfig, capacity: Capacity) -> usize {
        let lengths = lengths(config, capacity);
        lengths
            .halves
            .iter()
            .map(|len| Arena::bytes_for::<u16>(*len))
            .sum::<usize>()
            + lengths
                .floats
                .iter()
                .map(|len| Arena::bytes_for::<f32>(*len))
                .sum::<usize>()
            + lengths
                .pairs
                .iter()
                .map(|len| Arena::bytes_for::<[f32; 2]>(*len))
                .sum::<usize>()
    }

    /// Rows of [`Buffers::picked`].
    pub(crate) fn logits_rows(&self) -> usize {
        self.logits_rows
    }
}

/// Cosine and sine of every position's angles. Angles are f32 products, as in the reference; their cosine and sine are taken in
/// f64 and rounded to bf16.
fn rotary_turns(config: &ModelConfig, positions: usize) -> Vec<[f32; 2]> {
    let attention = &config.attention;
    let frequency = |i: usize| {
        let exponent = (2 * i) as f32 / attention.rotary_dims as f32;
        1.0 / (attention.rope_theta.powf(f64::from(exponent)) as f32)
    };
    let frequencies: Vec<f32> = (0..attention.rotary_dims / 2).map(frequency).collect();
    let round = |x: f64| half::bf16::from_f32(x as f32).to_f32();
    let turn = |position: usize, frequency: f32| {
        let angle = f64::from(position as f32 * frequency);
        [round(angle.cos()), round(angle.sin())]
    };
    (0..positions)
        .flat_map(|position| {
            frequencies
                .iter()
                .map(move |frequency| turn(position, *frequency))
        })
        .collect()
}

/// What a round needs.
pub(crate) struct Round<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) kernels: &'a Kernels,
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) slots: &'a Slots,
    pub(crate) buffers: &'a Buffers,
    pub(crate) plan: &'a Plan,
    pub(crate) lists: &'a OnDevice,
    /// Notes the parts of the round, if it is to be measured.
    pub(crate) profile: Option<&'a Profile>,
}

impl Round<'_> {
    /// Queues the rows' way through all layers; the final normed rows are then in `buffers.normed`.
    pub(crate) fn run(&self) -> Result<(), CudaError> {
        let (buffers, hidden) = (self.buffers, self.config.hidden);
        self.kernels.rows.gather(
            self.gpu,
            &self.weights.embedding,
            &self.lists.tokens,
            &buffers.residual,
            hidden,
        )?;
        self.note("embedding", 0.0, self.halves(2 * hidden))?;
        for (index, (weights, state)) in self
            .weights
            .layers
            .iter()
            .zip(&self.slots.layers)
            .enumerate()
        {
            self.norm(&weights.mixer_norm, index > 0)?;
            match (&weights.mixer, state) {
                (Mixer::Attention(weights), LayerState::Attention(cache)) => {
                    self.attention(weights, cache)?
                }
                (Mixer::Delta(weights), LayerState::Delta { states, inputs }) => {
                    self.delta(weights, states, inputs)?
                }
                _ => unreachable!("states were made for the same layers as weights"),
            }
            self.norm(&weights.mlp_norm, true)?;
            self.mlp(weights)?;
        }
        self.norm(&self.weights.norm, true)
    }

    /// Notes a part of the round, with the operations and the bytes that it cannot do without.
    fn note(&self, name: &'static str, flop: f64, bytes: f64) -> Result<(), CudaError> {
        match self.profile {
            Some(profile) => profile.note(self.gpu, Part { name, flop, bytes }),
            None => Ok(()),
        }
    }

    /// Bytes of bf16 values, so many a row.
    fn halves(&self, a_row: usize) -> f64 {
        (2 * a_row * self.plan.rows()) as f64
    }

    /// Norms the residual rows, to which the last branch is added first where its product did not do so.
    fn norm(&self, weight: &Block<f32>, follows_branch: bool) -> Result<(), CudaError> {
        let Buffers {
            residual,
            normed,
            branch,
            ..
        } = self.buffers;
        let adds = follows_branch && !self.kernels.gemm.fuses();
        let branch = adds.then_some(branch);
        self.kernels.rows.norm(
            self.gpu,
            (residual, branch),
            (weight, self.config.norm_eps),
            normed,
            self.plan.rows(),
        )?;
        self.note(
            "residual sums and norms",
            0.0,
            self.halves(if adds { 4 } else { 2 } * self.config.hidden),
        )
    }

    /// The last product of a branch, which is added to the residual rows.
    fn branch(&self, name: &'static str, x: &Block<u16>, map: &Linear) -> Result<(), CudaError> {
        let Buffers {
            residual, branch, ..
        } = self.buffers;
        if !self.kernels.gemm.fuses() {
            return self.linear(name, x, map, branch, false);
        }
        let product = Product {
            x,
            weight: &map.weight,
            out: residual,
            rows: self.plan.rows(),
            inputs: map.inputs,
            outputs: map.outputs,
            swiglu: false,
        };
        self.kernels.gemm.add(self.gpu, product)?;
        self.note_product(name, map, map.inputs + 2 * map.outputs)
    }

    /// Notes a product that reads and writes so many values a row.
    fn note_product(
        &self,
        name: &'static str,
        map: &Linear,
        a_row: usize,
    ) -> Result<(), CudaError> {
        let work = (map.inputs * map.outputs) as f64;
        let flop = 2.0 * work * self.plan.rows() as f64;
        self.note(name, flop, 2.0 * work + self.halves(a_row))
    }

    fn linear(
        &self,
        name: &'static str,
        x: &Block<u16>,
        map: &Linear,
        out: &Block<u16>,
        swiglu: bool,
    ) -> Result<(), CudaError> {
        let rows = self.plan.rows();
        let product = Product {
            x,
            weight: &map.weight,
            out,
            rows,
            inputs: map.inputs,
            outputs: map.outputs,
            swiglu,
        };
        self.kernels.gemm.run(self.gpu, product)?;
        let columns = if swiglu { map.outputs / 2 } else { map.outputs };
        self.note_product(name, map, map.inputs + columns)
    }

    /// `down(silu(gate x) · up x)`.
    fn mlp(&self, weights: &LayerWeights) -> Result<(), CudaError> {
        let Buffers {
            normed,
            wide,
            narrow,
            ..
        } = self.buffers;
        if self.kernels.gemm.fuses() {
            self.linear(
                "gate and up, SwiGLU",
                normed,
                &weights.gate_up,
                narrow,
                true,
            )?;
        } else {
            self.linear("gate and up", normed, &weights.gate_up, wide, false)?;
            self.kernels.rows.swiglu(
                self.gpu,
                wide,
                narrow,
                self.plan.rows(),
                self.config.intermediate,
            )?;
            self.note("SwiGLU", 0.0, self.halves(3 * self.config.intermediate))?;
        }
        self.branch("down", narrow, &weights.down)
    }

    /// Full attention.
    fn attention(&self, weights: &AttentionWeights, cache: &Cache) -> Result<(), CudaError> {
        let Buffers {
            normed,
            wide,
            narrow,
            mixed,
            marks,
            weighted,
            turns,
            ..
        } = self.buffers;
        let (kernels, shape, lists, rows) = (
            &self.kernels.attention,
            &self.slots.shape,
            self.lists,
            self.plan.rows(),
        );
        self.linear(
            "attention: projections",
            normed,
            &weights.inputs,
            wide,
            false,
        )?;
        let norms = (
            [&weights.query_norm, &weights.key_norm],
            self.config.norm_eps,
        );
        kernels.turn(
            self.gpu,
            shape,
            wide,
            norms,
            turns,
            [&lists.positions, &lists.slots],
            (narrow, cache),
        )?;
        let (queries, keys) = (shape.heads * shape.dim, shape.kv_heads * shape.dim);
        self.note(
            "attention: norms, turns, cache",
            0.0,
            self.halves(2 * queries + 4 * keys),
        )?;
        if let Some(tiles) = &lists.tiles {
            kernels.attend(self.gpu, shape, tiles, (narrow, cache, wide), mixed, rows)?;
            let flop = 4.0 * queries as f64 * self.plan.prefill_pairs();
            self.note("attention", flop, self.halves(3 * queries + 2 * keys))?;
        }
        if let Some(streams) = &lists.streams {
            let streams = (streams, self.plan.decode_position_max());
            kernels.decode(
                self.gpu,
                shape,
                streams,
                (narrow, cache, wide),
                (marks, weighted),
                mixed,
                rows,
            )?;
            self.note(
                "attention of decode",
                0.0,
                4.0 * keys as f64 * self.plan.decode_pairs(),
            )?;
        }
        self.branch("output projections", mixed, &weights.output)
    }

    /// The gated delta net.
    fn delta(
        &self,
        weights: &DeltaWeights,
        states: &Block<f32>,
        inputs: &Block<u16>,
    ) -> Result<(), CudaError> {
        let Buffers {
            normed,
            wide,
            narrow,
            mixed,
            ..
        } = self.buffers;
        let (kernels, sizes, lists) = (&self.kernels.delta, self.slots.sizes, self.lists);
        let linear = &self.config.linear;
        let (channels, heads) = (linear.conv_channels(), linear.value_heads);
        self.linear(
            "delta net: projections",
            normed,
            &weights.inputs,
            wide,
            false,
        )?;
        let places = [&lists.firsts, &lists.slots];
        kernels.convolve(
            self.gpu,
            sizes,
            (wide, narrow),
            (&weights.taps, inputs),
            places,
        )?;
        kernels.keep(self.gpu, sizes, wide, inputs, &lists.kept)?;
        self.note("delta net: convolution", 0.0, self.halves(2 * channels))?;
        self.recur(Recurrence {
            rates: &weights.rates,
            biases: &weights.biases,
            states,
        })?;
        let z = (wide, delta_width(linear), channels);
        let norm = (&weights.norm, self.config.norm_eps);
        self.kernels
            .rows
            .gated_norm(self.gpu, mixed, z, norm, (self.plan.rows(), heads))?;
        let values = heads * linear.value_dim;
        self.note("delta net: gated norm", 0.0, self.halves(3 * values))?;
        self.branch("output projections", mixed, &weights.output)
    }

    /// The delta rule: prompts by chunks, next tokens by the recurrence.
    fn recur(&self, recurrence: Recurrence<'_>) -> Result<(), CudaError> {
        let Buffers {
            wide,
            narrow,
            mixed,
            squares,
            sums,
            ..
        } = self.buffers;
        let (kernels, sizes, lists) = (&self.kernels.delta, self.slots.sizes, self.lists);
        let (linear, rows) = (&self.config.linear, self.plan.rows());
        let heads = linear.value_heads;
        let state = (linear.key_dim * linear.value_dim * heads) as f64;
        if let (Some(chunks), Some(prefills), Some(marks)) =
            (&lists.chunks, &lists.prefills, &lists.marks)
        {
            let (rows_in, prepared) = ((wide, narrow), (squares, sums));
            kernels.prepare(self.gpu, sizes, rows_in, recurrence, chunks, prepared, rows)?;
            // What both halves read and write at least, without what goes between them.
            let (pairs, keys) = (
                (64 * rows * heads) as f64,
                2 * linear.key_heads * linear.key_dim,
            );
            let flop = 4.0 * pairs * linear.key_dim as f64;
            self.note("delta net: chunks", flop, self.halves(keys))?;
            let out = (mixed, rows);
            kernels.scan(
                self.gpu,
                sizes,
                narrow,
                recurrence,
                [prefills, marks],
                prepared,
                out,
            )?;
            let flop = 6.0 * state * rows as f64 + 4.0 * pairs * linear.value_dim as f64;
            let moved = self.halves(keys + 2 * heads * linear.value_dim);
            self.note("delta net: states", flop, moved)?;
        }
        if let Some(streams) = &lists.streams {
            let out = (mixed, rows);
            kernels.step(self.gpu, sizes, (wide, narrow), recurrence, streams, out)?;
            self.note("delta net: steps", 0.0, 8.0 * state * streams.len() as f64)?;
        }
        Ok(())
    }
}
