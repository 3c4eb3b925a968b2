//! Products over the memory's rows: `kernels/head_sm90.cu`, and on other devices those of `kernels/head.cu`.

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
    /// `[pairs, row_pitch]`
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

/// The operands of a product: A `[m, a_pitch]`, B `[b_rows, b_pitch]` in one part or two; across, its rows
/// are those of K.
struct Operands<'a> {
    a: &'a Parts,
    b: [&'a Block<u16>; 2],
    b_rows: usize,
    across: bool,
}

#[derive(Debug)]
pub(super) struct ProductKernels {
    is_hopper: bool,
    /// One part of B, two.
    plain: [Kernel; 2],
    /// Of a memory that is not normed and of one that is.
    scores: [Kernel; 2],
    weighted: Kernel,
    /// For the last three, those with small tiles.
    small: Option<[Kernel; 3]>,
    /// Multiprocessors of the device.
    multiprocessors: usize,
}

impl ProductKernels {
    /// The kernels of a module for Hopper, if there is one, or those of the module for all devices.
    pub(super) fn load(
        gpu: &Gpu,
        head: &Module,
        hopper: Option<&Module>,
    ) -> Result<ProductKernels, CudaError> {
        let Some(hopper) = hopper else {
            return Ok(ProductKernels {
                is_hopper: false,
                plain: [plain(head, "head_split_1")?, plain(head, "head_split_2")?],
                scores: [
                    plain(head, "head_scores")?,
                    plain(head, "head_scores_normed")?,
                ],
                weighted: plain(head, "head_weighted")?,
                small: None,
                multiprocessors: gpu.multiprocessors(),
            });
        };
        // Stages of three parts or four, of large tiles or small, take the same; then barriers, and the factors of groups.
        let shared = 1024 + 12 * (128 * 64 * 2) + 128;
        let factors = 128 * 17 * size_of::<f32>();
        Ok(ProductKernels {
            is_hopper: true,
            plain: [
                hopper.kernel("split_1", shared)?,
                hopper.kernel("split_2", shared)?,
            ],
            scores: [
                hopper.kernel("scores", shared)?,
                hopper.kernel("scores_normed", shared)?,
            ],
            weighted: hopper.kernel("weighted", shared + factors)?,
            small: Some([
                hopper.kernel("scores_small", shared)?,
                hopper.kernel("scores_normed_small", shared)?,
                hopper.kernel("weighted_small", shared + factors)?,
            ]),
            multiprocessors: gpu.multiprocessors(),
        })
    }

    /// Leaves out the kernels with small tiles; for tests.
    #[cfg(test)]
    pub(super) fn leave_small(&mut self) {
        self.small = None;
    }

    pub(super) fn group_keys(&self) -> usize {
        GROUPS[usize::from(!self.is_hopper)]
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
            scale,
            ..RawProduct::default()
        };
        let operands = Operands {
            a,
            b: [b, b_low.unwrap_or(b)],
            b_rows: n,
            across: false,
        };
        let kernel = self.plain[usize::from(b_low.is_some())];
        // SAFETY: the assert bounds `out`, which is all that a plain product writes.
        unsafe { self.run(gpu, [kernel, kernel], &operands, raw) }
    }

    pub(super) fn scores(
        &self,
        gpu: &Gpu,
        sizes: &HeadSizes,
        mix: &Mix<'_>,
        is_normed: bool,
    ) -> Result<(), CudaError> {
        let raw = self.softened(sizes, mix);
        let raw = RawProduct {
            n: int(mix.rows),
            k: int(sizes.pitch),
            k_split: int(sizes.pitch.next_multiple_of(64)),
            a_pitch: int(sizes.pitch),
            out_pitch: int(Mix::row_pitch(mix.rows)),
            ..raw
        };
        let operands = Operands {
            a: mix.expanded,
            b: [&mix.memory.high, &mix.memory.low],
            b_rows: mix.rows,
            across: false,
        };
        let kernel = self.scores[usize::from(is_normed)];
        let small = self
            .small
            .map_or(kernel, |small| small[usize::from(is_normed)]);
        // SAFETY: `softened` bounds all that the softmax reads and writes.
        unsafe { self.run(gpu, [kernel, small], &operands, raw) }
    }

    pub(super) fn weigh(
        &self,
        gpu: &Gpu,
        sizes: &HeadSizes,
        mix: &Mix<'_>,
    ) -> Result<(), CudaError> {
        let (pairs, pitch) = (mix.count * sizes.heads, sizes.pitch);
        assert!(
            Mix::splits(mix.rows) * pairs * pitch <= mix.partial.len(),
            "all partial sums"
        );
        let raw = RawProduct {
            out: mix.partial.address(),
            n: int(pitch),
            k: int(mix.rows),
            k_split: int(Mix::split_keys(mix.rows)),
            a_pitch: int(Mix::row_pitch(mix.rows)),
            out_pitch: int(pitch),
            ..self.softened(sizes, mix)
        };
        let operands = Operands {
            a: mix.weights,
            b: [&mix.memory.high, &mix.memory.low],
            b_rows: mix.rows,
            across: true,
        };
        let small = self.small.map_or(self.weighted, |small| small[2]);
        // SAFETY: the assert bounds `out`, `softened` the marks.
        unsafe { self.run(gpu, [self.weighted, small], &operands, raw) }
    }

    /// What scores and weighted rows share.
    ///
    /// # Panics
    /// If the softmax reaches beyond a block.
    fn softened(&self, sizes: &HeadSizes, mix: &Mix<'_>) -> RawProduct {
        let (pairs, groups) = (
            mix.count * sizes.heads,
            mix.rows.div_ceil(self.group_keys()),
        );
        let weights = mix.weights.high.len().min(mix.weights.low.len());
        assert!(
            pairs * Mix::row_pitch(mix.rows) <= weights
                && pairs * groups <= mix.marks.len().min(mix.sums.len())
                && pairs <= mix.scales.len()
                && mix.rows <= mix.forms.len(),
            "all pairs and rows"
        );
        RawProduct {
            scales: mix.scales.address(),
            forms: mix.forms.address(),
            high: mix.weights.high.address(),
            low: mix.weights.low.address(),
            marks: mix.marks.address(),
            sums: mix.sums.address(),
            m: int(pairs),
            b_pitch: int(sizes.pitch),
            groups: int(groups),
            scale: 1.0,
            ..RawProduct::default()
        }
    }

    /// Runs a kernel with large tiles, or the one with small tiles where large ones would leave half the device idle.
    ///
    /// # Safety
    /// What the kernel reads and writes besides its operands lies inside live blocks.
    ///
    /// # Panics
    /// If the operands reach beyond their blocks.
    unsafe fn run(
        &self,
        gpu: &Gpu,
        [kernel, small]: [Kernel; 2],
        operands: &Operands<'_>,
        mut raw: RawProduct,
    ) -> Result<(), CudaError> {
        let [m, n, splits] = operands.check(&raw);
        let Operands { a, b, .. } = *operands;
        if !self.is_hopper {
            // SAFETY: `check` bounds the operands, the caller the rest.
            return unsafe {
                gpu.launch(
                    kernel,
                    [n.div_ceil(64), m.div_ceil(64), splits],
                    128,
                    arguments![
                        a.high.address(),
                        a.low.address(),
                        b[0].address(),
                        b[1].address(),
                        raw
                    ],
                )
            };
        }
        let tiles = m.div_ceil(128) * n.div_ceil(128) * splits;
        let is_small = kernel.name != small.name && 2 * tiles <= self.multiprocessors;
        let (kernel, side, threads) = match is_small {
            true => (small, 64, 256),
            false => (kernel, 128, 384),
        };
        // Tiles that share the larger operand run side by side.
        raw.rows_first = i32::from(n > m);
        let (x, y) = match n > m {
            true => (m.div_ceil(side), n.div_ceil(side)),
            false => (n.div_ceil(side), m.div_ceil(side)),
        };
        let [a_high, a_low, b_high, b_low] = operands.maps(&raw, side)?;
        // SAFETY: the copy engine stays inside the maps, the rest is as above.
        unsafe {
            gpu.launch(
                kernel,
                [x, y, splits],
                threads,
                arguments![a_high, a_low, b_high, b_low, raw],
            )
        }
    }
}

impl Operands<'_> {
    /// M, N and the number of splits.
    ///
    /// # Panics
    /// If the product reaches beyond a block.
    fn check(&self, raw: &RawProduct) -> [usize; 3] {
        let [m, n, k, k_split] = [raw.m, raw.n, raw.k, raw.k_split].map(size);
        let (a_pitch, b_pitch) = (size(raw.a_pitch), size(raw.b_pitch));
        assert!(
            a_pitch.is_multiple_of(8) && b_pitch.is_multiple_of(8) && raw.out_pitch % 2 == 0,
            "rows at multiples of 16 bytes"
        );
        assert!(k_split.is_multiple_of(64), "whole chains");
        assert!(
            m * a_pitch <= self.a.high.len().min(self.a.low.len()) && k <= a_pitch,
            "all of a"
        );
        let b_width = if self.across { n } else { k };
        assert!(
            self.b_rows * b_pitch <= self.b[0].len().min(self.b[1].len()) && b_width <= b_pitch,
            "all of b"
        );
        [m, n, k.div_ceil(k_split)]
    }

    /// Views of both parts of both for the copy engine, for tiles of so many rows.
    fn maps(&self, raw: &RawProduct, side: usize) -> Result<[TensorMap; 4], CudaError> {
        let b_box = if self.across { 64 } else { side };
        let map = |block, rows, pitch, box_rows| {
            TensorMap::new(block, [rows, pitch, pitch], [box_rows, 64])
        };
        let (a_pitch, b_pitch) = (size(raw.a_pitch), size(raw.b_pitch));
        Ok([
            map(&self.a.high, size(raw.m), a_pitch, side)?,
            map(&self.a.low, size(raw.m), a_pitch, side)?,
            map(self.b[0], self.b_rows, b_pitch, b_box)?,
            map(self.b[1], self.b_rows, b_pitch, b_box)?,
        ])
    }
}

/// A size as the kernels had it.
fn size(x: i32) -> usize {
    usize::try_from(x).expect("sizes are not negative")
}
