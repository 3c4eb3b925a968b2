//! Products over the memory's rows: `kernels/head_sm90.cu`, and on other devices those of `kernels/head.cu`.

use std::ops::Range;

use super::{HeadSizes, Parts};
use crate::driver::{Block, Gpu, Kernel, Module, TensorMap};
use crate::error::CudaError;
use crate::launch::{arguments, int, plain};

/// Keys of one partial sum of weighted memory rows, at most: 16 groups of 64.
const SPLIT_KEYS: usize = 1024;
/// Keys of one at least, and how many such sums a shorter prompt has, so that a device is filled.
const SPLIT_LEAST: usize = 128;
const SPLITS: usize = 16;
/// Keys of a group of the softmax, by Hopper's products and by the others.
const GROUPS: [usize; 2] = [64, 32];
/// Rows and columns of a tile: Hopper's large ones and small ones, and those of the others.
const LARGE: usize = 128;
const SMALL: usize = 64;
/// Threads of a block, by Hopper's products and by the others.
const THREADS: [usize; 2] = [384, 128];

/// A product of f32 accuracy: `out[m][n] = Σ a[m][k] b[n][k] · scale`.
#[derive(Clone, Copy)]
pub(crate) struct SplitProduct<'a> {
    /// `[m, a_pitch]`
    pub(crate) a: &'a Parts,
    pub(crate) a_pitch: usize,
    /// `[n, b_pitch]`
    pub(crate) b: &'a Block<u16>,
    /// The low part; none if the high part is all.
    pub(crate) b_low: Option<&'a Block<u16>>,
    pub(crate) b_pitch: usize,
    /// `[m, out_pitch]`
    pub(crate) out: &'a Block<f32>,
    pub(crate) out_pitch: usize,
    pub(crate) scale: f32,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Attention of some queries over the memory rows, and room for what is in between.
#[derive(Clone, Copy)]
pub(crate) struct Mix<'a> {
    /// `[count, heads]` pairs: u, `[pairs, pitch]`.
    pub(crate) expanded: &'a Parts,
    /// Of each pair, what a raw score is multiplied by, and the sum of u.
    pub(crate) scales: &'a Block<[f64; 2]>,
    /// `[pairs, row_pitch]`, of all pairs or of as many as there is room for: see [`ProductKernels::pairs_at_once`].
    pub(crate) weights: &'a Parts,
    /// Of each group of keys, `[pairs, groups]`: the exponents that its p and its weights were divided by, and the sums of p
    /// and of p times the rows' means.
    pub(crate) marks: &'a Block<[f32; 2]>,
    pub(crate) sums: &'a Block<[f64; 2]>,
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
    /// Keys of a group of the softmax at least.
    pub(crate) const GROUP_LEAST: usize = GROUPS[1];

    /// Values of a row of weights for so many keys.
    pub(crate) fn row_pitch(rows: usize) -> usize {
        rows.next_multiple_of(8)
    }

    /// Keys of a partial sum for a prompt of so many rows, which alone decide it, so that its bits are its own.
    pub(crate) fn split_keys(rows: usize) -> usize {
        rows.div_ceil(SPLITS)
            .next_multiple_of(64)
            .clamp(SPLIT_LEAST, SPLIT_KEYS)
    }

    /// Partial sums for so many keys.
    pub(crate) fn splits(rows: usize) -> usize {
        rows.div_ceil(Mix::split_keys(rows))
    }

    /// Partial sums for so many keys or fewer.
    pub(crate) fn splits_at_most(rows: usize) -> usize {
        rows.div_ceil(SPLIT_LEAST)
            .min(SPLITS)
            .max(Mix::splits(rows))
    }
}

/// The kernel's `Product`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawProduct {
    out: u64,
    scales: u64,
    forms: u64,
    high: u64,
    low: u64,
    marks: u64,
    sums: u64,
    m: i32,
    n: i32,
    k: i32,
    k_split: i32,
    a_pitch: i32,
    b_pitch: i32,
    out_pitch: i32,
    rows_first: i32,
    groups: i32,
    scale: f32,
}

/// The kernel's `Steps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawSteps {
    gate: u64,
    first: i32,
    end: i32,
    pairs: i32,
    small: [i32; 2],
}

const _: () = assert!(
    size_of::<RawProduct>() == 96 && size_of::<RawSteps>() == 32,
    "as the kernels have them"
);

/// The operands of a product: A `[a_rows, a_pitch]`, B `[b_rows, b_pitch]` in one part or two; across, its rows
/// are those of K.
struct Operands<'a> {
    a: &'a Parts,
    a_rows: usize,
    b: [&'a Block<u16>; 2],
    b_rows: usize,
    across: bool,
}

/// How attention is run where there are several ways, all of which give the same bits; tests try them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Whether tiles of the scores and of the weighted rows are small, on Hopper.
    pub(crate) small: Option<[bool; 2]>,
    /// Pairs at most whose weights exist at one time.
    pub(crate) pairs: Option<usize>,
    /// Blocks at most.
    pub(crate) blocks: Option<usize>,
    /// Whether each step is a launch of its own.
    pub(crate) apart: bool,
}

#[derive(Debug)]
pub(super) struct ProductKernels {
    is_hopper: bool,
    /// One part of B, two.
    plain: [Kernel; 2],
    /// Attention over a memory that is not normed and over one that is.
    attend: [Kernel; 2],
    /// Blocks of it that are on the device at one time.
    blocks: usize,
    multiprocessors: usize,
    pub(super) manner: Manner,
}

impl ProductKernels {
    /// The kernels of a module for Hopper, if there is one, or those of the module for all devices.
    pub(super) fn load(
        gpu: &Gpu,
        head: &Module,
        hopper: Option<&Module>,
    ) -> Result<ProductKernels, CudaError> {
        let (plain, attend) = match hopper {
            None => (
                [plain(head, "head_split_1")?, plain(head, "head_split_2")?],
                [
                    plain(head, "head_attend")?,
                    plain(head, "head_attend_normed")?,
                ],
            ),
            Some(hopper) => {
                // Stages, of whichever parts and tiles, and barriers; then the factors of two tiles' groups.
                let shared = 1024 + 12 * (128 * 64 * 2) + 256;
                let factors = 2 * LARGE * 17 * size_of::<f32>();
                (
                    [
                        hopper.kernel("split_1", shared)?,
                        hopper.kernel("split_2", shared)?,
                    ],
                    [
                        hopper.kernel("attend", shared + factors)?,
                        hopper.kernel("attend_normed", shared + factors)?,
                    ],
                )
            }
        };
        let threads = THREADS[usize::from(hopper.is_none())];
        let blocks = [
            gpu.blocks_together(attend[0], threads)?,
            gpu.blocks_together(attend[1], threads)?,
        ];
        Ok(ProductKernels {
            is_hopper: hopper.is_some(),
            plain,
            attend,
            blocks: blocks[0].min(blocks[1]),
            multiprocessors: gpu.multiprocessors(),
            manner: Manner::default(),
        })
    }

    pub(super) fn group_keys(&self) -> usize {
        GROUPS[usize::from(!self.is_hopper)]
    }

    fn threads(&self) -> usize {
        THREADS[usize::from(!self.is_hopper)]
    }

    pub(super) fn product(&self, gpu: &Gpu, product: SplitProduct<'_>) -> Result<(), CudaError> {
        let SplitProduct {
            a,
            a_pitch,
            b,
            b_low,
            b_pitch,
            out,
            out_pitch,
            scale,
            m,
            n,
            k,
        } = product;
        assert!(m * out_pitch <= out.len() && n <= out_pitch, "all of out");
        let raw = RawProduct {
            out: out.address(),
            m: int(m),
            n: int(n),
            k: int(k),
            k_split: int(k.next_multiple_of(64)),
            a_pitch: int(a_pitch),
            b_pitch: int(b_pitch),
            out_pitch: int(out_pitch),
            rows_first: self.rows_first(m, n),
            scale,
            ..RawProduct::default()
        };
        let operands = Operands {
            a,
            a_rows: m,
            b: [b, b_low.unwrap_or(b)],
            b_rows: n,
            across: false,
        };
        operands.check(&raw);
        let kernel = self.plain[usize::from(b_low.is_some())];
        let side = if self.is_hopper { LARGE } else { SMALL };
        let grid = [raw.tiles(m, side), 1, 1];
        let threads = self.threads();
        // SAFETY: `check` bounds the operands, within which the copy engine stays; the assert bounds `out`, which is all that a
        // plain product writes.
        unsafe {
            match self.is_hopper {
                true => {
                    let maps = operands.maps(&raw, side)?;
                    gpu.launch(kernel, grid, threads, arguments![maps, raw])
                }
                false => {
                    let addresses = operands.addresses();
                    gpu.launch(kernel, grid, threads, arguments![addresses, raw])
                }
            }
        }
    }

    /// Pairs that a step of attention goes through: all, or as many as there is room for weights of, in whole tiles if there is
    /// room for one.
    fn pairs_at_once(&self, sizes: &HeadSizes, mix: &Mix<'_>) -> usize {
        let pairs = mix.count * sizes.heads;
        let weights = mix.weights.high.len().min(mix.weights.low.len());
        let room = weights / Mix::row_pitch(mix.rows);
        assert!(room > 0, "room for a pair");
        let room = self.manner.pairs.map_or(room, |pairs| pairs.min(room));
        match room {
            _ if pairs <= room => pairs,
            0..LARGE => room,
            _ => room / LARGE * LARGE,
        }
    }

    /// Steps of attention: two for each part of the pairs.
    pub(super) fn steps(&self, sizes: &HeadSizes, mix: &Mix<'_>) -> usize {
        2 * (mix.count * sizes.heads).div_ceil(self.pairs_at_once(sizes, mix))
    }

    /// Runs a range of the steps of attention: weights of memory rows, then partial sums of rows by them, for one part of the
    /// pairs after the other. `is_normed` says whether the memory is.
    pub(super) fn attend(
        &self,
        gpu: &Gpu,
        sizes: &HeadSizes,
        (mix, is_normed): (&Mix<'_>, bool),
        range: Range<usize>,
        gate: &Block<i32>,
    ) -> Result<(), CudaError> {
        assert!(
            range.start < range.end && range.end <= self.steps(sizes, mix) && gate.len() >= 2,
            "steps of attention"
        );
        let pairs = self.pairs_at_once(sizes, mix);
        let products = self.products(sizes, mix, pairs);
        let of = |a, a_rows, across| Operands {
            a,
            a_rows,
            b: [&mix.memory.high, &mix.memory.low],
            b_rows: mix.rows,
            across,
        };
        let operands = [
            of(mix.expanded, mix.count * sizes.heads, false),
            of(mix.weights, pairs, true),
        ];
        operands[0].check(&products[0]);
        operands[1].check(&products[1]);
        let small = products.map(|raw| self.is_small(&raw, pairs));
        let small = self.manner.small.unwrap_or(small);
        let sides = small.map(|small| {
            if small || !self.is_hopper {
                SMALL
            } else {
                LARGE
            }
        });
        let tiles = products[0]
            .tiles(pairs, sides[0])
            .max(products[1].tiles(pairs, sides[1]));
        let blocks = self
            .blocks
            .min(self.manner.blocks.unwrap_or(tiles))
            .min(tiles);
        let (grid, threads) = ([blocks, 1, 1], self.threads());
        let steps = RawSteps {
            gate: gate.address(),
            first: int(range.start),
            end: int(range.end),
            pairs: int(pairs),
            small: small.map(i32::from),
        };
        let kernel = self.attend[usize::from(is_normed)];
        let [scores, weighted] = products;
        // SAFETY: `check` bounds the operands, within which the copy engine stays; `products` bounds what is written and what
        // else is read; the gate has its two places.
        unsafe {
            match self.is_hopper {
                true => {
                    let of_pairs = operands[0].maps(&scores, sides[0])?;
                    let of_weights = operands[1].maps(&weighted, sides[1])?;
                    gpu.launch_together(
                        kernel,
                        grid,
                        threads,
                        arguments![of_pairs, of_weights, scores, weighted, steps],
                    )
                }
                false => {
                    let [of_pairs, of_weights] = operands.map(|operands| operands.addresses());
                    gpu.launch_together(
                        kernel,
                        grid,
                        threads,
                        arguments![of_pairs, of_weights, scores, weighted, steps],
                    )
                }
            }
        }
    }

    /// The products of scores and of weighted rows, of so many pairs at one time.
    ///
    /// # Panics
    /// If one reaches beyond a block.
    fn products(&self, sizes: &HeadSizes, mix: &Mix<'_>, at_once: usize) -> [RawProduct; 2] {
        let (pairs, pitch, row_pitch) = (
            mix.count * sizes.heads,
            sizes.pitch,
            Mix::row_pitch(mix.rows),
        );
        let groups = mix.rows.div_ceil(self.group_keys());
        let weights = mix.weights.high.len().min(mix.weights.low.len());
        assert!(
            at_once * row_pitch <= weights
                && pairs * groups <= mix.marks.len().min(mix.sums.len())
                && pairs <= mix.scales.len()
                && mix.rows <= mix.forms.len(),
            "all pairs and rows"
        );
        assert!(
            Mix::splits(mix.rows) * pairs * pitch <= mix.partial.len(),
            "all partial sums"
        );
        let both = RawProduct {
            out: mix.partial.address(),
            scales: mix.scales.address(),
            forms: mix.forms.address(),
            high: mix.weights.high.address(),
            low: mix.weights.low.address(),
            marks: mix.marks.address(),
            sums: mix.sums.address(),
            m: int(pairs),
            b_pitch: int(pitch),
            groups: int(groups),
            scale: 1.0,
            ..RawProduct::default()
        };
        let scores = RawProduct {
            n: int(mix.rows),
            k: int(pitch),
            k_split: int(pitch.next_multiple_of(64)),
            a_pitch: int(pitch),
            out_pitch: int(row_pitch),
            rows_first: self.rows_first(at_once, mix.rows),
            ..both
        };
        let weighted = RawProduct {
            n: int(pitch),
            k: int(mix.rows),
            k_split: int(Mix::split_keys(mix.rows)),
            a_pitch: int(row_pitch),
            out_pitch: int(pitch),
            rows_first: self.rows_first(at_once, pitch),
            ..both
        };
        [scores, weighted]
    }

    /// Whether tiles go by rows first: those that share the larger operand are made side by side.
    fn rows_first(&self, m: usize, n: usize) -> i32 {
        i32::from(self.is_hopper && n > m)
    }

    /// Whether large tiles of so many rows would leave half the device idle.
    fn is_small(&self, raw: &RawProduct, rows: usize) -> bool {
        2 * raw.tiles(rows, LARGE) <= self.multiprocessors
    }
}

impl RawProduct {
    /// Tiles of so many rows of the product.
    fn tiles(&self, rows: usize, side: usize) -> usize {
        let [n, k, k_split] = [self.n, self.k, self.k_split].map(size);
        rows.div_ceil(side) * n.div_ceil(side) * k.div_ceil(k_split)
    }
}

impl Operands<'_> {
    /// # Panics
    /// If the product reaches beyond a block.
    fn check(&self, raw: &RawProduct) {
        let [n, k, k_split] = [raw.n, raw.k, raw.k_split].map(size);
        let (a_pitch, b_pitch) = (size(raw.a_pitch), size(raw.b_pitch));
        assert!(
            a_pitch.is_multiple_of(8) && b_pitch.is_multiple_of(8) && raw.out_pitch % 2 == 0,
            "rows at multiples of 16 bytes"
        );
        assert!(k_split.is_multiple_of(64), "whole chains");
        assert!(
            self.a_rows * a_pitch <= self.a.high.len().min(self.a.low.len()) && k <= a_pitch,
            "all of a"
        );
        let b_width = if self.across { n } else { k };
        assert!(
            self.b_rows * b_pitch <= self.b[0].len().min(self.b[1].len()) && b_width <= b_pitch,
            "all of b"
        );
    }

    /// The kernel's `Maps`: views of both parts of both for the copy engine, for tiles of so many rows.
    fn maps(&self, raw: &RawProduct, side: usize) -> Result<[TensorMap; 4], CudaError> {
        let b_box = if self.across { 64 } else { side };
        let map = |block, rows, pitch, box_rows| {
            TensorMap::new(block, [rows, pitch, pitch], [box_rows, 64])
        };
        let (a_pitch, b_pitch) = (size(raw.a_pitch), size(raw.b_pitch));
        Ok([
            map(&self.a.high, self.a_rows, a_pitch, side)?,
            map(&self.a.low, self.a_rows, a_pitch, side)?,
            map(self.b[0], self.b_rows, b_pitch, b_box)?,
            map(self.b[1], self.b_rows, b_pitch, b_box)?,
        ])
    }

    /// The portable kernel's `Operands`.
    fn addresses(&self) -> [u64; 4] {
        [&self.a.high, &self.a.low, self.b[0], self.b[1]].map(Block::address)
    }
}

/// A size as the kernels had it.
fn size(x: i32) -> usize {
    usize::try_from(x).expect("sizes are not negative")
}
