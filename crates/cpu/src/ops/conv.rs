//! Depthwise causal convolution along the rows of a stream, then SiLU.
//!
//! Shapes: `x` `[rows, channels]` f32 inside wider rows; taps `[kernel][channels]`, oldest first; state
//! `[kernel − 1][channels]`, the inputs before the first row, oldest first; `y` `[rows, channels]`.
//! Sum order: oldest tap first, one chain of multiply-adds. In bf16 the sum and the SiLU are rounded.
//! Source: the reference's `conv1d` without bias and its state, zero at a stream's start.
//! Cost: `kernel` multiply-adds a value; bound by memory.

use std::ops::Range;

use super::Precision;
use super::lanes::round_if;
use super::math::silu;
use crate::arch::{Isa, LANES, Tile, kernel};

/// Channels of a task; states are kept in blocks of so many.
pub(crate) const CONV_CHANNELS: usize = 128;

/// Rows of a stream, as parts of wider rows.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    /// `[rows, width]`.
    pub(crate) data: &'a [f32],
    pub(crate) width: usize,
}

/// The taps of all channels.
#[derive(Debug)]
pub(crate) struct Taps {
    /// `[blocks][kernel][CONV_CHANNELS]`; channels past the last are zero.
    taps: Vec<f32>,
    kernel: usize,
}

impl Taps {
    /// From `[channels, kernel]`, as stored.
    pub(crate) fn new(stored: &[f32], kernel: usize) -> Taps {
        let channels = stored.len() / kernel;
        let mut taps = vec![0.0; channels.next_multiple_of(CONV_CHANNELS) * kernel];
        for (at, tap) in stored.iter().enumerate() {
            let (channel, k) = (at / kernel, at % kernel);
            let (block, lane) = (channel / CONV_CHANNELS, channel % CONV_CHANNELS);
            taps[(block * kernel + k) * CONV_CHANNELS + lane] = *tap;
        }
        Taps { taps, kernel }
    }

    /// Convolves a block's channels of a stream's rows, `out`'s rows of `x`, and moves its state on.
    pub(crate) fn run(
        &self,
        isa: Isa,
        precision: Precision,
        x: Columns<'_>,
        state: &mut [f32],
        out: &mut Tile<'_>,
    ) {
        let columns = out.columns();
        let block = columns.start / CONV_CHANNELS;
        let taps = &self.taps[block * self.kernel * CONV_CHANNELS..][..self.kernel * CONV_CHANNELS];
        for (t, row) in out.rows().enumerate() {
            let window = Window {
                x,
                state: &*state,
                first: out.rows().start,
                t,
                columns: columns.clone(),
            };
            conv_row(isa, taps, window, precision.is_bf16(), out.row(row));
        }
        self.keep(x, out, state);
    }

    /// Keeps the last inputs for the next rows.
    fn keep(&self, x: Columns<'_>, out: &Tile<'_>, state: &mut [f32]) {
        let (rows, columns, kept) = (out.rows(), out.columns(), self.kernel - 1);
        for i in 0..kept {
            let place = i * CONV_CHANNELS..i * CONV_CHANNELS + columns.len();
            if i + rows.len() < kept {
                state.copy_within(
                    place.start + rows.len() * CONV_CHANNELS
                        ..place.end + rows.len() * CONV_CHANNELS,
                    place.start,
                );
            } else {
                let row = rows.start + i + rows.len() - kept;
                state[place].copy_from_slice(&x.data[row * x.width..][columns.clone()]);
            }
        }
    }
}

/// The inputs of one output row: the row itself and those before it.
struct Window<'a> {
    x: Columns<'a>,
    state: &'a [f32],
    /// The stream's first row in `x`, and the output's row counted from there.
    first: usize,
    t: usize,
    columns: Range<usize>,
}

impl Window<'_> {
    /// The inputs `back` rows before the output's, of `kept` rows of state.
    #[inline(always)]
    fn row(&self, back: usize, kept: usize) -> &[f32] {
        if back <= self.t {
            &self.x.data[(self.first + self.t - back) * self.x.width..][self.columns.clone()]
        } else {
            &self.state[(kept + self.t - back) * CONV_CHANNELS..][..self.columns.len()]
        }
    }
}

kernel! {
    fn conv_row<'a>(s, taps: &'a [f32], window: Window<'a>, bf16: bool, out: &'a mut [f32]) {
        let kept = taps.len() / CONV_CHANNELS - 1;
        for start in (0..out.len()).step_by(LANES) {
            let end = (start + LANES).min(out.len());
            let mut sum = s.splat(0.0);
            for (k, taps) in taps.chunks_exact(CONV_CHANNELS).enumerate() {
                let row = &window.row(kept - k, kept)[start..end];
                let row = if row.len() == LANES { s.load(row) } else { s.load_part(row, 0.0) };
                sum = s.fma(row, s.load(&taps[start..]), sum);
            }
            let y = round_if(s, bf16, silu(s, round_if(s, bf16, sum)));
            if end - start == LANES {
                s.store(&mut out[start..end], y);
            } else {
                s.store_part(&mut out[start..end], y);
            }
        }
    }
}
