//! A [`Backend`] on the CPU.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use descant_model::{Backend, CHUNK_ROWS, Capacity, Defect, Pass, Saved, Segment, Slot};
use descant_release::{LoadError, ModelConfig, Release};

use crate::arch::Pool;
use crate::linear::{Linear, forward_mapped};
use crate::ops::Precision;
use crate::ops::rope::Rope;

mod memory;
mod round;
mod slots;
mod snapshot;
mod weights;

pub use memory::{MemoryItem, memory};
use round::{Buffers, Plan, Round};
use slots::Slots;
use snapshot::Snapshot;
use weights::Weights;

/// How a backend is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How activations are kept.
    pub precision: Precision,
    /// What is reserved.
    pub capacity: Capacity,
    /// Where the output embedding is.
    pub lm_head: LmHead,
}

/// Where the output embedding is read for next-token logits. Both give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LmHead {
    /// In the release's file: no memory, a slow step of chat.
    Mapped,
    /// Packed in memory: 2 bytes a value.
    Packed,
}

/// A Qwen3.5-family text model on the CPU.
///
/// Weights are packed at the start; embedding rows are read from the release's file. Nothing but a few indices of the
/// round's segments is allocated later.
pub struct CpuBackend {
    release: Arc<Release>,
    pool: Arc<Pool>,
    options: Options,
    weights: Weights,
    lm_head: Option<Linear>,
    rope: Rope,
    slots: Slots,
    buffers: Buffers,
    /// Rows of the last round.
    rows: usize,
}

impl CpuBackend {
    /// Allocates everything, and packs the weights straight from the release's files.
    ///
    /// # Errors
    /// [`LoadError::Memory`], with what it was for, if there is no memory.
    pub fn load(
        release: Arc<Release>,
        options: Options,
        pool: Arc<Pool>,
    ) -> Result<CpuBackend, LoadError> {
        let (config, capacity) = (release.config(), options.capacity);
        // Smaller items first: what does not fit is then known before the weights are read.
        let slots = Slots::new(config, options.precision, capacity, &pool)?;
        let buffers = Buffers::new(config, capacity.rows, &pool)?;
        let rope = Rope::new(&config.attention, options.precision, capacity.positions)?;
        let weights = Weights::load(&release, options.precision, &pool)?;
        let lm_head = match options.lm_head {
            LmHead::Mapped => None,
            LmHead::Packed => Some(weights::pack_lm_head(&release, options.precision, &pool)?),
        };
        Ok(CpuBackend {
            release,
            pool,
            options,
            weights,
            lm_head,
            rope,
            slots,
            buffers,
            rows: 0,
        })
    }

    /// Checks a round against the rules of [`Segment`] and what was reserved.
    fn check(&self, round: &[Segment<'_>]) {
        let capacity = self.options.capacity;
        let rows: usize = round.iter().map(|segment| segment.tokens.len()).sum();
        assert!(
            rows <= capacity.rows,
            "a round of {rows} rows, {} are reserved",
            capacity.rows
        );
        for (index, segment) in round.iter().enumerate() {
            let (slot, rows) = (segment.slot, segment.tokens.len());
            assert!(
                !round[..index].iter().any(|other| other.slot == slot),
                "{slot:?} is in the round twice"
            );
            assert_eq!(
                segment.start, self.slots.taken[slot.0],
                "{slot:?} stands at another row"
            );
            assert!(
                rows > 0 && segment.start + rows <= capacity.positions,
                "{slot:?} is full"
            );
            match segment.pass {
                Pass::Decode => assert_eq!(rows, 1, "a decode segment has one row"),
                Pass::Prefill => assert!(
                    segment.start.is_multiple_of(CHUNK_ROWS),
                    "a piece cuts a chunk"
                ),
            }
            let vocab = self.config().vocab;
            assert!(
                segment.tokens.iter().all(|token| (*token as usize) < vocab),
                "a token is not below {vocab}"
            );
        }
    }
}

impl Backend for CpuBackend {
    fn config(&self) -> &ModelConfig {
        self.release.config()
    }

    fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    fn reset(&mut self, slot: Slot) {
        self.slots.reset(slot.0);
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.check(round);
        let plan = Plan::new(round);
        self.rows = plan.rows();
        if self.rows == 0 {
            return Ok(());
        }
        let tokens: Vec<u32> = round
            .iter()
            .flat_map(|segment| segment.tokens)
            .copied()
            .collect();
        let embedding = self.release.embedding().map_err(lost)?;
        let run = Round {
            config: self.release.config(),
            weights: &self.weights,
            rope: &self.rope,
            precision: self.options.precision,
            pool: &self.pool,
            plan,
        };
        run.run(&tokens, &embedding, &mut self.buffers, &mut self.slots);
        for segment in round {
            self.slots.taken[segment.slot.0] += segment.tokens.len();
        }
        Ok(())
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        assert!(
            rows.end <= self.rows,
            "row {} was not in the last round",
            rows.end
        );
        let width = self.config().hidden;
        out.copy_from_slice(&self.buffers.normed[rows.start * width..rows.end * width]);
        Ok(())
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        let (width, vocab) = (self.config().hidden, self.config().vocab);
        assert_eq!(out.len(), rows.len() * vocab, "out is [rows, vocab]");
        let mut x = Vec::with_capacity(rows.len() * width);
        for row in rows {
            assert!(*row < self.rows, "row {row} was not in the last round");
            x.extend_from_slice(&self.buffers.normed[row * width..][..width]);
        }
        let precision = self.options.precision;
        match &self.lm_head {
            Some(lm_head) => lm_head.run(&self.pool, precision, &x, rows.len(), out),
            None => {
                let weights = self.release.output_embedding().map_err(lost)?;
                forward_mapped(&self.pool, precision, &weights, &x, out);
            }
        }
        Ok(())
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        Snapshot::bytes_of(&self.slots, rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        assert!(
            rows.start <= rows.end && rows.end.is_multiple_of(CHUNK_ROWS),
            "a copy ends with a chunk"
        );
        assert_eq!(
            self.slots.taken[slot.0], rows.end,
            "{slot:?} does not stand at the copy's end"
        );
        let snapshot = Snapshot::save(&self.pool, &mut self.slots, slot.0, rows.start);
        Ok(Some(Saved {
            rows: snapshot.rows.clone(),
            bytes: snapshot.bytes(),
            data: Box::new(snapshot),
        }))
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        assert_eq!(self.slots.taken[slot.0], 0, "{slot:?} is not empty");
        for saved in saved {
            assert_eq!(
                saved.rows.start, self.slots.taken[slot.0],
                "the copies do not follow one another"
            );
            let snapshot = saved
                .data
                .downcast_ref::<Snapshot>()
                .expect("the copy is of another backend");
            snapshot.load(&self.pool, &mut self.slots, slot.0);
        }
        Ok(())
    }
}

impl fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuBackend")
            .field("options", &self.options)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// A release that was opened has its embeddings.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn lost(error: LoadError) -> Defect {
    Defect::Device {
        message: error.to_string(),
    }
}
