//! The joint schema head on the CPU.
//!
//! ```text
//! hidden rows ─norm─► n ─┬─ memory_projection ─► mem [T, W] ──────────────┐
//!  piece by piece        └─ means over spans ──► q, c, g ─┐               │
//! output embedding's rows ─ means ─────────────► x ───────┴─► options ─► questions ─► logits
//!                                                               evidence   decoder
//! ```
//!
//! While a prompt passes, [`HeadRun::absorb`] keeps W values of each row and a sum of each span, no more; the rest is
//! computed in [`HeadRun::finish`] (`forward`). Means are in `spans`, attention in `attention`.
//!
//! Precision: f32 over the file's weights (bf16, f16 or f32, exactly), finer sums where few rows decide a logit; see
//! `forward`. Against the release's head in f32 a logit differs by about its own rounding.
//! Sum order: a row's numbers depend neither on the other rows of its piece nor on threads; spans are summed in row order,
//! keys in blocks of 64 from the prompt's first row. So cuts, threads, instruction sets and preloaded memory leave the
//! bits as they are.

mod attention;
mod forward;
mod gelu;
mod norm;
mod spans;
mod weights;

use std::ops::Range;
use std::sync::Arc;

use descant_decision::{Encoded, Logits};
use descant_model::{Defect, Head, HeadRun, HeadWeights, SavedMemory};
use descant_release::{HeadConfig, LoadError};

use crate::Pool;
use forward::{Forward, Inputs};
use spans::{SpanSums, lexical_means};
use weights::Weights;

/// Rows whose normalised form exists at one time, [`NORMED_ROWS`] · H · 4 bytes.
const NORMED_ROWS: usize = 240;

/// A joint schema head on the CPU. Cloning gives another handle to the same weights.
#[derive(Clone, Debug)]
pub struct CpuHead {
    shared: Arc<Shared>,
}

/// What all decisions share.
#[derive(Debug)]
struct Shared {
    config: HeadConfig,
    weights: Weights,
    /// Read again for the output embedding's rows.
    source: Arc<dyn HeadWeights>,
    /// Threads that the rounds leave free.
    pool: Pool,
}

impl CpuHead {
    /// Packs a head's weights. `source`, usually the release, is kept: the output embedding's rows are read from it.
    /// Decisions use the threads of `pool` [beside](Pool::beside) its other work.
    ///
    /// # Errors
    /// [`LoadError::TensorMissing`] (never for an open release with this head) and [`LoadError::Memory`].
    ///
    /// # Panics
    /// If a tensor has another shape than `config` asks for, which an open release rules out.
    pub fn load(
        config: &HeadConfig,
        source: Arc<dyn HeadWeights>,
        pool: &Pool,
    ) -> Result<CpuHead, LoadError> {
        let weights = Weights::load(config, source.as_ref(), pool)?;
        Ok(CpuHead {
            shared: Arc::new(Shared {
                config: config.clone(),
                weights,
                source,
                pool: pool.beside(),
            }),
        })
    }
}

impl Head for CpuHead {
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun> {
        let HeadConfig { hidden, width, .. } = self.shared.config;
        Box::new(Run {
            spans: SpanSums::new(&encoded, hidden),
            memory: Vec::with_capacity(encoded.ids.len() * width),
            normed: Vec::new(),
            last: Vec::new(),
            head: Arc::clone(&self.shared),
            encoded,
        })
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        memory_bytes(self.shared.config.width, rows)
    }
}

/// Bytes of so many memory rows.
fn memory_bytes(width: usize, rows: usize) -> usize {
    size_of::<f32>() * width * rows
}

/// One decision on its way.
#[derive(Debug)]
struct Run {
    head: Arc<Shared>,
    encoded: Arc<Encoded>,
    /// mem of the rows so far, `[rows, W]`
    memory: Vec<f32>,
    spans: SpanSums,
    /// n of some rows at a time, `[NORMED_ROWS, H]`
    normed: Vec<f32>,
    /// n of the last row, `[H]`, once it came
    last: Vec<f32>,
}

impl Run {
    /// Rows taken so far.
    fn rows(&self) -> usize {
        self.memory.len() / self.head.config.width
    }

    /// Takes at most [`NORMED_ROWS`] hidden rows.
    fn absorb_block(&mut self, hidden: &[f32]) {
        let Shared {
            config,
            weights,
            pool,
            ..
        } = self.head.as_ref();
        let (start, count) = (self.rows(), hidden.len() / config.hidden);
        self.normed.resize(hidden.len(), 0.0);
        weights
            .hidden_norm
            .rows_into(pool, hidden, &mut self.normed);

        let taken = self.memory.len();
        self.memory.resize(taken + count * config.width, 0.0);
        weights
            .memory
            .forward_f32(pool, &self.normed, count, &mut self.memory[taken..]);
        self.spans.absorb(pool, start, &self.normed);
        if start + count == self.encoded.ids.len() {
            self.last = self.normed[(count - 1) * config.hidden..].to_vec();
        }
    }
}

impl HeadRun for Run {
    fn absorb(&mut self, start: usize, hidden: &[f32]) -> Result<(), Defect> {
        let width = self.head.config.hidden;
        assert_eq!(start, self.rows(), "rows come in order, none twice");
        assert!(
            hidden.len().is_multiple_of(width),
            "hidden rows of another width"
        );
        assert!(
            start + hidden.len() / width <= self.encoded.ids.len(),
            "more rows than the prompt has"
        );
        hidden
            .chunks(NORMED_ROWS * width)
            .for_each(|block| self.absorb_block(block));
        Ok(())
    }

    fn memory(&self, rows: Range<usize>) -> Option<SavedMemory> {
        let width = self.head.config.width;
        assert!(
            rows.end <= self.rows(),
            "rows {rows:?} of {} taken",
            self.rows()
        );
        let of = rows.start * width..rows.end * width;
        Some(SavedMemory {
            bytes: memory_bytes(width, rows.len()),
            rows,
            data: Box::new(self.memory[of].to_vec()),
        })
    }

    fn preload(&mut self, memory: &SavedMemory) {
        assert_eq!(
            memory.rows.start,
            self.rows(),
            "rows come in order, none twice"
        );
        let rows = memory.data.downcast_ref::<Vec<f32>>();
        let rows = rows.expect("the memory rows are of another head");
        let end = memory.rows.end;
        assert_eq!(
            rows.len(),
            memory.rows.len() * self.head.config.width,
            "memory rows of another width"
        );
        assert!(
            end <= self.spans.first_row(),
            "row {end} is in a span, its hidden row is needed"
        );
        assert!(
            end < self.encoded.ids.len(),
            "the last hidden row is needed"
        );
        self.memory.extend_from_slice(rows);
    }

    fn finish(self: Box<Self>) -> Result<Logits, Defect> {
        let Run {
            head,
            encoded,
            memory,
            spans,
            last,
            ..
        } = *self;
        assert_eq!(
            memory.len(),
            encoded.ids.len() * head.config.width,
            "finished before every row was taken"
        );
        let lexical = lexical_means(
            &head.pool,
            head.source.as_ref(),
            &encoded,
            head.config.hidden,
        )
        .map_err(|error| Defect::Device {
            message: error.to_string(),
        })?;
        let means = spans.means();
        let last = last.iter().map(|x| f64::from(*x)).collect();
        let inputs = Inputs {
            questions: means.questions,
            contexts: means.options,
            lexical,
            last,
            memory,
        };
        let forward = Forward {
            config: &head.config,
            weights: &head.weights,
            pool: &head.pool,
        };
        let logits = forward.logits(&encoded, &inputs);
        match logits
            .iter()
            .position(|of_question| of_question.iter().any(|logit| !logit.is_finite()))
        {
            None => Ok(logits),
            Some(index) => Err(Defect::NonFinite {
                question: encoded.questions[index].id.clone(),
            }),
        }
    }
}
