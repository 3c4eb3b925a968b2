//! One round: the rows of all segments pass through the layers together.
//!
//! A layer's matrix products take all rows of the round at once; the mixers take each segment with the states of its slot.

use std::ops::Range;

use descant_model::{CHUNK_ROWS, Pass, Segment};
use descant_release::{AttentionConfig, LinearConfig, LoadError, ModelConfig, Tensor};

use super::slots::{DeltaState, Kv, KvStore, LayerState, Slots, StateSizes, touched};
use super::weights::{AttentionWeights, DeltaWeights, LayerWeights, Mixer, Weights};
use crate::arch::{Arena, Block, Picks, Pool, Tile, Tiles, with_scratch};
use crate::ops::attention::{Cache, Cell, HeadShape, QUERY_BLOCK, attend, write_position};
use crate::ops::conv::{CONV_CHANNELS, Columns};
use crate::ops::delta::{Chunk, DeltaRow, DeltaShape, step, with_chunk};
use crate::ops::norm::l2_normalise;
use crate::ops::rope::Rope;
use crate::ops::{Precision, gate};

/// Activations of one round, `[rows, …]` f32 each.
#[derive(Debug)]
pub(super) struct Buffers {
    /// `[rows, H]`: the residual stream.
    residual: Block<f32>,
    /// `[rows, H]`: normed rows, then what a branch adds; after a round the final normed rows.
    pub(super) normed: Block<f32>,
    /// The widest projection of a layer.
    wide: Block<f32>,
    /// What is made of it: convolved channels, queries, or SwiGLU.
    narrow: Block<f32>,
    /// What a mixer gives, before its output projection.
    mixed: Block<f32>,
}

/// Widths of the buffers, in their order.
fn widths(config: &ModelConfig) -> [usize; 5] {
    let (attention, linear) = (&config.attention, &config.linear);
    let queries = attention.heads * attention.head_dim;
    let keys = attention.kv_heads * attention.head_dim;
    let values = linear.value_heads * linear.value_dim;
    let delta = linear.conv_channels() + values + 2 * linear.value_heads;
    [
        config.hidden,
        config.hidden,
        delta
            .max(2 * queries + 2 * keys)
            .max(2 * config.intermediate),
        linear.conv_channels().max(queries).max(config.intermediate),
        queries.max(values),
    ]
}

impl Buffers {
    /// # Errors
    /// [`LoadError::Memory`] if there is no memory.
    pub(super) fn new(
        config: &ModelConfig,
        rows: usize,
        pool: &Pool,
    ) -> Result<Buffers, LoadError> {
        let mut arena = Arena::new("activations of a round", Buffers::bytes(config, rows))?;
        let [residual, normed, wide, narrow, mixed] =
            widths(config).map(|width| touched(&mut arena, rows * width, pool));
        Ok(Buffers {
            residual,
            normed,
            wide,
            narrow,
            mixed,
        })
    }

    /// Bytes for rounds of `rows` rows.
    pub(super) fn bytes(config: &ModelConfig, rows: usize) -> usize {
        widths(config)
            .iter()
            .map(|width| Arena::bytes_for::<f32>(rows * width))
            .sum()
    }
}

/// Where a round's rows belong.
pub(super) struct Plan {
    /// Slots of the segments, in their order.
    slots: Vec<usize>,
    /// Rows of the segments.
    ranges: Vec<Range<usize>>,
    passes: Vec<Pass>,
    /// Position of each row in its stream.
    positions: Vec<usize>,
    /// Rows of the attention's tasks, and the segment of each.
    query_blocks: Vec<Range<usize>>,
    query_segments: Vec<usize>,
}

impl Plan {
    pub(super) fn new(round: &[Segment<'_>]) -> Plan {
        let mut plan = Plan {
            slots: round.iter().map(|segment| segment.slot.0).collect(),
            ranges: Vec::new(),
            passes: round.iter().map(|segment| segment.pass).collect(),
            positions: Vec::new(),
            query_blocks: Vec::new(),
            query_segments: Vec::new(),
        };
        for (index, segment) in round.iter().enumerate() {
            let rows = plan.rows()..plan.rows() + segment.tokens.len();
            plan.positions
                .extend(segment.start..segment.start + rows.len());
            for start in rows.clone().step_by(QUERY_BLOCK) {
                plan.query_blocks
                    .push(start..(start + QUERY_BLOCK).min(rows.end));
                plan.query_segments.push(index);
            }
            plan.ranges.push(rows);
        }
        plan
    }

    /// Rows of the round.
    pub(super) fn rows(&self) -> usize {
        self.positions.len()
    }
}

/// What a round needs beside the buffers and the states.
pub(super) struct Round<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a Weights,
    pub(super) rope: &'a Rope,
    pub(super) precision: Precision,
    pub(super) pool: &'a Pool,
    pub(super) plan: Plan,
}

impl Round<'_> {
    /// Runs the rows through all layers; the final normed rows are then in `buffers.normed`.
    pub(super) fn run(
        &self,
        tokens: &[u32],
        embedding: &Tensor<'_>,
        buffers: &mut Buffers,
        slots: &mut Slots,
    ) {
        let (rows, hidden) = (self.plan.rows(), self.config.hidden);
        self.embed(tokens, embedding, &mut buffers.residual[..rows * hidden]);
        let sizes = slots.sizes;
        for (weights, state) in self.weights.layers.iter().zip(&mut slots.layers) {
            self.layer(weights, state, &sizes, buffers);
        }
        let x = &buffers.residual[..rows * hidden];
        self.weights.norm.rows(
            self.pool,
            self.precision,
            x,
            &mut buffers.normed[..rows * hidden],
        );
    }

    fn embed(&self, tokens: &[u32], embedding: &Tensor<'_>, out: &mut [f32]) {
        self.pool.chunks(out, self.config.hidden, |row, out| {
            let token = tokens[row] as usize;
            embedding.copy_rows_f32_into(token..token + 1, out);
            if self.precision.is_bf16() {
                gate::round_row(self.pool.isa(), out);
            }
        });
    }

    /// `h += Mixer(norm h); h += MLP(norm h)`.
    fn layer(
        &self,
        weights: &LayerWeights,
        state: &mut LayerState,
        sizes: &StateSizes,
        buffers: &mut Buffers,
    ) {
        let len = self.plan.rows() * self.config.hidden;
        weights.mixer_norm.rows(
            self.pool,
            self.precision,
            &buffers.residual[..len],
            &mut buffers.normed[..len],
        );
        match (&weights.mixer, state) {
            (Mixer::Attention(weights), LayerState::Attention(KvStore::Bf16(kv))) => {
                self.attention(weights, kv, sizes, buffers);
            }
            (Mixer::Attention(weights), LayerState::Attention(KvStore::F32(kv))) => {
                self.attention(weights, kv, sizes, buffers);
            }
            (Mixer::Delta(weights), LayerState::Delta(state)) => {
                self.delta(weights, state, sizes, buffers)
            }
            _ => unreachable!("states were made for the same layers as weights"),
        }
        gate::add(
            self.pool,
            self.precision,
            &mut buffers.residual[..len],
            &buffers.normed[..len],
        );

        weights.mlp_norm.rows(
            self.pool,
            self.precision,
            &buffers.residual[..len],
            &mut buffers.normed[..len],
        );
        self.mlp(weights, buffers);
        gate::add(
            self.pool,
            self.precision,
            &mut buffers.residual[..len],
            &buffers.normed[..len],
        );
    }

    /// `down(silu(gate x) · up x)`.
    fn mlp(&self, weights: &LayerWeights, buffers: &mut Buffers) {
        let (rows, hidden, width) = (
            self.plan.rows(),
            self.config.hidden,
            self.config.intermediate,
        );
        let (pool, precision) = (self.pool, self.precision);
        let wide = &mut buffers.wide[..rows * 2 * width];
        weights.gate_up.run(
            pool,
            precision,
            &buffers.normed[..rows * hidden],
            rows,
            wide,
        );
        let active = &mut buffers.narrow[..rows * width];
        gate::swiglu(pool, precision, wide, width, active);
        weights.down.run(
            pool,
            precision,
            active,
            rows,
            &mut buffers.normed[..rows * hidden],
        );
    }

    /// Full attention.
    fn attention<T: Cell>(
        &self,
        weights: &AttentionWeights,
        kv: &mut Kv<T>,
        sizes: &StateSizes,
        buffers: &mut Buffers,
    ) {
        let (rows, hidden) = (self.plan.rows(), self.config.hidden);
        let places = AttentionPlaces::new(&self.config.attention);
        let wide = &mut buffers.wide[..rows * places.width];
        weights.inputs.run(
            self.pool,
            self.precision,
            &buffers.normed[..rows * hidden],
            rows,
            wide,
        );

        let queries = &mut buffers.narrow[..rows * places.queries];
        self.turn_queries(weights, places, wide, queries);
        self.remember(weights, places, wide, kv, sizes);
        let mixed = &mut buffers.mixed[..rows * places.queries];
        let columns = places.shape.group * places.shape.dim;
        let tiles = Tiles::new(mixed, places.queries, &self.plan.query_blocks, columns);
        self.pool.split(&tiles, |task, mut out| {
            let (block, head) = (task / sizes.kv_heads, task % sizes.kv_heads);
            let place = self.plan.slots[self.plan.query_segments[block]] * sizes.kv_heads + head;
            let cache = Cache {
                keys: &kv.keys[place * sizes.keys..][..sizes.keys],
                values: &kv.values[place * sizes.values..][..sizes.values],
            };
            let position = self.plan.positions[out.rows().start];
            let queries = (&*queries, places.queries);
            attend(
                self.pool.isa(),
                self.precision,
                places.shape,
                queries,
                (cache, position),
                &mut out,
            );
            self.open_gates(places, wide, &mut out);
        });
        weights.output.run(
            self.pool,
            self.precision,
            mixed,
            rows,
            &mut buffers.normed[..rows * hidden],
        );
    }

    /// Norms and turns the queries.
    fn turn_queries(
        &self,
        weights: &AttentionWeights,
        places: AttentionPlaces,
        wide: &[f32],
        queries: &mut [f32],
    ) {
        let dim = places.shape.dim;
        self.pool.chunks(queries, places.queries, |row, queries| {
            let wide = &wide[row * places.width..][..2 * places.queries];
            for (wide, query) in wide
                .chunks_exact(2 * dim)
                .zip(queries.chunks_exact_mut(dim))
            {
                weights
                    .query_norm
                    .row(self.pool, self.precision, &wide[..dim], query);
                self.rope
                    .turn(self.precision, self.plan.positions[row], query);
            }
        });
    }

    /// Norms and turns the keys, and writes keys and values to the cache.
    fn remember<T: Cell>(
        &self,
        weights: &AttentionWeights,
        places: AttentionPlaces,
        wide: &[f32],
        kv: &mut Kv<T>,
        sizes: &StateSizes,
    ) {
        let dim = places.shape.dim;
        let keys = Picks::new(&mut kv.keys, sizes.keys, sizes.kv_heads, &self.plan.slots);
        let values = Picks::new(
            &mut kv.values,
            sizes.values,
            sizes.kv_heads,
            &self.plan.slots,
        );
        self.pool.split(&(keys, values), |task, (keys, values)| {
            let (segment, head) = (task / sizes.kv_heads, task % sizes.kv_heads);
            with_scratch(dim, |key| {
                for row in self.plan.ranges[segment].clone() {
                    let wide = &wide[row * places.width..][..places.width];
                    let position = self.plan.positions[row];
                    let from = places.keys + head * dim;
                    weights
                        .key_norm
                        .row(self.pool, self.precision, &wide[from..from + dim], key);
                    self.rope.turn(self.precision, position, key);
                    let value = &wide[places.values + head * dim..][..dim];
                    write_position(
                        places.shape,
                        (&mut *keys, &mut *values),
                        position,
                        (key, value),
                    );
                }
            });
        });
    }

    /// Multiplies a task's outputs by the sigmoid of their gates.
    fn open_gates(&self, places: AttentionPlaces, wide: &[f32], out: &mut Tile<'_>) {
        let dim = places.shape.dim;
        let first = out.columns().start / dim;
        for row in out.rows() {
            let wide = &wide[row * places.width..][..places.width];
            for (head, out) in out.row(row).chunks_exact_mut(dim).enumerate() {
                let gate = &wide[(first + head) * 2 * dim + dim..][..dim];
                gate::open_gate(self.pool, self.precision, out, gate);
            }
        }
    }

    /// The gated delta net.
    fn delta(
        &self,
        weights: &DeltaWeights,
        state: &mut DeltaState,
        sizes: &StateSizes,
        buffers: &mut Buffers,
    ) {
        let (rows, hidden) = (self.plan.rows(), self.config.hidden);
        let places = DeltaPlaces::new(&self.config.linear);
        let wide = &mut buffers.wide[..rows * places.width];
        weights.inputs.run(
            self.pool,
            self.precision,
            &buffers.normed[..rows * hidden],
            rows,
            wide,
        );
        self.pool.chunks(wide, places.width, |_, row| {
            let (b, a) = row[places.betas..].split_at_mut(sizes.value_heads);
            gate::delta_inputs(
                self.pool,
                self.precision,
                (b, a),
                &weights.rates,
                &weights.biases,
            );
        });

        let convolved = &mut buffers.narrow[..rows * places.channels];
        self.convolve(weights, places, wide, state, sizes, convolved);
        let mixed = &mut buffers.mixed[..rows * places.outputs];
        let states = Picks::new(
            &mut state.states,
            sizes.state,
            sizes.value_heads,
            &self.plan.slots,
        );
        let outs = Tiles::new(mixed, places.outputs, &self.plan.ranges, places.shape.value);
        self.pool.split(&(states, outs), |task, (state, mut out)| {
            let (segment, head) = (task / sizes.value_heads, task % sizes.value_heads);
            let head = DeltaHead {
                round: self,
                weights,
                places,
                wide,
                convolved,
                head,
            };
            match self.plan.passes[segment] {
                Pass::Decode => head.decode(state, &mut out),
                Pass::Prefill => head.prefill(state, &mut out),
            }
        });
        weights.output.run(
            self.pool,
            self.precision,
            mixed,
            rows,
            &mut buffers.normed[..rows * hidden],
        );
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the buffers of one step, borrowed apart"
    )]
    fn convolve(
        &self,
        weights: &DeltaWeights,
        places: DeltaPlaces,
        wide: &[f32],
        state: &mut DeltaState,
        sizes: &StateSizes,
        out: &mut [f32],
    ) {
        let states = Picks::new(
            &mut state.inputs,
            sizes.conv_state,
            sizes.conv_blocks,
            &self.plan.slots,
        );
        let outs = Tiles::new(out, places.channels, &self.plan.ranges, CONV_CHANNELS);
        let x = Columns {
            data: wide,
            width: places.width,
        };
        self.pool.split(&(states, outs), |_, (state, mut out)| {
            weights
                .taps
                .run(self.pool.isa(), self.precision, x, state, &mut out);
        });
    }
}

/// Columns of the attention's projected rows.
#[derive(Clone, Copy)]
struct AttentionPlaces {
    shape: HeadShape,
    /// Width of all queries; each comes with a gate.
    queries: usize,
    keys: usize,
    values: usize,
    width: usize,
}

impl AttentionPlaces {
    fn new(config: &AttentionConfig) -> AttentionPlaces {
        let (queries, keys) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        AttentionPlaces {
            shape: HeadShape {
                dim: config.head_dim,
                group: config.heads / config.kv_heads,
                scale,
            },
            queries,
            keys: 2 * queries,
            values: 2 * queries + keys,
            width: 2 * queries + 2 * keys,
        }
    }
}

/// Columns of the delta net's projected rows.
#[derive(Clone, Copy)]
struct DeltaPlaces {
    shape: DeltaShape,
    /// Value heads that share a key head.
    ratio: usize,
    /// Keys among the convolved channels (queries are first), and values.
    keys: usize,
    values: usize,
    channels: usize,
    /// Width of z and of the outputs; z stands behind the channels.
    outputs: usize,
    betas: usize,
    decays: usize,
    width: usize,
}

impl DeltaPlaces {
    fn new(config: &LinearConfig) -> DeltaPlaces {
        let channels = config.conv_channels();
        let outputs = config.value_heads * config.value_dim;
        DeltaPlaces {
            shape: DeltaShape {
                key: config.key_dim,
                value: config.value_dim,
            },
            ratio: config.value_heads / config.key_heads,
            keys: config.key_heads * config.key_dim,
            values: 2 * config.key_heads * config.key_dim,
            channels,
            outputs,
            betas: channels + outputs,
            decays: channels + outputs + config.value_heads,
            width: channels + outputs + 2 * config.value_heads,
        }
    }
}

/// One value head of one segment.
struct DeltaHead<'a> {
    round: &'a Round<'a>,
    weights: &'a DeltaWeights,
    places: DeltaPlaces,
    wide: &'a [f32],
    convolved: &'a [f32],
    head: usize,
}

impl DeltaHead<'_> {
    /// All rows by chunks of 64; the first row begins one.
    fn prefill(&self, state: &mut [f32], out: &mut Tile<'_>) {
        let (rows, isa) = (out.rows(), self.round.pool.isa());
        with_chunk(self.places.shape, |chunk| {
            for start in rows.clone().step_by(CHUNK_ROWS) {
                self.gather(chunk, start..(start + CHUNK_ROWS).min(rows.end));
                chunk.run(isa, state, |row, values| {
                    out.row(start + row).copy_from_slice(values)
                });
            }
        });
        for row in rows {
            self.finish(row, out.row(row));
        }
    }

    /// One row by the recurrence.
    fn decode(&self, state: &mut [f32], out: &mut Tile<'_>) {
        let (row, key) = (out.rows().start, self.places.shape.key);
        let (decay, beta) = self.rates(row);
        let [from_queries, from_keys, from_values] = self.inputs(row);
        with_scratch(2 * key, |scratch| {
            let (query, normed_key) = scratch.split_at_mut(key);
            self.normalise(from_queries, from_keys, query, normed_key);
            let inputs = DeltaRow {
                query,
                key: normed_key,
                value: from_values,
                decay,
                beta,
            };
            step(
                self.round.pool.isa(),
                self.places.shape,
                state,
                inputs,
                out.row(row),
            );
        });
        self.finish(row, out.row(row));
    }

    fn gather(&self, chunk: &mut Chunk<'_>, rows: Range<usize>) {
        chunk.clear();
        for row in rows {
            let (decay, beta) = self.rates(row);
            let [from_queries, from_keys, from_values] = self.inputs(row);
            let (query, key, value) = chunk.push(decay, beta);
            self.normalise(from_queries, from_keys, query, key);
            value.copy_from_slice(from_values);
        }
    }

    /// Decay and beta of a row.
    fn rates(&self, row: usize) -> (f32, f32) {
        let wide = &self.wide[row * self.places.width..][..self.places.width];
        (
            wide[self.places.decays + self.head],
            wide[self.places.betas + self.head],
        )
    }

    /// Query, key and value of a row, as convolved.
    fn inputs(&self, row: usize) -> [&[f32]; 3] {
        let (places, shape) = (self.places, self.places.shape);
        let row = &self.convolved[row * places.channels..][..places.channels];
        let key_head = self.head / places.ratio * shape.key;
        [
            &row[key_head..][..shape.key],
            &row[places.keys + key_head..][..shape.key],
            &row[places.values + self.head * shape.value..][..shape.value],
        ]
    }

    /// Query and key at length 1, the query times `1 / √K`.
    fn normalise(&self, from_query: &[f32], from_key: &[f32], query: &mut [f32], key: &mut [f32]) {
        let (pool, precision) = (self.round.pool, self.round.precision);
        l2_normalise(
            pool,
            precision,
            from_query,
            1.0 / (self.places.shape.key as f32).sqrt(),
            query,
        );
        l2_normalise(pool, precision, from_key, 1.0, key);
    }

    /// The gated norm of a row's output.
    fn finish(&self, row: usize, out: &mut [f32]) {
        let (places, value) = (self.places, self.places.shape.value);
        let z = &self.wide[row * places.width + places.channels + self.head * value..][..value];
        if self.round.precision.is_bf16() {
            gate::round_row(self.round.pool.isa(), out);
        }
        self.weights
            .norm
            .gated_row(self.round.pool, self.round.precision, out, z);
    }
}
