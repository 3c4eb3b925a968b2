//! The joint schema head as the engine sees it.

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

/// A joint schema head, shared by all decisions.
pub trait Head: Send + Sync {
    /// Starts a decision.
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun>;
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

    /// Copies the projected memory rows taken so far for a later decision on the same prefix: as many values a row as the head
    /// likes, which only a run of the same head can read. None if the device fails.
    ///
    /// # Panics
    /// If a row was not taken yet.
    fn memory(&self, rows: Range<usize>) -> Vec<f32>;

    /// Takes projected memory rows of an earlier decision in place of the next hidden rows. They must lie before the
    /// first span and the last row, whose hidden rows are needed themselves.
    ///
    /// # Panics
    /// If they do not, or if `start` is not the number of rows taken so far.
    fn preload(&mut self, start: usize, memory: &[f32]);

    /// Gives the logits once every row of the prompt was taken.
    ///
    /// # Errors
    /// [`Defect::NonFinite`] naming the first question whose logits are not finite, or a [`Defect`] of the device.
    fn finish(self: Box<Self>) -> Result<Logits, Defect>;
}
