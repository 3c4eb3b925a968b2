//! Launches of `kernels/head.cu` and `kernels/head_sm90.cu`.

use super::{arguments, blocks, image, int, module, plain};
use crate::driver::{Block, Gpu, Kernel, TensorMap};
use crate::error::CudaError;

const THREADS: usize = 256;
/// Queries that [`HeadKernels::expand`] takes in one block.
const EXPANDED: usize = 2;
/// Threads of a block of [`HeadKernels::mix`]'s softmax.
const SOFT: usize = 1024;
/// Threads of a block of the kernel that expands queries.
const WIDE: usize = 1024;
/// Rows and columns of a tile of a linear map, and its values.
const LINEAR_TILE: usize = 32;
const TILE_VALUES: usize = LINEAR_TILE * LINEAR_TILE;
/// Most rows of a map that the kernel for few takes, and columns of its tiles.
const NARROW_ROWS: usize = 8;
const NARROW_TILE: usize = 8;
/// Most rows of a linear map whose K is split, since it has too few tiles to fill a device.
const SPLIT_ROWS: usize = 64;
/// Tiles that fill a device; the same for all, so that a head's bits are.
const FILLING_TILES: usize = 128;
/// Most splits of K of a linear map.
const SPLITS: usize = 4;
/// Queries whose pairs with heads are attended together.
pub(crate) const PAIR_QUERIES: usize = 32;
/// Keys of one partial sum of weighted memory rows.
const SPLIT_KEYS: usize = 1024;

/// Sizes that all launches of a head share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadSizes {
    /// H, and its rows as stored.
    pub(crate) hidden: usize,
    pub(crate) hidden_pitch: usize,
    /// W, and its rows as stored.
    pub(crate) width: usize,
    pub(crate) pitch: usize,
    pub(crate) heads: usize,
}

/// Two f16 parts of the same rows.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) high: Block<u16>,
    pub(crate) low: Block<u16>,
}

impl Parts {
    /// Some of the values, of both parts.
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Parts {
        Parts {
            high: self.high.part(range.clone()),
            low: self.low.part(range),
        }
    }
}

/// Hidden rows, dense.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows<'a> {
    Half(&'a Block<u16>),
    Single(&'a Block<f32>),
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Rows::Half(block) => block.len(),
            Rows::Single(block) => block.len(),
        }
    }

    fn address(&self) -> u64 {
        match self {
            Rows::Half(block) => block.address(),
            Rows::Single(block) => block.address(),
        }
    }

    /// The kernel for them, of one for bf16 and one for f32.
    fn pick(&self, kernels: [Kernel; 2]) -> Kernel {
        match self {
            Rows::Half(_) => kernels[0],
            Rows::Single(_) => kernels[1],
        }
    }
}

/// A linear map's weights, as the file has them.
#[derive(Clone, Debug)]
pub(crate) enum WeightBlock {
    /// bf16
    Half(Block<u16>),
    /// f32
    Single(Block<f32>),
}

impl WeightBlock {
    fn rows(&self) -> Rows<'_> {
        match self {
            WeightBlock::Half(block) => Rows::Half(block),
            WeightBlock::Single(block) => Rows::Single(block),
        }
    }

    /// Some of the values.
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> WeightBlock {
        match self {
            WeightBlock::Half(block) => WeightBlock::Half(block.part(range)),
            WeightBlock::Single(block) => WeightBlock::Single(block.part(range)),
        }
    }
}

/// A product of f32 accuracy: `out[split][m][n] = Σ a[m][k] b[n][k] · scale`.
#[derive(Clone, Copy)]
pub(crate) struct SplitProduct<'a> {
    /// `[m, a_pitch]`
    pub(crate) a: &'a Parts,
    pub(crate) a_pitch: usize,
    /// `[n, b_pitch]`; across: `[k, b_pitch]`.
    pub(crate) b: &'a Block<u16>,
    /// The low part; none if the high part is all.
    pub(crate) b_low: Option<&'a Block<u16>>,
    pub(crate) b_pitch: usize,
    pub(crate) across: bool,
    /// `[splits, m, out_pitch]`
    pub(crate) out: &'a Block<f32>,
    pub(crate) out_pitch: usize,
    pub(crate) scale: f32,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// K of a split: a multiple of 64.
    pub(crate) k_split: usize,
}

/// A linear map of few rows: see `Map` in the kernel.
#[derive(Clone, Copy)]
pub(crate) struct HeadMap<'a> {
    pub(crate) x: &'a Block<f64>,
    pub(crate) x_rows: Option<&'a Block<i32>>,
    /// Values from row to row of x; 0 for one row that serves all.
    pub(crate) x_pitch: usize,
    /// Values from the part of x of a group of columns to that of the next.
    pub(crate) x_group: usize,
    pub(crate) weight: &'a WeightBlock,
    pub(crate) bias: Option<&'a Block<f32>>,
    /// Added last; may be `out`.
    pub(crate) add: Option<&'a Block<f64>>,
    pub(crate) out: &'a Block<f64>,
    /// Of `out` and `add`.
    pub(crate) out_pitch: usize,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) groups: usize,
    pub(crate) gelu: bool,
}

impl HeadMap<'_> {
    /// # Panics
    /// If the map reaches beyond a block.
    fn check(&self) {
        let HeadMap {
            rows,
            inputs,
            outputs,
            groups,
            ..
        } = *self;
        assert!(rows > 0 && outputs.is_multiple_of(groups), "whole groups");
        let weights = outputs * inputs.next_multiple_of(32);
        assert!(weights <= self.weight.rows().len(), "all weights");
        let x_row = if self.x_rows.is_some() { 0 } else { rows - 1 };
        let x_end = x_row * self.x_pitch + (groups - 1) * self.x_group + inputs;
        assert!(
            x_end <= self.x.len() && self.x_rows.is_none_or(|list| rows <= list.len()),
            "all rows of x"
        );
        let out_end = (rows - 1) * self.out_pitch + outputs;
        assert!(
            out_end <= self.out.len() && self.add.is_none_or(|add| out_end <= add.len()),
            "all rows of out"
        );
        assert!(
            self.bias.is_none_or(|bias| outputs <= bias.len()),
            "a bias for each"
        );
    }

    /// As the kernel takes it.
    fn raw(&self, room: &Splits, k_split: usize) -> RawMap {
        RawMap {
            x: self.x.address(),
            x_rows: self.x_rows.map_or(0, Block::address),
            w: self.weight.rows().address(),
            bias: self.bias.map_or(0, Block::address),
            add: self.add.map_or(0, Block::address),
            out: self.out.address(),
            partial: room.partial.address(),
            tickets: room.tickets.address(),
            sizes: [
                self.x_pitch,
                self.x_group,
                self.inputs.next_multiple_of(32),
                self.out_pitch,
                self.rows,
                self.outputs,
                self.inputs,
                self.outputs / self.groups,
                usize::from(self.gelu),
                k_split,
            ]
            .map(int),
        }
    }
}

/// The kernel's `Map`.
#[repr(C)]
struct RawMap {
    x: u64,
    x_rows: u64,
    w: u64,
    bias: u64,
    add: u64,
    out: u64,
    partial: u64,
    tickets: u64,
    sizes: [i32; 10],
}

/// Room in which the splits of a linear map's K meet.
#[derive(Clone, Debug)]
pub(crate) struct Splits {
    /// `[SPLITS, tiles, TILE_VALUES]`
    pub(crate) partial: Block<f64>,
    /// Zero between maps.
    pub(crate) tickets: Block<i32>,
}

impl Splits {
    /// Tiles of a map of so many columns whose K is split.
    pub(crate) fn tiles(columns: usize) -> usize {
        columns.div_ceil(LINEAR_TILE) * SPLIT_ROWS / LINEAR_TILE
    }

    /// Partial sums of so many tiles.
    pub(crate) fn values(tiles: usize) -> usize {
        SPLITS * tiles * TILE_VALUES
    }
}

/// Attention of some queries over the memory rows, and room for what is in between.
#[derive(Clone, Copy)]
pub(crate) struct Mix<'a> {
    /// `[count, heads]` pairs: u, `[pairs, pitch]`.
    pub(crate) expanded: &'a Parts,
    pub(crate) scales: &'a Block<[f64; 2]>,
    /// `[pairs, row_pitch]`
    pub(crate) scores: &'a Block<f32>,
    /// `[pairs, row_pitch]`
    pub(crate) weights: &'a Parts,
    pub(crate) results: &'a Block<[f64; 2]>,
    /// `[splits, pairs, pitch]`
    pub(crate) partial: &'a Block<f32>,
    /// `[count, heads, pitch]`
    pub(crate) mixed: &'a Block<f64>,
    /// The memory's normal forms, `[rows, pitch]`, and their deviations and means.
    pub(crate) memory: &'a Parts,
    pub(crate) forms: &'a Block<[f32; 2]>,
    pub(crate) rows: usize,
    pub(crate) count: usize,
}

impl Mix<'_> {
    /// Values of a row of scores for so many keys.
    pub(crate) fn row_pitch(rows: usize) -> usize {
        rows.next_multiple_of(8)
    }

    /// Partial sums for so many keys.
    pub(crate) fn splits(rows: usize) -> usize {
        rows.div_ceil(SPLIT_KEYS)
    }
}

/// The kernels of the head.
#[derive(Debug)]
pub(crate) struct HeadKernels {
    /// One part of B, two, two across; of Hopper.
    hopper: Option<[Kernel; 3]>,
    portable: [Kernel; 3],
    /// Of at most 4096 values and of more, each for bf16 and for f32, as the next three.
    norm: [[Kernel; 2]; 2],
    spans: [Kernel; 2],
    linear: [Kernel; 2],
    linear_narrow: [Kernel; 2],
    expand: [Kernel; 2],
    memory: Kernel,
    means: Kernel,
    lexical: Kernel,
    prior: Kernel,
    layer_norm: Kernel,
    /// Of a normed memory and of one that is not.
    soften: [Kernel; 2],
    combine: Kernel,
    converse: Kernel,
    summary: Kernel,
    features: Kernel,
    logits: Kernel,
    sizes: HeadSizes,
}

impl HeadKernels {
    /// Loads the kernels for a head of these sizes; `portable` leaves out what only Hopper has.
    ///
    /// # Errors
    /// [`CudaError::TooOld`], or the driver's.
    pub(crate) fn load(
        gpu: &Gpu,
        sizes: HeadSizes,
        portable: bool,
    ) -> Result<HeadKernels, CudaError> {
        if gpu.capability() < (8, 0) {
            return Err(CudaError::TooOld {
                name: gpu.name().to_owned(),
                capability: gpu.capability(),
            });
        }
        let hopper = match gpu.capability() == (9, 0) && !portable {
            false => None,
            true => {
                let fast = module(gpu, "Hopper's head products", image!("head_sm90.fatbin"))?;
                // Three parts in four stages are four in three.
                let shared = 1024 + 12 * (128 * 64 * 2) + 64;
                let kernel = |name| fast.kernel(name, shared);
                Some([
                    kernel("split_nt_1")?,
                    kernel("split_nt_2")?,
                    kernel("split_across_2")?,
                ])
            }
        };
        let head = module(gpu, "the head's kernels", image!("head.fatbin"))?;
        let both = |names: [&'static str; 2], shared| -> Result<[Kernel; 2], CudaError> {
            Ok([
                head.kernel(names[0], shared)?,
                head.kernel(names[1], shared)?,
            ])
        };
        let expand = EXPANDED * (2 * sizes.width + sizes.width / sizes.heads) * size_of::<f64>();
        let linear = 8 * LINEAR_TILE * (LINEAR_TILE + 1) * size_of::<f64>();
        Ok(HeadKernels {
            hopper,
            portable: [
                plain(&head, "head_split_nt_1")?,
                plain(&head, "head_split_nt_2")?,
                plain(&head, "head_split_across_2")?,
            ],
            norm: [
                both(["head_norm_bf16", "head_norm_f32"], 0)?,
                both(["head_norm_bf16_wide", "head_norm_f32_wide"], 0)?,
            ],
            spans: both(["head_spans_bf16", "head_spans_f32"], 0)?,
            linear: both(["head_linear_bf16", "head_linear_f32"], linear)?,
            linear_narrow: both(["head_linear_narrow_bf16", "head_linear_narrow_f32"], 0)?,
            expand: both(["head_expand_bf16", "head_expand_f32"], expand)?,
            memory: plain(&head, "head_memory")?,
            means: plain(&head, "head_means")?,
            lexical: plain(&head, "head_lexical")?,
            prior: plain(&head, "head_prior")?,
            layer_norm: plain(&head, "head_layer_norm")?,
            soften: both(["head_soften_normed", "head_soften"], 0)?,
            combine: plain(&head, "head_combine")?,
            converse: plain(&head, "head_converse")?,
            summary: head.kernel("head_summary", sizes.width * size_of::<f64>())?,
            features: plain(&head, "head_features")?,
            logits: plain(&head, "head_logits")?,
            sizes,
        })
    }

    /// Normalises hidden rows into two parts, times a factor, with the (mean, 1 / deviation) of each.
    pub(crate) fn norm(
        &self,
        gpu: &Gpu,
        rows: Rows<'_>,
        [weight, bias]: [&Block<f32>; 2],
        out: &Parts,
        (factor, stats): (f32, &Block<[f64; 2]>),
    ) -> Result<(), CudaError> {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        let count = rows.len() / hidden;
        assert_eq!(rows.len(), count * hidden, "whole rows");
        assert!(
            count * hidden_pitch <= out.high.len().min(out.low.len())
                && count <= stats.len()
                && hidden <= weight.len().min(bias.len()),
            "all rows"
        );
        // SAFETY: the asserts bound all blocks by `count` rows.
        unsafe {
            gpu.launch(
                rows.pick(self.norm[usize::from(hidden > 4096)]),
                [count, 1, 1],
                THREADS,
                arguments![
                    rows.address(),
                    weight.address(),
                    bias.address(),
                    out.high.address(),
                    out.low.address(),
                    stats.address(),
                    factor,
                    int(hidden),
                    int(hidden_pitch)
                ],
            )
        }
    }

    /// Adds normalised rows to the sums of spans. A part is: span, first row, row after the last, unused; its caller bounds
    /// spans and rows.
    pub(crate) fn spans(
        &self,
        gpu: &Gpu,
        (rows, stats): (Rows<'_>, &Block<[f64; 2]>),
        [weight, bias]: [&Block<f32>; 2],
        parts: &Block<[i32; 4]>,
        sums: &Block<f64>,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        assert!(rows.len() / hidden <= stats.len(), "all rows");
        // SAFETY: parts name rows and spans that are there, as their caller says.
        unsafe {
            gpu.launch(
                rows.pick(self.spans),
                [parts.len(), hidden.div_ceil(THREADS), 1],
                THREADS,
                arguments![
                    rows.address(),
                    stats.address(),
                    weight.address(),
                    bias.address(),
                    parts.address(),
                    sums.address(),
                    int(hidden),
                    int(hidden_pitch)
                ],
            )
        }
    }

    /// Normal forms of `count` memory rows, `[count, pitch]`.
    pub(crate) fn memory(
        &self,
        gpu: &Gpu,
        rows: &Block<f32>,
        out: &Parts,
        forms: &Block<[f32; 2]>,
        count: usize,
    ) -> Result<(), CudaError> {
        let HeadSizes { width, pitch, .. } = self.sizes;
        assert!(
            count * pitch <= rows.len().min(out.high.len()).min(out.low.len())
                && count <= forms.len(),
            "all rows"
        );
        // SAFETY: the assert bounds all blocks by `count` rows.
        unsafe {
            gpu.launch(
                self.memory,
                [count, 1, 1],
                THREADS,
                arguments![
                    rows.address(),
                    out.high.address(),
                    out.low.address(),
                    forms.address(),
                    int(width),
                    int(pitch)
                ],
            )
        }
    }

    /// Divides the sums of spans by their numbers of rows.
    pub(crate) fn means(
        &self,
        gpu: &Gpu,
        sums: &Block<f64>,
        rows: &Block<i32>,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        assert!(rows.len() * hidden_pitch <= sums.len(), "all spans");
        // SAFETY: the assert bounds the sums by the spans.
        unsafe {
            gpu.launch(
                self.means,
                [rows.len(), hidden.div_ceil(THREADS), 1],
                THREADS,
                arguments![
                    sums.address(),
                    rows.address(),
                    int(hidden),
                    int(hidden_pitch)
                ],
            )
        }
    }

    /// Means of a table's rows of each option's tokens. The ids lie below the table's rows and the starts, one more than
    /// options, in the ids, as their caller says.
    pub(crate) fn lexical(
        &self,
        gpu: &Gpu,
        table: &Block<u16>,
        [ids, starts]: [&Block<i32>; 2],
        out: &Block<f64>,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        let options = starts.len() - 1;
        assert!(options * hidden_pitch <= out.len(), "all options");
        // SAFETY: `out` has a row for each option; the lists are the caller's.
        unsafe {
            gpu.launch(
                self.lexical,
                [options, hidden.div_ceil(THREADS), 1],
                THREADS,
                arguments![
                    table.address(),
                    ids.address(),
                    starts.address(),
                    out.address(),
                    int(hidden),
                    int(hidden_pitch)
                ],
            )
        }
    }

    /// `scale · unit(x) · unit(q + g)` of options.
    pub(crate) fn prior(
        &self,
        gpu: &Gpu,
        [x, questions, last]: [&Block<f64>; 3],
        question_of: &Block<i32>,
        out: &Block<f64>,
        scale: f64,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        let options = question_of.len();
        assert!(
            options * hidden_pitch <= x.len() && options <= out.len() && hidden <= last.len(),
            "all options"
        );
        // SAFETY: the assert bounds the options' blocks; `question_of` names rows of `questions`, as its maker says.
        unsafe {
            gpu.launch(
                self.prior,
                [options, 1, 1],
                THREADS,
                arguments![
                    x.address(),
                    questions.address(),
                    question_of.address(),
                    last.address(),
                    out.address(),
                    int(hidden),
                    int(hidden_pitch),
                    scale
                ],
            )
        }
    }

    /// A linear map of few rows.
    pub(crate) fn linear(
        &self,
        gpu: &Gpu,
        map: HeadMap<'_>,
        room: &Splits,
    ) -> Result<(), CudaError> {
        map.check();
        let narrow = map.rows <= NARROW_ROWS;
        let tile = if narrow { NARROW_TILE } else { LINEAR_TILE };
        let tiles = map.groups * (map.outputs / map.groups).div_ceil(tile);
        let row_tiles = map.rows.div_ceil(LINEAR_TILE);
        // Where there are many rows or many columns, tiles alone fill a device.
        let wanted = match map.rows <= SPLIT_ROWS && !narrow {
            true => (FILLING_TILES / tiles).clamp(1, SPLITS),
            false => 1,
        };
        let k_split = map.inputs.div_ceil(wanted).next_multiple_of(256);
        let splits = map.inputs.div_ceil(k_split);
        assert!(
            splits == 1
                || splits * tiles * row_tiles * TILE_VALUES <= room.partial.len()
                    && tiles * row_tiles <= room.tickets.len(),
            "room for all splits"
        );
        let kernels = if narrow {
            self.linear_narrow
        } else {
            self.linear
        };
        // SAFETY: `check` bounds the map's blocks, the assert those of `room`; `x_rows` names rows of x, as its maker says.
        unsafe {
            gpu.launch(
                map.weight.rows().pick(kernels),
                [tiles, row_tiles, splits],
                THREADS,
                arguments![map.raw(room, k_split)],
            )
        }
    }

    /// LayerNorm of few rows, `[count, pitch]`.
    pub(crate) fn layer_norm(
        &self,
        gpu: &Gpu,
        x: &Block<f64>,
        [weight, bias]: [&Block<f32>; 2],
        out: &Block<f64>,
        count: usize,
    ) -> Result<(), CudaError> {
        let HeadSizes { width, pitch, .. } = self.sizes;
        assert!(count * pitch <= x.len().min(out.len()), "all rows");
        // SAFETY: the assert bounds both blocks by `count` rows.
        unsafe {
            gpu.launch(
                self.layer_norm,
                [count, 1, 1],
                THREADS,
                arguments![
                    x.address(),
                    weight.address(),
                    bias.address(),
                    out.address(),
                    int(width),
                    int(pitch)
                ],
            )
        }
    }

    /// u of projected queries, `[count, q_pitch]`: the first step of attention over the memory. `norm` is the weight of the
    /// memory's norm, if it is normed.
    pub(crate) fn expand(
        &self,
        gpu: &Gpu,
        (queries, q_pitch): (&Block<f64>, usize),
        keys: &WeightBlock,
        norm: Option<&Block<f32>>,
        mix: &Mix<'_>,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            width,
            pitch,
            heads,
            ..
        } = self.sizes;
        let (expanded, pairs) = (mix.expanded, mix.count * heads);
        let (keys, w_pitch) = (keys.rows(), width.next_multiple_of(32));
        assert!(
            (mix.count - 1) * q_pitch + width <= queries.len() && width * w_pitch <= keys.len(),
            "all queries and weights"
        );
        assert!(
            pairs * pitch <= expanded.high.len().min(expanded.low.len())
                && pairs <= mix.scales.len(),
            "room for all pairs"
        );
        let scale = std::f64::consts::LOG2_E / ((width / heads) as f64).sqrt();
        // SAFETY: the asserts bound all blocks.
        unsafe {
            gpu.launch(
                keys.pick(self.expand),
                [heads, mix.count.div_ceil(EXPANDED), 1],
                WIDE,
                arguments![
                    queries.address(),
                    keys.address(),
                    norm.map_or(0, Block::address),
                    expanded.high.address(),
                    expanded.low.address(),
                    mix.scales.address(),
                    int(mix.count),
                    int(q_pitch),
                    int(heads),
                    int(width),
                    int(w_pitch),
                    int(pitch),
                    scale
                ],
            )
        }
    }

    /// The raw scores of all pairs and memory rows.
    pub(crate) fn scores(&self, gpu: &Gpu, mix: &Mix<'_>) -> Result<(), CudaError> {
        let HeadSizes { pitch, heads, .. } = self.sizes;
        let product = SplitProduct {
            a: mix.expanded,
            a_pitch: pitch,
            b: &mix.memory.high,
            b_low: Some(&mix.memory.low),
            b_pitch: pitch,
            across: false,
            out: mix.scores,
            out_pitch: Mix::row_pitch(mix.rows),
            scale: 1.0,
            m: mix.count * heads,
            n: mix.rows,
            k: pitch,
            k_split: pitch.next_multiple_of(64),
        };
        self.product(gpu, product)
    }

    /// The softmax of all pairs over the memory rows, which are normed or not.
    pub(crate) fn soften(
        &self,
        gpu: &Gpu,
        mix: &Mix<'_>,
        is_normed: bool,
    ) -> Result<(), CudaError> {
        let (pairs, row_pitch) = (mix.count * self.sizes.heads, Mix::row_pitch(mix.rows));
        let Mix {
            scores, weights, ..
        } = mix;
        assert!(
            pairs <= mix.scales.len().min(mix.results.len())
                && pairs * row_pitch <= scores.len().min(weights.high.len()).min(weights.low.len())
                && mix.rows <= mix.forms.len(),
            "all pairs and rows"
        );
        // SAFETY: the assert bounds all blocks.
        unsafe {
            gpu.launch(
                self.soften[usize::from(!is_normed)],
                [pairs, 1, 1],
                SOFT,
                arguments![
                    scores.address(),
                    mix.scales.address(),
                    mix.forms.address(),
                    weights.high.address(),
                    weights.low.address(),
                    mix.results.address(),
                    int(mix.rows),
                    int(row_pitch)
                ],
            )
        }
    }

    /// Partial sums of weighted memory rows.
    pub(crate) fn weigh(&self, gpu: &Gpu, mix: &Mix<'_>) -> Result<(), CudaError> {
        let HeadSizes { pitch, heads, .. } = self.sizes;
        let product = SplitProduct {
            a: mix.weights,
            a_pitch: Mix::row_pitch(mix.rows),
            b: &mix.memory.high,
            b_low: Some(&mix.memory.low),
            b_pitch: pitch,
            across: true,
            out: mix.partial,
            out_pitch: pitch,
            scale: 1.0,
            m: mix.count * heads,
            n: pitch,
            k: mix.rows,
            k_split: SPLIT_KEYS,
        };
        self.product(gpu, product)
    }

    /// The mixed memory rows of all pairs, in `mix.mixed`; `norm` is the memory's, if it is normed.
    pub(crate) fn combine(
        &self,
        gpu: &Gpu,
        mix: &Mix<'_>,
        norm: Option<[&Block<f32>; 2]>,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            width,
            pitch,
            heads,
            ..
        } = self.sizes;
        let (pairs, splits) = (mix.count * heads, Mix::splits(mix.rows));
        assert!(
            splits * pairs * pitch <= mix.partial.len()
                && pairs * pitch <= mix.mixed.len()
                && pairs <= mix.results.len(),
            "all pairs"
        );
        let (weight, bias) =
            norm.map_or((0, 0), |[weight, bias]| (weight.address(), bias.address()));
        // SAFETY: the assert bounds all blocks.
        unsafe {
            gpu.launch(
                self.combine,
                [pairs, 1, 1],
                THREADS,
                arguments![
                    mix.partial.address(),
                    mix.results.address(),
                    weight,
                    bias,
                    mix.mixed.address(),
                    int(splits),
                    int(width),
                    int(pitch)
                ],
            )
        }
    }

    /// Attention of rows over one another: `qkv` `[count, 3 · pitch]` to `out` `[count, pitch]`.
    pub(crate) fn converse(
        &self,
        gpu: &Gpu,
        qkv: &Block<f64>,
        out: &Block<f64>,
        count: usize,
    ) -> Result<(), CudaError> {
        let HeadSizes {
            width,
            pitch,
            heads,
            ..
        } = self.sizes;
        assert!(
            count * 3 * pitch <= qkv.len() && count * pitch <= out.len(),
            "all rows"
        );
        let scale = 1.0 / ((width / heads) as f64).sqrt();
        // SAFETY: the assert bounds both blocks by `count` rows.
        unsafe {
            gpu.launch(
                self.converse,
                [heads, count, 1],
                THREADS,
                arguments![
                    qkv.address(),
                    out.address(),
                    int(count),
                    int(heads),
                    int(width),
                    int(3 * pitch),
                    int(pitch),
                    scale
                ],
            )
        }
    }

    /// `f = b + norm(s) + type` of questions, where b lies in `f`. A question is: first option, options, kind, unused; its
    /// maker bounds them.
    pub(crate) fn summary(
        &self,
        gpu: &Gpu,
        (options, questions): (&Block<f64>, &Block<[i32; 4]>),
        [weight, bias, types]: [&Block<f32>; 3],
        scores: &Block<f64>,
        f: &Block<f64>,
    ) -> Result<(), CudaError> {
        let HeadSizes { width, pitch, .. } = self.sizes;
        assert!(questions.len() * pitch <= f.len(), "all questions");
        // SAFETY: `f` has a row for each question; options lie in their blocks, as the list's maker says.
        unsafe {
            gpu.launch(
                self.summary,
                [questions.len(), 1, 1],
                THREADS,
                arguments![
                    options.address(),
                    questions.address(),
                    weight.address(),
                    bias.address(),
                    types.address(),
                    scores.address(),
                    f.address(),
                    int(width),
                    int(pitch)
                ],
            )
        }
    }

    /// `[f, o, f∘o, |f − o|]` of options, `[options, 4 · pitch]`, and their cosines.
    pub(crate) fn features(
        &self,
        gpu: &Gpu,
        [options, fields]: [&Block<f64>; 2],
        question_of: &Block<i32>,
        [features, cosines]: [&Block<f64>; 2],
    ) -> Result<(), CudaError> {
        let HeadSizes { width, pitch, .. } = self.sizes;
        let count = question_of.len();
        assert!(
            count * pitch <= options.len()
                && count * 4 * pitch <= features.len()
                && count <= cosines.len(),
            "all options"
        );
        // SAFETY: the assert bounds the options' blocks; `question_of` names rows of `fields`, as its maker says.
        unsafe {
            gpu.launch(
                self.features,
                [count, 1, 1],
                THREADS,
                arguments![
                    options.address(),
                    fields.address(),
                    question_of.address(),
                    features.address(),
                    cosines.address(),
                    int(width),
                    int(pitch)
                ],
            )
        }
    }

    /// `prior + gate (joint cos + residual)`.
    pub(crate) fn logits(
        &self,
        gpu: &Gpu,
        [priors, cosines, residuals]: [&Block<f64>; 3],
        residual_pitch: usize,
        out: &Block<f32>,
        [gate, joint]: [f64; 2],
    ) -> Result<(), CudaError> {
        let count = out.len();
        assert!(
            count <= priors.len().min(cosines.len()) && count * residual_pitch <= residuals.len(),
            "all options"
        );
        // SAFETY: the assert bounds all blocks by `count` options.
        unsafe {
            gpu.launch(
                self.logits,
                blocks(count, THREADS),
                THREADS,
                arguments![
                    priors.address(),
                    cosines.address(),
                    residuals.address(),
                    out.address(),
                    int(count),
                    int(residual_pitch),
                    gate,
                    joint
                ],
            )
        }
    }

    /// A product of f32 accuracy.
    pub(crate) fn product(&self, gpu: &Gpu, product: SplitProduct<'_>) -> Result<(), CudaError> {
        product.check();
        // One part of b, two, two across.
        let kernel = usize::from(product.b_low.is_some()) + usize::from(product.across);
        match &self.hopper {
            Some(kernels) => product.run_hopper(gpu, kernels[kernel]),
            None => product.run_portable(gpu, self.portable[kernel]),
        }
    }
}

impl SplitProduct<'_> {
    /// # Panics
    /// If the product reaches beyond a block.
    fn check(&self) {
        let SplitProduct {
            a,
            a_pitch,
            b_pitch,
            across,
            out_pitch,
            m,
            n,
            k,
            ..
        } = *self;
        let low = self.b_low.unwrap_or(self.b);
        assert!(
            a_pitch.is_multiple_of(8) && b_pitch.is_multiple_of(8) && out_pitch.is_multiple_of(2),
            "rows at multiples of 16 bytes"
        );
        let b_width = if across { n } else { k };
        assert!(
            self.k_split.is_multiple_of(64) && k <= a_pitch && b_width <= b_pitch && n <= out_pitch,
            "whole rows"
        );
        assert!(
            self.b_low.is_some() || !across,
            "across there are two parts"
        );
        assert!(m * a_pitch <= a.high.len().min(a.low.len()), "all of a");
        let b_rows = if across { k } else { n };
        assert!(b_rows * b_pitch <= self.b.len().min(low.len()), "all of b");
        let splits = k.div_ceil(self.k_split);
        assert!(splits * m * out_pitch <= self.out.len(), "all of out");
    }

    fn run_hopper(&self, gpu: &Gpu, kernel: Kernel) -> Result<(), CudaError> {
        let SplitProduct { a, b, m, n, k, .. } = *self;
        let map = |block, rows, pitch, box_rows| {
            TensorMap::new(block, [rows, pitch, pitch], [box_rows, 64])
        };
        let (b_rows, b_box) = if self.across { (k, 64) } else { (n, 128) };
        let (tiles_m, tiles_n) = (m.div_ceil(128), n.div_ceil(128));
        // Tiles that share the larger operand run side by side.
        let rows_first = n > m;
        let (x, y) = match rows_first {
            true => (tiles_m, tiles_n),
            false => (tiles_n, tiles_m),
        };
        // SAFETY: the copy engine stays inside the maps, stores stay inside `out`, by `check`.
        unsafe {
            gpu.launch(
                kernel,
                [x, y, k.div_ceil(self.k_split)],
                384,
                arguments![
                    map(&a.high, m, self.a_pitch, 128)?,
                    map(&a.low, m, self.a_pitch, 128)?,
                    map(b, b_rows, self.b_pitch, b_box)?,
                    map(self.b_low.unwrap_or(b), b_rows, self.b_pitch, b_box)?,
                    self.out.address(),
                    self.scale,
                    int(m),
                    int(n),
                    int(k),
                    int(self.k_split),
                    int(self.out_pitch),
                    i32::from(rows_first)
                ],
            )
        }
    }

    fn run_portable(&self, gpu: &Gpu, kernel: Kernel) -> Result<(), CudaError> {
        let SplitProduct { a, b, m, n, k, .. } = *self;
        // SAFETY: `check` bounds all blocks.
        unsafe {
            gpu.launch(
                kernel,
                [n.div_ceil(64), m.div_ceil(64), k.div_ceil(self.k_split)],
                128,
                arguments![
                    a.high.address(),
                    a.low.address(),
                    b.address(),
                    self.b_low.unwrap_or(b).address(),
                    self.out.address(),
                    self.scale,
                    int(m),
                    int(n),
                    int(k),
                    int(self.k_split),
                    int(self.a_pitch),
                    int(self.b_pitch),
                    int(self.out_pitch)
                ],
            )
        }
    }
}
