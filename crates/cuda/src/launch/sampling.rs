//! Launches of `kernels/sampling.cu`.

use super::{arguments, image, int, module, plain};
use crate::driver::{Block, Gpu, Kernel};
use crate::error::CudaError;

const THREADS: usize = 256;
/// Threads of the kernels that have a block a row.
const WIDE: usize = 1024;
/// Threads of the kernel that counts, and tokens of one of its blocks.
const SCANNERS: usize = 512;
const SCANNED: usize = 32 * SCANNERS;
/// Tokens of any other block that shares a row.
const SPAN: usize = 8 * THREADS;
/// Counts of a row: one for each upper half of a key.
pub(crate) const BINS: usize = 1 << 16;
/// Fours of numbers that a row's settings are.
pub(crate) const SETTINGS_FOURS: usize = 3;
/// Largest vocabulary: sums of its weights stay below 2⁶³.
pub(crate) const VOCAB_MAX: usize = 1 << 19;

/// Blocks that share a row of logits.
pub(crate) fn spans(width: usize) -> usize {
    width.div_ceil(SPAN)
}

/// The choice of tokens.
#[derive(Debug)]
pub(crate) struct SamplingKernels {
    prepare: Kernel,
    scan: Kernel,
    cut: Kernel,
    weigh: Kernel,
    draw: Kernel,
}

/// Rows whose tokens are chosen, and the room for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws<'a> {
    /// `[rows, pitch]`; what changes name is overwritten.
    pub(crate) logits: &'a Block<u16>,
    /// Logits of a row that count.
    pub(crate) width: usize,
    pub(crate) pitch: usize,
    /// `[rows, 3]`: the kernel's `Settings`; their ranges lie in `changes`, and no `top_p` is 0.
    pub(crate) settings: &'a Block<[i32; 4]>,
    /// The kernel's `Change`: ids below the width, in a row's range ascending.
    pub(crate) changes: &'a Block<[i32; 4]>,
    /// `[rows, BINS]`.
    pub(crate) counts: &'a Block<i32>,
    /// `[rows]`.
    pub(crate) states: &'a Block<[i32; 4]>,
    /// `[rows, spans]`.
    pub(crate) sums: &'a Block<[i32; 4]>,
    /// `[rows]`: the ids, -1 where there is none.
    pub(crate) ids: &'a Block<i32>,
    /// Whether a row is cut by top_k or top_p.
    pub(crate) any_cut: bool,
}

impl Draws<'_> {
    /// Whether there is room for all rows.
    fn check(&self, rows: usize, spans: usize) {
        let Draws { width, pitch, .. } = *self;
        assert!(
            width > 0 && width <= pitch.min(VOCAB_MAX) && pitch.is_multiple_of(8),
            "rows that the kernels take"
        );
        assert!(
            rows * pitch <= self.logits.len()
                && rows * SETTINGS_FOURS <= self.settings.len()
                && rows * BINS <= self.counts.len()
                && rows <= self.states.len()
                && rows * spans <= self.sums.len(),
            "room for all rows"
        );
    }
}

impl SamplingKernels {
    pub(super) fn load(gpu: &Gpu) -> Result<SamplingKernels, CudaError> {
        let sampling = module(gpu, "the sampling kernels", image!("sampling.fatbin"))?;
        Ok(SamplingKernels {
            prepare: plain(&sampling, "prepare_rows")?,
            scan: plain(&sampling, "scan_rows")?,
            cut: plain(&sampling, "cut_rows")?,
            weigh: plain(&sampling, "weigh_rows")?,
            draw: plain(&sampling, "draw_rows")?,
        })
    }

    /// Chooses a token for each row.
    pub(crate) fn draw(&self, gpu: &Gpu, draws: Draws<'_>) -> Result<(), CudaError> {
        let Draws { width, pitch, .. } = draws;
        let (rows, spans) = (draws.ids.len(), spans(width));
        draws.check(rows, spans);
        let logits = draws.logits.address();
        let (settings, changes) = (draws.settings.address(), draws.changes.address());
        let (counts, states) = (draws.counts.address(), draws.states.address());
        let sums = draws.sums.address();
        let (width, pitch) = (int(width), int(pitch));
        // Zeroing a row's counts is shared out among so many blocks.
        let prepare = if draws.any_cut { 16 } else { 1 };
        // SAFETY: the blocks have room for `rows` rows by the asserts; ranges and ids of changes are as `Draws` says.
        unsafe {
            gpu.launch_chained(
                self.prepare,
                [prepare, rows, 1],
                THREADS,
                arguments![logits, settings, changes, counts, states, pitch],
            )
        }?;
        // SAFETY: as above; a block reads `SCANNED` logits of its row, as far as the width goes.
        unsafe {
            gpu.launch_chained(
                self.scan,
                [draws.width.div_ceil(SCANNED), rows, 1],
                SCANNERS,
                arguments![logits, settings, changes, counts, states, width, pitch],
            )
        }?;
        if draws.any_cut {
            // SAFETY: as above.
            unsafe {
                gpu.launch_chained(
                    self.cut,
                    [rows, 1, 1],
                    WIDE,
                    arguments![settings, changes, counts, states],
                )
            }?;
        }
        // SAFETY: as above; a block writes the sum of its span.
        unsafe {
            gpu.launch_chained(
                self.weigh,
                [spans, rows, 1],
                THREADS,
                arguments![logits, settings, changes, states, sums, width, pitch],
            )
        }?;
        // SAFETY: as above; there are at most `WIDE` spans, since the width is at most `VOCAB_MAX`.
        unsafe {
            gpu.launch_chained(
                self.draw,
                [rows, 1, 1],
                WIDE,
                arguments![
                    logits,
                    settings,
                    changes,
                    states,
                    sums,
                    draws.ids.address(),
                    width,
                    pitch,
                    int(spans)
                ],
            )
        }
    }
}
