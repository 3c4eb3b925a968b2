//! Launches of the head's kernels: here what goes over the rows of a prompt (`kernels/head.cu`), in `products` the products over
//! its memory rows (`kernels/head_sm90.cu`, or `head.cu`), in `phases` what comes once all rows are there
//! (`kernels/head_finish.cu`).

use super::{arguments, image, int, module, plain};
use crate::driver::{Block, Gpu, Kernel};
use crate::error::CudaError;

mod phases;
mod products;

pub(crate) use phases::{HeadMap, Phase, Phases, Splits};
#[cfg(test)]
pub(crate) use products::Manner;
use products::ProductKernels;
pub(crate) use products::{Mix, SplitProduct};

const THREADS: usize = 256;

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

/// The kernels of the head.
#[derive(Debug)]
pub(crate) struct HeadKernels {
    products: ProductKernels,
    /// Of at most 4096 values and of more, each for bf16 and for f32.
    norm: [[Kernel; 2]; 2],
    spans: [Kernel; 2],
    memory: Kernel,
    finish: Kernel,
    /// Blocks that run at one time: one a multiprocessor.
    blocks: usize,
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
        let head = module(gpu, "the head's kernels", image!("head.fatbin"))?;
        let hopper = match gpu.capability() == (9, 0) && !portable {
            true => Some(module(
                gpu,
                "Hopper's head products",
                image!("head_sm90.fatbin"),
            )?),
            false => None,
        };
        let finish = module(gpu, "the head's last kernel", image!("head_finish.fatbin"))?;
        let both = |names: [&'static str; 2]| -> Result<[Kernel; 2], CudaError> {
            Ok([plain(&head, names[0])?, plain(&head, names[1])?])
        };
        Ok(HeadKernels {
            products: ProductKernels::load(gpu, &head, hopper.as_ref())?,
            norm: [
                both(["head_norm_bf16", "head_norm_f32"])?,
                both(["head_norm_bf16_wide", "head_norm_f32_wide"])?,
            ],
            spans: both(["head_spans_bf16", "head_spans_f32"])?,
            memory: plain(&head, "head_memory")?,
            finish: finish.kernel("head_finish", phases::SHARED)?,
            blocks: gpu.multiprocessors(),
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

    /// A product of f32 accuracy.
    pub(crate) fn product(&self, gpu: &Gpu, product: SplitProduct<'_>) -> Result<(), CudaError> {
        self.products.product(gpu, product)
    }

    /// Steps of attention over the memory.
    pub(crate) fn steps(&self, mix: &Mix<'_>) -> usize {
        self.products.steps(&self.sizes, mix)
    }

    /// Whether each of them is to be a launch of its own.
    pub(crate) fn steps_apart(&self) -> bool {
        self.products.manner.apart
    }

    /// Runs a range of the steps of attention in one launch: weights of memory rows, then partial sums of rows by them.
    pub(crate) fn attend(
        &self,
        gpu: &Gpu,
        attention: (&Mix<'_>, bool),
        steps: std::ops::Range<usize>,
        gate: &Block<i32>,
    ) -> Result<(), CudaError> {
        self.products
            .attend(gpu, &self.sizes, attention, steps, gate)
    }

    /// Runs attention in a manner; for tests.
    #[cfg(test)]
    pub(crate) fn take_manner(&mut self, manner: Manner) {
        self.products.manner = manner;
    }

    /// Keys of a group of the softmax.
    pub(crate) fn group_keys(&self) -> usize {
        self.products.group_keys()
    }

    /// Runs a range of phases, which lie on the device.
    pub(crate) fn finish(
        &self,
        gpu: &Gpu,
        phases: &Block<Phase>,
        range: std::ops::Range<usize>,
        gate: &Block<i32>,
    ) -> Result<(), CudaError> {
        assert!(
            range.start < range.end && range.end <= phases.len() && gate.len() >= 2,
            "phases of the list"
        );
        // SAFETY: `Phases` bounded every block that a phase names; the gate has its two places.
        unsafe {
            gpu.launch_together(
                self.finish,
                [self.blocks, 1, 1],
                THREADS,
                arguments![
                    phases.address(),
                    int(range.start),
                    int(range.end),
                    int(phases.len()),
                    gate.address()
                ],
            )
        }
    }
}
