//! The joint schema head as the engine sees it.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use descant_decision::{Encoded, Logits};
use descant_release::{LoadError, Release, Tensor};

use crate::{Defect, KeptRows};

/// Where a head's weights come from: a release, or whatever else has tensors of these names.
///
/// The names are those of the reference's module, `hidden_norm.weight` to `residual_gate`; the dtypes are BF16, F16 or
/// F32.
pub trait HeadWeights: fmt::Debug + Send + Sync {
    /// A tensor of the head.
    ///
    /// # Errors
    /// [`LoadError::TensorMissing`].
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError>;

    /// The rows, `[vocab, H]`, that the lexical prior averages. Only rows of a record's tokens are read.
    ///
    /// # Errors
    /// [`LoadError::TensorMissing`].
    fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError>;
}

impl HeadWeights for Release {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        Release::tensor(self, name)
    }

    fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        Release::lexical_embedding(self)
    }
}

/// A copy of a decision's projected memory rows, for a later decision on the same prefix.
///
/// Only a run of the head that made it can read it.
pub struct SavedMemory {
    /// Positions whose rows it holds.
    pub rows: Range<usize>,
    /// Memory it takes, in bytes.
    pub bytes: usize,
    /// The head's own data.
    pub data: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for SavedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedMemory")
            .field("rows", &self.rows)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A joint schema head, shared by all decisions.
pub trait Head: Send + Sync {
    /// Starts a decision.
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun>;

    /// Bytes that a copy of so many memory rows takes.
    fn memory_bytes(&self, rows: usize) -> usize;
}

/// One decision on its way through the head. Its numbers depend on the record and the hidden rows alone, not on the
/// cut of the rows into pieces nor on the number of threads.
pub trait HeadRun: Send {
    /// Takes the next hidden rows of the prompt, `[n, H]` f32; rows come in order, none twice.
    ///
    /// # Errors
    /// A [`Defect`] of the device.
    ///
    /// # Panics
    /// If `start` is not the number of rows taken so far.
    fn absorb(&mut self, start: usize, hidden: &[f32]) -> Result<(), Defect>;

    /// Takes the next hidden rows from where the backend kept them for this head.
    ///
    /// # Errors
    /// A [`Defect`] of the device, or if the rows are kept for another head: one that no backend keeps rows for takes none.
    ///
    /// # Panics
    /// If `start` is not the number of rows taken so far.
    fn absorb_kept(&mut self, start: usize, rows: KeptRows) -> Result<(), Defect> {
        let _ = (start, rows);
        Err(Defect::Device {
            message: "this head takes hidden rows from the host alone".into(),
        })
    }

    /// Copies projected memory rows taken so far for a later decision on the same prefix; `None` if there is no room for them, or
    /// the device fails, as the answer does not need them. `rows` begins and ends at multiples of [`CHUNK_ROWS`].
    ///
    /// # Panics
    /// If a row was not taken yet.
    ///
    /// [`CHUNK_ROWS`]: crate::CHUNK_ROWS
    fn memory(&self, rows: Range<usize>) -> Option<SavedMemory>;

    /// Takes projected memory rows of an earlier decision in place of the next hidden rows. They must lie before the
    /// first span and the last row, whose hidden rows are needed themselves.
    ///
    /// # Panics
    /// If they do not, if they do not begin at the number of rows taken so far, or if they are of another head.
    fn preload(&mut self, memory: &SavedMemory);

    /// Gives the logits once every row of the prompt was taken.
    ///
    /// # Errors
    /// [`Defect::NonFinite`] naming the first question whose logits are not finite, or a [`Defect`] of the device.
    fn finish(self: Box<Self>) -> Result<Logits, Defect>;
}
