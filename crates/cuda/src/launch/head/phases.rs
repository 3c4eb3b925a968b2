//! The list of phases that `kernels/head_finish.cu` goes through: a function for each kind, which bounds what it reaches.

use super::{HeadSizes, Mix, Rows, WeightBlock};
use crate::driver::{Block, Plain};
use crate::launch::int;

/// Rows and columns of a tile of a linear map, and the values of its sums and of its rows' moments.
const TILE: usize = 32;
const TILE_VALUES: usize = TILE * TILE + 2 * TILE;
/// Most rows of a map whose tiles have 8 rows, and 16 or 32 columns.
const NARROW_ROWS: usize = 8;
/// Most rows of a linear map whose K is split, since it has too few tiles to fill a device.
const SPLIT_ROWS: usize = 64;
/// Least K of a narrow map that is split.
const NARROW_SPLIT: usize = 4096;
/// Tiles that fill a device; the same for all, so that a head's bits are.
const FILLING_TILES: usize = 128;
/// Most splits of K of a linear map.
const SPLITS: usize = 4;
/// Queries that are expanded by one block, if there are so many that blocks are full.
const EXPANDED: usize = 2;
/// Pairs and columns that one block combines.
const COMBINED: [usize; 2] = [8, 256];
/// Shared memory of the kernel: sums of a linear map's warps, and its rows' moments.
pub(super) const SHARED: usize = 8 * TILE * (TILE + 2 + 2) * size_of::<f64>();

/// A linear map of few rows: see `Map` in the kernel.
#[derive(Clone, Copy)]
pub(crate) struct HeadMap<'a> {
    pub(crate) x: &'a Block<f64>,
    pub(crate) x_rows: Option<&'a Block<i32>>,
    /// Values from row to row of x.
    pub(crate) x_pitch: usize,
    /// Values from the part of x of a group of columns to that of the next.
    pub(crate) x_group: usize,
    pub(crate) weight: &'a WeightBlock,
    /// The weight of a norm that x goes through first, and `[2, outputs]`: what a mean and what the norm's bias, with the map's
    /// own, add up to.
    pub(crate) norm: Option<(&'a Block<f32>, &'a Block<f64>)>,
    /// Not taken if there is a norm.
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
        assert!(
            self.norm.is_none_or(
                |(weight, folded)| inputs <= weight.len() && 2 * outputs <= folded.len()
            ),
            "a norm for each"
        );
    }
}

/// Room in which the splits of linear maps' K meet.
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
        columns.div_ceil(TILE) * SPLIT_ROWS / TILE
    }

    /// Partial sums of so many tiles.
    pub(crate) fn values(tiles: usize) -> usize {
        SPLITS * tiles * TILE_VALUES
    }
}

/// The kernel's `Phase`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phase {
    kind: i32,
    items: i32,
    first: i32,
    ends: i32,
    inputs: [u64; 8],
    outputs: [u64; 3],
    sizes: [i32; 12],
    factors: [f64; 2],
    weights: [u64; 2],
}

// What `Phase` is made of has no gaps and takes any bits.
impl Plain for Phase {}

/// The kernel's `Kind`.
#[derive(Clone, Copy)]
enum Kind {
    Means,
    Lexical,
    Prior,
    Linear,
    Summary,
    Converse,
    Expand,
    Combine,
    Features,
    Logits,
}

/// Phases in the making.
pub(crate) struct Phases<'a> {
    sizes: HeadSizes,
    splits: &'a Splits,
    /// Keys of a group of the softmax.
    group_keys: usize,
    list: Vec<Phase>,
    /// Items of the stage so far, and tiles that meet in `splits`.
    items: usize,
    tiles: usize,
}

impl<'a> Phases<'a> {
    pub(crate) fn new(sizes: HeadSizes, splits: &'a Splits, group_keys: usize) -> Phases<'a> {
        Phases {
            sizes,
            splits,
            group_keys,
            list: Vec::new(),
            items: 0,
            tiles: 0,
        }
    }

    /// All of them, in order.
    pub(crate) fn list(&self) -> &[Phase] {
        &self.list
    }

    /// Whether a phase is the last of its stage.
    pub(crate) fn ends_stage(&self, index: usize) -> bool {
        self.list[index].ends != 0
    }

    /// Ends a stage: what follows needs what came before.
    pub(crate) fn end_stage(&mut self) {
        (self.items, self.tiles) = (0, 0);
        if let Some(last) = self.list.last_mut() {
            last.ends = 1;
        }
    }

    /// Adds a phase whose items go to the blocks after those of the stage's last.
    fn push(&mut self, kind: Kind, items: usize, phase: Phase) {
        self.list.push(Phase {
            kind: kind as i32,
            items: int(items),
            first: int(self.items),
            ..phase
        });
        self.items += items;
    }

    /// Divides the sums of spans by their numbers of rows.
    pub(crate) fn means(&mut self, sums: &Block<f64>, rows: &Block<i32>) {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        assert!(rows.len() * hidden_pitch <= sums.len(), "all spans");
        let phase = Phase {
            inputs: addresses([rows.address()]),
            outputs: addresses([sums.address()]),
            sizes: numbers([hidden, hidden_pitch]),
            ..Phase::default()
        };
        self.push(Kind::Means, rows.len(), phase);
    }

    /// Means of a table's rows of each option's tokens. The ids lie below the table's rows and the starts, one more than
    /// options, in the ids, as their caller says.
    pub(crate) fn lexical(
        &mut self,
        table: &Block<u16>,
        [ids, starts]: [&Block<i32>; 2],
        out: &Block<f64>,
    ) {
        let HeadSizes {
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        let options = starts.len() - 1;
        assert!(options * hidden_pitch <= out.len(), "all options");
        let phase = Phase {
            inputs: addresses([table.address(), ids.address(), starts.address()]),
            outputs: addresses([out.address()]),
            sizes: numbers([hidden, hidden_pitch]),
            ..Phase::default()
        };
        self.push(Kind::Lexical, options, phase);
    }

    /// `scale · unit(x) · unit(q + g)` of options. `question_of` names rows of `questions`, as its maker says.
    pub(crate) fn prior(
        &mut self,
        [x, questions, last]: [&Block<f64>; 3],
        question_of: &Block<i32>,
        out: &Block<f64>,
        scale: f64,
    ) {
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
        let phase = Phase {
            inputs: addresses([
                x.address(),
                questions.address(),
                question_of.address(),
                last.address(),
            ]),
            outputs: addresses([out.address()]),
            sizes: numbers([hidden, hidden_pitch]),
            factors: [scale, 0.0],
            ..Phase::default()
        };
        self.push(Kind::Prior, options, phase);
    }

    /// A linear map. `x_rows` names rows of x, as its maker says.
    pub(crate) fn linear(&mut self, map: HeadMap<'_>) {
        map.check();
        let HeadMap {
            rows,
            inputs,
            outputs,
            groups,
            ..
        } = map;
        let tiles_of = |sixteens: usize| groups * (outputs / groups).div_ceil(16 * sixteens);
        let narrow = rows <= NARROW_ROWS;
        // What a sum is does not depend on the tile's columns.
        let sixteens = 1 + usize::from(!narrow || tiles_of(1) > FILLING_TILES);
        let eights = if narrow { 1 } else { 4 };
        let tiles = tiles_of(sixteens) * rows.div_ceil(8 * eights);
        // Where there are many rows or many columns, tiles alone fill a device.
        let wanted = match rows <= SPLIT_ROWS && (!narrow || inputs >= NARROW_SPLIT) {
            true => (FILLING_TILES / tiles_of(sixteens)).clamp(1, SPLITS),
            false => 1,
        };
        let k_split = inputs.div_ceil(wanted).next_multiple_of(256);
        let splits = inputs.div_ceil(k_split);
        let (mut partial, mut tickets) = (0, 0);
        if splits > 1 {
            let values = SPLITS * self.tiles * TILE_VALUES;
            let places = self.tiles..self.tiles + tiles;
            let part = values..values + splits * tiles * TILE_VALUES;
            partial = self.splits.partial.part(part).address();
            tickets = self.splits.tickets.part(places).address();
            self.tiles += tiles;
        }
        let (norm, folded) = map.norm.map_or((0, 0), |(weight, folded)| {
            (weight.address(), folded.address())
        });
        let weights = map.weight.rows();
        let phase = Phase {
            inputs: addresses([
                map.x.address(),
                map.x_rows.map_or(0, Block::address),
                weights.address(),
                norm,
                folded,
                map.bias.map_or(0, Block::address),
                map.add.map_or(0, Block::address),
            ]),
            outputs: [map.out.address(), partial, tickets],
            sizes: numbers([
                map.x_pitch,
                map.x_group,
                map.out_pitch,
                rows,
                outputs,
                inputs,
                outputs / groups,
                usize::from(map.gelu),
                k_split,
                splits,
                8 * eights + sixteens,
                is_single(weights),
            ]),
            weights: ahead(weights, outputs * inputs.next_multiple_of(32)),
            ..Phase::default()
        };
        self.push(Kind::Linear, tiles * splits, phase);
    }

    /// `f = b + norm(s) + type + global` of questions, where b lies in `f`. A question is: first option, options, kind, unused;
    /// its maker bounds them.
    pub(crate) fn summary(
        &mut self,
        (options, questions): (&Block<f64>, &Block<[i32; 4]>),
        [weight, bias, types]: [&Block<f32>; 3],
        global: &Block<f64>,
        scores: &Block<f64>,
        f: &Block<f64>,
    ) {
        let HeadSizes { width, pitch, .. } = self.sizes;
        assert!(
            questions.len() * pitch <= f.len() && width <= global.len(),
            "all questions"
        );
        let phase = Phase {
            inputs: addresses([
                options.address(),
                questions.address(),
                weight.address(),
                bias.address(),
                types.address(),
                global.address(),
            ]),
            outputs: addresses([scores.address(), f.address()]),
            sizes: numbers([width, pitch]),
            ..Phase::default()
        };
        self.push(Kind::Summary, questions.len(), phase);
    }

    /// Attention of rows over one another: `qkv` `[count, 3 · pitch]` to `out` `[count, pitch]`.
    pub(crate) fn converse(&mut self, qkv: &Block<f64>, out: &Block<f64>, count: usize) {
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
        let phase = Phase {
            inputs: addresses([qkv.address()]),
            outputs: addresses([out.address()]),
            sizes: numbers([count, heads, width, 3 * pitch, pitch]),
            factors: [1.0 / ((width / heads) as f64).sqrt(), 0.0],
            ..Phase::default()
        };
        self.push(Kind::Converse, heads * count, phase);
    }

    /// u of projected queries, `[count, pitch]`: the first step of attention over the memory. `norm` is the weight of the
    /// memory's norm, if it is normed.
    pub(crate) fn expand(
        &mut self,
        queries: &Block<f64>,
        keys: &WeightBlock,
        norm: Option<&Block<f32>>,
        mix: &Mix<'_>,
    ) {
        let HeadSizes {
            width,
            pitch,
            heads,
            ..
        } = self.sizes;
        let (expanded, count) = (mix.expanded, mix.count);
        let (keys, w_pitch, pairs) = (keys.rows(), width.next_multiple_of(32), count * heads);
        assert!(
            count * pitch <= queries.len() && width * w_pitch <= keys.len(),
            "all queries and weights"
        );
        assert!(
            pairs * pitch <= expanded.high.len().min(expanded.low.len())
                && pairs <= mix.scales.len()
                && norm.is_none_or(|norm| width <= norm.len()),
            "room for all pairs"
        );
        let queries_each = match pairs <= FILLING_TILES {
            true => 1,
            false => EXPANDED,
        };
        let scale = std::f64::consts::LOG2_E / ((width / heads) as f64).sqrt();
        let phase = Phase {
            inputs: addresses([
                queries.address(),
                keys.address(),
                norm.map_or(0, Block::address),
            ]),
            outputs: [
                expanded.high.address(),
                expanded.low.address(),
                mix.scales.address(),
            ],
            sizes: numbers([
                count,
                heads,
                width,
                w_pitch,
                pitch,
                queries_each,
                is_single(keys),
            ]),
            factors: [scale, 0.0],
            weights: ahead(keys, width * w_pitch),
            ..Phase::default()
        };
        self.push(Kind::Expand, heads * count.div_ceil(queries_each), phase);
    }

    /// The mixed memory rows of all pairs, in `mix.mixed`; `norm` is the memory's, if it is normed.
    pub(crate) fn combine(&mut self, mix: &Mix<'_>, norm: Option<[&Block<f32>; 2]>) {
        let HeadSizes {
            width,
            pitch,
            heads,
            ..
        } = self.sizes;
        let (pairs, splits) = (mix.count * heads, Mix::splits(mix.rows));
        let groups = mix.rows.div_ceil(self.group_keys);
        assert!(
            splits * pairs * pitch <= mix.partial.len()
                && pairs * pitch <= mix.mixed.len()
                && pairs * groups <= mix.marks.len().min(mix.sums.len()),
            "all pairs"
        );
        let (weight, bias) =
            norm.map_or((0, 0), |[weight, bias]| (weight.address(), bias.address()));
        let phase = Phase {
            inputs: addresses([
                mix.partial.address(),
                mix.marks.address(),
                mix.sums.address(),
                weight,
                bias,
            ]),
            outputs: addresses([mix.mixed.address()]),
            sizes: numbers([
                pairs,
                groups,
                Mix::split_keys(mix.rows) / self.group_keys,
                splits,
                width,
                pitch,
            ]),
            ..Phase::default()
        };
        let items = pairs.div_ceil(COMBINED[0]) * width.div_ceil(COMBINED[1]);
        self.push(Kind::Combine, items, phase);
    }

    /// `[f, o, f∘o, |f − o|]` of options and their questions, both normed first, `[options, 4 · pitch]`, and their cosines.
    /// `question_of` names rows of `fields`, as its maker says.
    pub(crate) fn features(
        &mut self,
        [options, fields]: [&Block<f64>; 2],
        question_of: &Block<i32>,
        [option_norm, field_norm]: [[&Block<f32>; 2]; 2],
        [features, cosines]: [&Block<f64>; 2],
    ) {
        let HeadSizes { width, pitch, .. } = self.sizes;
        let count = question_of.len();
        assert!(
            count * pitch <= options.len()
                && count * 4 * pitch <= features.len()
                && count <= cosines.len(),
            "all options"
        );
        let phase = Phase {
            inputs: addresses([
                options.address(),
                fields.address(),
                question_of.address(),
                option_norm[0].address(),
                option_norm[1].address(),
                field_norm[0].address(),
                field_norm[1].address(),
            ]),
            outputs: addresses([features.address(), cosines.address()]),
            sizes: numbers([width, pitch]),
            ..Phase::default()
        };
        self.push(Kind::Features, count, phase);
    }

    /// `prior + gate (joint cos + residual)`, where the residual is a map of one column of `inner`, in rows of `pitch`.
    pub(crate) fn logits(
        &mut self,
        (inner, pitch): (&Block<f64>, usize),
        (weight, bias, inputs): (&WeightBlock, &Block<f32>, usize),
        [priors, cosines]: [&Block<f64>; 2],
        out: &Block<f32>,
        factors: [f64; 2],
    ) {
        let (count, weight) = (out.len(), weight.rows());
        assert!(
            count <= priors.len().min(cosines.len())
                && count * pitch <= inner.len()
                && inputs <= weight.len()
                && bias.len() == 1,
            "all options"
        );
        let phase = Phase {
            inputs: addresses([
                inner.address(),
                weight.address(),
                bias.address(),
                priors.address(),
                cosines.address(),
            ]),
            outputs: addresses([out.address()]),
            sizes: numbers([inputs, pitch, is_single(weight)]),
            factors,
            ..Phase::default()
        };
        self.push(Kind::Logits, count, phase);
    }
}

/// Addresses in their first places.
fn addresses<const GIVEN: usize, const ALL: usize>(given: [u64; GIVEN]) -> [u64; ALL] {
    let mut all = [0; ALL];
    all[..GIVEN].copy_from_slice(&given);
    all
}

/// Sizes in their first places.
fn numbers<const GIVEN: usize>(given: [usize; GIVEN]) -> [i32; 12] {
    let mut all = [0; 12];
    all[..GIVEN].copy_from_slice(&given.map(int));
    all
}

/// Whether weights are f32.
fn is_single(weights: Rows<'_>) -> usize {
    usize::from(matches!(weights, Rows::Single(_)))
}

/// The bytes of so many weights, to be asked for ahead.
fn ahead(weights: Rows<'_>, values: usize) -> [u64; 2] {
    let bytes = values * (2 + 2 * is_single(weights));
    [weights.address(), bytes as u64]
}
