//! The device that runs rounds.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use descant_release::ModelConfig;

use crate::{Choice, Defect};

/// Rows of a chunk of the delta rule; pieces of a prompt start at multiples of it, so that a prompt's chunks do not
/// depend on how it was cut.
pub const CHUNK_ROWS: usize = 64;

/// Index of a reserved place for one stream: its KV cache, recurrent states and convolution states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub usize);

/// How a segment's rows are computed. The two ways round differently, so a row's way never depends on what else
/// is in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The next token of a running stream: one row, by the recurrence.
    Decode,
    /// A piece of a prompt: by chunks of [`CHUNK_ROWS`] rows.
    Prefill,
}

/// Rows of one stream in a round.
///
/// A prefill segment starts at a multiple of [`CHUNK_ROWS`] and, unless it ends the prompt, has a multiple of
/// [`CHUNK_ROWS`] rows. A decode segment has one row. `start` equals the number of rows the slot has taken so far.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// The stream's slot; a round names a slot at most once.
    pub slot: Slot,
    /// Position of the first row, counted from the stream's first row.
    pub start: usize,
    /// Token ids, one a row; each below [`ModelConfig::vocab`].
    pub tokens: &'a [u32],
    /// How the rows are computed.
    pub pass: Pass,
    /// A position inside a prefill segment, a multiple of [`CHUNK_ROWS`] beyond its start and before its end: the states
    /// after the rows before it are kept aside for [`Backend::save`], until the next round. At most
    /// [`Backend::marks_max`] segments of a round have one.
    pub mark: Option<usize>,
}

/// What a backend reserved at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of slots.
    pub slots: usize,
    /// Rows a slot can hold.
    pub positions: usize,
    /// Rows of one round, all segments together.
    pub rows: usize,
}

/// A copy of a slot's states at a multiple of [`CHUNK_ROWS`] rows, with the KV rows since the copy before it.
///
/// Only the backend that made it can read it.
pub struct Saved {
    /// Positions whose KV rows it holds; the recurrent and convolution states are those after `rows.end`.
    pub rows: Range<usize>,
    /// Memory it takes, in bytes.
    pub bytes: usize,
    /// The backend's own data.
    pub data: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saved")
            .field("rows", &self.rows)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Hidden rows of a round that a backend keeps where a head on the same device reads them. Dropping it gives their memory
/// back.
pub struct KeptRows {
    /// How many.
    pub rows: usize,
    /// The backend's own data.
    pub data: Box<dyn Any + Send>,
}

impl fmt::Debug for KeptRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptRows")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// A device that holds a model's weights and runs rounds over slots.
///
/// A stream's numbers depend on its own tokens, the weights and the backend alone: on no other segment of the round, on
/// no earlier user of the slot, on no number of threads and on no cut into pieces. Equal bits, not close ones.
pub trait Backend: Send {
    /// The model.
    fn config(&self) -> &ModelConfig;

    /// What was reserved.
    fn capacity(&self) -> Capacity;

    /// How many segments of a round may have a [`Segment::mark`]. With none a piece ends wherever a copy is to be taken.
    fn marks_max(&self) -> usize {
        0
    }

    /// Rows of a round cost about the same up to a multiple of so many, so that one row beyond costs as much as all up to the
    /// next.
    fn rows_step(&self) -> usize {
        1
    }

    /// Empties a slot: position 0, zero states.
    fn reset(&mut self, slot: Slot);

    /// Runs one round: moves each segment's slot on by its rows and keeps the final normed hidden rows until the next
    /// round. Rows are numbered from 0 through the segments in order. Returns when the rows are there: the time of the call
    /// is that of the round, and nothing of it can come in the way of what is asked for next.
    ///
    /// # Errors
    /// A [`Defect`] of the device. The slots of the round are then undefined and must be reset.
    ///
    /// # Panics
    /// If a segment breaks the rules of [`Segment`] or the round exceeds [`Backend::capacity`].
    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect>;

    /// Copies hidden rows of the last round, after the final RMSNorm, into `out`, `[rows.len(), hidden]` f32.
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    ///
    /// # Panics
    /// If a row was not in the last round or `out` has another length.
    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect>;

    /// Keeps hidden rows of the last round for the head on this device, where they outlive the next round; `None` if there is
    /// no such head or no room just now, so that they go by way of [`Backend::hidden`].
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    ///
    /// # Panics
    /// If a row was not in the last round.
    fn keep_hidden(&self, rows: Range<usize>) -> Result<Option<KeptRows>, Defect> {
        let _ = rows;
        Ok(None)
    }

    /// Next-token logits of some rows of the last round: `out` is `[rows.len(), vocab]` f32.
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    ///
    /// # Panics
    /// If a row was not in the last round or `out` has another length.
    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect>;

    /// Chooses the next tokens of some rows of the last round, as [`Choice::adjust`] and [`Choice::choose`] would from what
    /// [`Backend::logits`] shows, and spares the logits' copy. Of each row the id; none where a logit is NaN or positive
    /// infinity or the greatest, adjusted, is not finite.
    ///
    /// The device may round its sums otherwise than the host, but like everything of a row the token depends on the row and its
    /// choice alone. `None` if the backend has no such way; it is then the same for every row.
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    ///
    /// # Panics
    /// If a row was not in the last round, or the lists differ in length, or a choice breaks the rules of [`Choice`].
    fn sample(
        &mut self,
        rows: &[usize],
        choices: &[Choice<'_>],
    ) -> Result<Option<Vec<Option<u32>>>, Defect> {
        let _ = (rows, choices);
        Ok(None)
    }

    /// Bytes that a copy of a slot's states and of so many of its KV rows takes.
    fn saved_bytes(&self, rows: usize) -> usize;

    /// Copies a slot's states after `rows.end`, and its KV rows of `rows`, out of the slot; `None` if the device has no room
    /// for them. Prefill alone computed the slot's rows, and either it stands at `rows.end`, a multiple of [`CHUNK_ROWS`], or
    /// its segment of the last round had the mark there.
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    ///
    /// # Panics
    /// If the states after `rows.end` are neither in the slot nor kept aside.
    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect>;

    /// Fills an empty slot from copies whose rows follow one another from position 0; the slot then stands at the end of
    /// the last, in the state that a cold run would have there, bit for bit.
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect>;
}
