//! Linear maps: `y = x · Wᵀ + bias`, row by row, with weights packed once.
//!
//! Shapes: `x` `[rows, K]` f32; `W` `[N, K]` as stored; `bias` `[N]` f32; `y` `[rows, N]` f32.
//! Precision: weights bf16 (f32 where bf16 would not be exact), activations f32, or rounded to bf16 on the way in; sums f32.
//! Sum order: one chain of fused multiply-adds from k = 0 up, then the bias; in the bf16 form the odd term of each pair
//! (k, k + 1) comes before the even one, as in the hardware's bf16 dot product.
//! Cost: 2 · rows · N · K operations; from about 8 rows down bound by the 2 · N · K bytes of weights.
//!
//! The hardware's dot product takes subnormal numbers for zero, which other instructions do not. They cannot occur: in the
//! bf16 form activations below 2⁻⁶² and weights below 2⁻⁴⁹ are taken for zero everywhere. A bf16 value of at least 2⁻ᵉ is
//! a multiple of 2⁻ᵉ⁻⁷, so every product is a multiple of 2⁻¹²⁵, and so is every rounded partial sum: it is zero or
//! normal.

use descant_release::{LoadError, Tensor};

use crate::arch::{
    Arena, Block, Isa, LANES, LinearRight, Pairs, Pool, Right, TILE_ROWS, Tile, Tiles, linear_tile,
    matmul, widen, with_scratch,
};

mod double;
use crate::ops::{Precision, gate};

mod mapped;
mod pack;
mod rows;

pub(crate) use mapped::forward_mapped;
pub(crate) use pack::{Form, Source, exact_form};
use rows::{Order, Rows};

/// A linear map with packed weights.
#[derive(Debug)]
pub struct Linear {
    outputs: usize,
    inputs: usize,
    weights: Weights,
    bias: Option<Vec<f32>>,
}

/// Weights in panels of sixteen outputs; outputs past the last are zero.
#[derive(Debug)]
enum Weights {
    /// `[panels][K / 2, rounded up][16]`: values k (low half) and k + 1 of an output.
    Pairs(Block<u32>),
    /// `[panels][K][16]`.
    Floats(Block<f32>),
}

/// How activations enter a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activations {
    Bf16,
    F32,
}

/// Terms that a tile of packed rows walks before the next tile: sixteen outputs' weights of them fit the first-level cache
/// as f32.
const STRETCH: usize = 256;
/// Terms of a stretch of bf16 dot products: pairs are half as large, and fetching the weights anew from the second-level
/// cache costs less than fetching the sums from further away.
const STRETCH_DOTS: usize = 4096;
/// Terms of a stretch where few rows are read in place.
const STRETCH_FEW: usize = 2048;
/// Rows packed together: with a stretch of terms they fit the second-level cache.
const BLOCK_ROWS: usize = 40 * TILE_ROWS;
/// Columns of a task at most: the sums of a task's rows stay in the caches.
const TASK_COLUMNS: usize = 1024;
/// The same for bf16 dot products, whose sums are fetched once in [`STRETCH_DOTS`] terms.
const TASK_COLUMNS_DOTS: usize = 2048;
/// Columns whose sums take about as long as packing a task's rows does.
const PACKING_COLUMNS: usize = 48;
/// Panels that the widest tile takes together.
const PANELS_TOGETHER: usize = 4;
/// Tasks of a thread in one product, where there are several threads: late threads leave the rest to the others.
const TASKS_OF_A_THREAD: usize = 4;

impl Linear {
    /// Packs the rows of one or more `[N, K]` tensors, one below the other, into memory of its own. They are kept as bf16
    /// if every value is one, else as f32.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if there is no memory.
    ///
    /// # Panics
    /// If there is no tensor, they differ in K, or one has not two dimensions or a dtype that is none of weights.
    pub fn pack(pool: &Pool, tensors: &[Tensor<'_>]) -> Result<Linear, LoadError> {
        let source = Source::new(tensors);
        let form = exact_form(pool, &source);
        let mut arena = Arena::new(
            &source.name(),
            Linear::bytes(form, source.outputs(), source.inputs()),
        )?;
        Ok(Linear::pack_into(pool, &mut arena, &source, form))
    }

    /// As [`Linear::pack`], with a bias for each output.
    ///
    /// # Errors
    /// As [`Linear::pack`], and if the bias cannot be read.
    ///
    /// # Panics
    /// As [`Linear::pack`], and if the bias has another length.
    pub fn pack_with_bias(
        pool: &Pool,
        tensors: &[Tensor<'_>],
        bias: &Tensor<'_>,
    ) -> Result<Linear, LoadError> {
        let mut linear = Linear::pack(pool, tensors)?;
        let bias = bias.to_f32()?;
        assert_eq!(bias.len(), linear.outputs, "a bias for each output");
        linear.bias = Some(bias);
        Ok(linear)
    }

    /// Bytes of packed weights in an arena.
    pub(crate) fn bytes(form: Form, outputs: usize, inputs: usize) -> usize {
        let panels = outputs.div_ceil(LANES);
        match form {
            Form::Floats => Arena::bytes_for::<f32>(panels * inputs * LANES),
            Form::Pairs | Form::PairsFlushed => {
                Arena::bytes_for::<u32>(panels * inputs.div_ceil(2) * LANES)
            }
        }
    }

    /// Packs into an arena, straight from the tensors' bytes.
    pub(crate) fn pack_into(
        pool: &Pool,
        arena: &mut Arena,
        source: &Source<'_>,
        form: Form,
    ) -> Linear {
        let (outputs, inputs) = (source.outputs(), source.inputs());
        let panels = outputs.div_ceil(LANES);
        let weights = match form {
            Form::Floats => {
                let mut block = arena.take(panels * inputs * LANES);
                pack::floats(pool, source, &mut block);
                Weights::Floats(block)
            }
            Form::Pairs | Form::PairsFlushed => {
                let mut block = arena.take(panels * inputs.div_ceil(2) * LANES);
                pack::pairs(pool, source, form == Form::PairsFlushed, &mut block);
                Weights::Pairs(block)
            }
        };
        Linear {
            outputs,
            inputs,
            weights,
            bias: None,
        }
    }

    /// Outputs, N.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs, K.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// `out = x · Wᵀ + bias` with f32 activations: `x` `[rows, K]`, `out` `[rows, N]`.
    ///
    /// # Panics
    /// If `x` or `out` has another length.
    pub fn forward_f32(&self, pool: &Pool, x: &[f32], rows: usize, out: &mut [f32]) {
        self.forward(pool, Activations::F32, x, rows, out);
    }

    /// As [`Linear::forward_f32`], with activations rounded to bf16 (ties to even). The outputs are not rounded.
    ///
    /// # Panics
    /// As [`Linear::forward_f32`], and if the weights are not bf16.
    pub fn forward_bf16(&self, pool: &Pool, x: &[f32], rows: usize, out: &mut [f32]) {
        assert!(
            matches!(self.weights, Weights::Pairs(_)),
            "the bf16 form needs bf16 weights"
        );
        self.forward(pool, Activations::Bf16, x, rows, out);
    }

    /// As the precision asks: in bf16 the activations are rounded, and so are the outputs.
    pub(crate) fn run(
        &self,
        pool: &Pool,
        precision: Precision,
        x: &[f32],
        rows: usize,
        out: &mut [f32],
    ) {
        match precision {
            Precision::Bf16 => {
                self.forward_bf16(pool, x, rows, out);
                gate::round(pool, out);
            }
            Precision::F32 => self.forward_f32(pool, x, rows, out),
        }
    }

    fn forward(
        &self,
        pool: &Pool,
        activations: Activations,
        x: &[f32],
        rows: usize,
        out: &mut [f32],
    ) {
        assert_eq!(x.len(), rows * self.inputs, "x is [rows, K]");
        assert_eq!(out.len(), rows * self.outputs, "out is [rows, N]");
        if rows == 0 || self.outputs == 0 {
            return;
        }
        let most = match Order::of(pool.isa(), activations) {
            Order::Dots => TASK_COLUMNS_DOTS,
            Order::OddFirst | Order::Rising => TASK_COLUMNS,
        };
        let columns = columns_of_a_task(pool.threads(), rows, self.outputs, most);
        let tiles = Tiles::even(out, self.outputs, rows_of_a_task(rows), columns);
        pool.split(&tiles, |_, mut tile| {
            let x = &x[tile.rows().start * self.inputs..tile.rows().end * self.inputs];
            self.tile(pool.isa(), activations, x, &mut tile);
            self.add_bias(&mut tile);
        });
    }

    /// Fills a tile from the rows of `x` that belong to it, stretch by stretch.
    fn tile(&self, isa: Isa, activations: Activations, x: &[f32], tile: &mut Tile<'_>) {
        let whole = Rows {
            x,
            count: tile.rows().len(),
            width: self.inputs,
            range: 0..self.inputs,
        };
        let order = Order::of(isa, activations);
        if self.widens_first(isa, activations, &whole) {
            return self.tall_tile(isa, order, &whole, tile);
        }
        let stretch = match order {
            _ if whole.are_few() => STRETCH_FEW,
            Order::Dots => STRETCH_DOTS,
            Order::OddFirst | Order::Rising => STRETCH,
        };
        let terms = stretch.min(self.inputs.next_multiple_of(2));
        with_scratch(whole.packed_len(order, terms), |packed| {
            for start in (0..self.inputs).step_by(stretch) {
                let range = start..(start + stretch).min(self.inputs);
                let rows = Rows {
                    range,
                    ..whole.clone()
                };
                self.stretch(isa, activations, &rows, packed, tile);
            }
        });
    }

    /// Adds the terms of one stretch to a tile.
    fn stretch(
        &self,
        isa: Isa,
        activations: Activations,
        rows: &Rows<'_>,
        packed: &mut [f32],
        tile: &mut Tile<'_>,
    ) {
        let (start, more) = (rows.range.start, rows.range.start > 0);
        let panel = tile.columns().start / LANES;
        match &self.weights {
            Weights::Floats(weights) => {
                let panel_stride = self.inputs * LANES;
                let data = &weights[panel * panel_stride + start * LANES..];
                let right = LinearRight::Floats(Right {
                    data,
                    k_stride: LANES,
                    panel_stride,
                });
                let left = rows.left(isa, Order::Rising, packed);
                linear_tile(isa, rows.range.len(), left, right, tile, more);
            }
            Weights::Pairs(weights) => {
                let panel_stride = self.inputs.div_ceil(2) * LANES;
                let data = &weights[panel * panel_stride + start / 2 * LANES..];
                let pairs = Pairs { data, panel_stride };
                let terms = rows.range.len().next_multiple_of(2);
                let order = Order::of(isa, activations);
                let left = rows.left(isa, order, packed);
                linear_tile(isa, terms, left, order.right(pairs), tile, more);
            }
        }
    }

    /// Whether a tile's weights are widened to f32 before they are used, which pays where many rows use them.
    fn widens_first(&self, isa: Isa, activations: Activations, rows: &Rows<'_>) -> bool {
        let dots = Order::of(isa, activations) == Order::Dots;
        matches!(self.weights, Weights::Pairs(_)) && isa.widens_first() && !dots && !rows.are_few()
    }

    /// Fills a tile of many rows: a stretch of the rows is packed once, and each panel of it widened once. The sums of a
    /// panel lie together until the last stretch: as columns of the output they would be on a page each.
    fn tall_tile(&self, isa: Isa, order: Order, whole: &Rows<'_>, tile: &mut Tile<'_>) {
        let Weights::Pairs(weights) = &self.weights else {
            unreachable!("only pairs are widened");
        };
        let (first, panels) = (
            tile.columns().start / LANES,
            tile.columns().len().div_ceil(LANES),
        );
        let panel_sums = whole.count * LANES;
        let panel_stride = self.inputs.div_ceil(2) * LANES;
        let packed = whole.packed_len(order, STRETCH);
        with_scratch(packed + STRETCH * LANES + panels * panel_sums, |scratch| {
            let (packed, scratch) = scratch.split_at_mut(packed);
            let (widened, sums) = scratch.split_at_mut(STRETCH * LANES);
            for start in (0..self.inputs).step_by(STRETCH) {
                let rows = Rows {
                    range: start..(start + STRETCH).min(self.inputs),
                    ..whole.clone()
                };
                let terms = rows.range.len().next_multiple_of(2);
                let left = rows.left(isa, order, &mut packed[..whole.packed_len(order, terms)]);
                for (panel, sums) in sums.chunks_exact_mut(panel_sums).enumerate() {
                    let from = (first + panel) * panel_stride + start / 2 * LANES;
                    let pairs = &weights[from..from + terms / 2 * LANES];
                    widen(isa, pairs, order == Order::OddFirst, widened);
                    let right = Right {
                        data: widened,
                        k_stride: LANES,
                        panel_stride: 0,
                    };
                    matmul(isa, terms, left, right, (sums, LANES, LANES), start > 0);
                }
            }
            for (index, row) in tile.rows().enumerate() {
                let panels = sums.chunks_exact(panel_sums);
                for (out, sums) in tile.row(row).chunks_mut(LANES).zip(panels) {
                    out.copy_from_slice(&sums[index * LANES..][..out.len()]);
                }
            }
        });
    }

    fn add_bias(&self, tile: &mut Tile<'_>) {
        let Some(bias) = &self.bias else { return };
        let bias = &bias[tile.columns()];
        for row in tile.rows() {
            tile.row(row)
                .iter_mut()
                .zip(bias)
                .for_each(|(out, bias)| *out += bias);
        }
    }
}

/// Rows of a task: near [`BLOCK_ROWS`], even, whole groups.
fn rows_of_a_task(rows: usize) -> usize {
    if rows <= BLOCK_ROWS {
        return rows;
    }
    rows.div_ceil(rows.div_ceil(BLOCK_ROWS))
        .next_multiple_of(TILE_ROWS)
}

/// Columns of a task, `most` at most and whole panels: each thread gets a few tasks, and the threads end together.
fn columns_of_a_task(threads: usize, rows: usize, outputs: usize, most: usize) -> usize {
    let blocks = rows.div_ceil(rows_of_a_task(rows));
    let columns = |tasks: usize| {
        let columns = outputs.div_ceil(tasks);
        columns.next_multiple_of(PANELS_TOGETHER * LANES).min(most)
    };
    if threads == 1 {
        return columns(1);
    }
    // How long the thread with the most tasks works, in columns; each task packs its rows anew.
    let longest = |tasks: &usize| {
        let columns = columns(*tasks);
        (blocks * outputs.div_ceil(columns)).div_ceil(threads) * (columns + PACKING_COLUMNS)
    };
    let fewest = (threads * TASKS_OF_A_THREAD).div_ceil(blocks);
    let tasks = (fewest..=2 * fewest).min_by_key(longest);
    columns(tasks.unwrap_or(fewest))
}

/// Most scratch values of a task, for maps of at most `inputs` inputs.
pub(crate) fn scratch_len(inputs: usize) -> usize {
    let terms = inputs.next_multiple_of(2);
    let many = STRETCH * (BLOCK_ROWS + LANES) + BLOCK_ROWS * TASK_COLUMNS;
    let dots = STRETCH_DOTS + BLOCK_ROWS * (STRETCH_DOTS / 2 + LANES);
    let few = STRETCH_FEW * (12 + LANES + 1);
    // A mapped map packs all terms of a panel and of few rows.
    many.max(dots).max(few).max(terms * (12 + LANES + 2))
}
