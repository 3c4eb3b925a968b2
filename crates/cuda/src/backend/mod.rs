//! A [`Backend`] on a CUDA device.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use descant_model::{
    Backend, CHUNK_ROWS, Capacity, Choice, Defect, KeptRows, Pass, Saved, Segment, Slot,
};
use descant_release::{ModelConfig, Release};

use crate::bench::Profile;
use crate::driver::{Block, Gpu, Graph, Pinned, Shelf};
use crate::error::CudaError;
use crate::head::{Kept, Staging};
use crate::launch::{Kernels, Product};

mod memory;
mod plan;
mod round;
pub(crate) mod sampling;
mod slots;
mod snapshot;
mod weights;

pub use memory::{MemoryItem, memory};
use plan::{DecodeForm, Lists, Plan};
use round::{Buffers, Round};
use sampling::{SampleRoom, Tokens};
use slots::{Slots, marks_max};
use snapshot::{Snapshot, Snapshots};
use weights::Weights;

/// Recorded rounds that are kept; the oldest goes first.
const GRAPHS_MAX: usize = 32;

/// How a backend is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of the device.
    pub ordinal: usize,
    /// What is reserved.
    pub capacity: Capacity,
    /// Memory for copies of slots, in bytes.
    pub snapshot_bytes: usize,
    /// Whether to use only kernels that every device from compute capability 8.0 on has; for tests.
    pub portable: bool,
}

/// A Qwen3.5-family text model on a CUDA device.
///
/// Everything is allocated at the start. Work is queued on one stream; what is asked of a round waits for it.
pub struct CudaBackend {
    /// Recorded rounds of decode rows, the newest last.
    graphs: Vec<(DecodeForm, Graph)>,
    // Blocks first: they go before the device does.
    pub(crate) weights: Weights,
    pub(crate) slots: Slots,
    pub(crate) buffers: Buffers,
    lists: Lists,
    snapshots: Snapshots,
    sample_room: SampleRoom,
    /// Where logits of one product are copied to.
    pinned: Pinned<u16>,
    pub(crate) kernels: Kernels,
    pub(crate) gpu: Gpu,
    config: ModelConfig,
    options: Options,
    /// Rows of the last round.
    rows: usize,
    /// Where hidden rows are kept for a head on this device.
    staging: Option<Arc<Staging>>,
}

impl CudaBackend {
    /// Allocates everything, and copies a release's weights to the device.
    ///
    /// # Errors
    /// A [`CudaError`]: no driver, no device, no memory, a size that the kernels do not take, or the release's own.
    pub fn load(release: &Release, options: Options) -> Result<CudaBackend, CudaError> {
        CudaBackend::make(release.config().clone(), options, |gpu, _, config| {
            Weights::load(gpu, config, release)
        })
    }

    /// Allocates everything, and makes seeded random weights on the device: their answers mean nothing, their speed is that
    /// of a release of this shape.
    ///
    /// # Errors
    /// As [`CudaBackend::load`].
    pub fn with_dummy_weights(
        config: ModelConfig,
        options: Options,
        seed: u32,
    ) -> Result<CudaBackend, CudaError> {
        CudaBackend::make(config, options, |gpu, kernels, config| {
            Weights::dummy(gpu, kernels, config, seed)
        })
    }

    fn make(
        config: ModelConfig,
        options: Options,
        weights: impl FnOnce(&Gpu, &Kernels, &ModelConfig) -> Result<Weights, CudaError>,
    ) -> Result<CudaBackend, CudaError> {
        check_sizes(&config)?;
        let gpu = Gpu::open(options.ordinal)?;
        let kernels = Kernels::load(&gpu, options.portable)?;
        // Smaller items first: what does not fit is then known before the weights are read.
        let capacity = Capacity {
            positions: options.capacity.positions.next_multiple_of(CHUNK_ROWS),
            ..options.capacity
        };
        let mut slots = Slots::new(&gpu, &config, capacity)?;
        let buffers = Buffers::new(&gpu, &config, capacity)?;
        let lists = Lists::new(&gpu, capacity)?;
        let snapshots = Snapshots::new(&gpu, &config, capacity, options.snapshot_bytes)?;
        let sample_room = SampleRoom::new(&gpu, config.vocab)?;
        let pinned = Pinned::new(
            &gpu,
            buffers.logits_rows() * config.vocab.next_multiple_of(8),
        )?;
        if !snapshots.are_exact(&gpu, &mut slots, 0)? {
            return Err(CudaError::Snapshots);
        }
        slots.reset(&gpu, 0)?;
        let weights = weights(&gpu, &kernels, &config)?;
        gpu.wait()?;
        Ok(CudaBackend {
            graphs: Vec::new(),
            weights,
            slots,
            buffers,
            lists,
            snapshots,
            sample_room,
            pinned,
            kernels,
            gpu,
            config,
            options,
            rows: 0,
            staging: None,
        })
    }

    /// The output embedding's rows, `[vocab, H]`.
    pub(crate) fn output_embedding(&self) -> Block<u16> {
        self.weights.lm_head.weight.clone()
    }

    /// Where snapshots are kept, those of a head beside it among them.
    pub(crate) fn shelf(&self) -> Arc<Shelf> {
        self.snapshots.shelf()
    }

    /// Keeps hidden rows there from now on.
    pub(crate) fn keep_rows_in(&mut self, staging: Option<Arc<Staging>>) {
        self.staging = staging;
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        self.gpu.name()
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
        let marks = round.iter().filter(|segment| segment.mark.is_some());
        assert!(marks.count() <= marks_max(capacity), "too many marks");
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
            let end = segment.start + rows;
            assert!(
                segment.mark.is_none_or(|mark| segment.start < mark
                    && mark < end
                    && mark.is_multiple_of(CHUNK_ROWS)),
                "a mark is no chunk's end inside"
            );
            match segment.pass {
                Pass::Decode => assert_eq!(rows, 1, "a decode segment has one row"),
                Pass::Prefill => assert!(
                    segment.start.is_multiple_of(CHUNK_ROWS),
                    "a piece cuts a chunk"
                ),
            }
            let vocab = self.config.vocab;
            assert!(
                segment.tokens.iter().all(|token| (*token as usize) < vocab),
                "a token is not below {vocab}"
            );
        }
    }

    /// Makes the device the calling thread's.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.gpu.bind()
    }

    /// Queues a round; a profile notes its parts.
    pub(crate) fn run_round(
        &mut self,
        round: &[Segment<'_>],
        profile: Option<&Profile>,
    ) -> Result<(), CudaError> {
        self.check(round);
        self.gpu.bind()?;
        let tile_rows = self.kernels.attention.tile_rows(&self.slots.shape);
        let plan = Plan::new(round, self.options.capacity.slots, tile_rows);
        self.rows = plan.rows();
        self.slots.marks.clear();
        if self.rows == 0 {
            return Ok(());
        }
        for segment in round {
            let touched = &mut self.slots.touched[segment.slot.0];
            *touched = (*touched).max(segment.start + segment.tokens.len());
        }
        let lists = self.lists.upload(&self.gpu, &plan)?;
        let run = Round {
            gpu: &self.gpu,
            kernels: &self.kernels,
            config: &self.config,
            weights: &self.weights,
            slots: &self.slots,
            buffers: &self.buffers,
            plan: &plan,
            lists: &lists,
            profile,
        };
        match (plan.decode_form(), profile) {
            (Some(form), None) => {
                let known = self.graphs.iter().position(|(other, _)| *other == form);
                let index = match known {
                    Some(index) => index,
                    None => {
                        let graph = self.gpu.record(|| run.run())?;
                        if self.graphs.len() == GRAPHS_MAX {
                            self.graphs.remove(0);
                        }
                        self.graphs.push((form, graph));
                        self.graphs.len() - 1
                    }
                };
                self.gpu.replay(&self.graphs[index].1)?;
            }
            _ => run.run()?,
        }
        for segment in round {
            self.slots.taken[segment.slot.0] += segment.tokens.len();
            let mark = segment.mark.map(|mark| Some((segment.slot.0, mark)));
            self.slots.marks.extend(mark);
        }
        Ok(())
    }

    /// Queues the logits of at most [`Buffers::logits_rows`] rows; gives them, `[rows, padded vocab]`.
    fn queue_logits(&self, rows: &[usize]) -> Result<Block<u16>, CudaError> {
        let (hidden, padded) = (self.config.hidden, self.weights.lm_head.outputs);
        let ids: Vec<i32> = rows
            .iter()
            .map(|row| i32::try_from(*row).expect("a row of the round"))
            .collect();
        let list = self.lists.picks(&self.gpu, &ids)?;
        let (picked, logits) = (&self.buffers.picked, &self.buffers.logits);
        self.kernels
            .rows
            .gather(&self.gpu, &self.buffers.normed, &list, picked, hidden)?;
        let product = Product {
            x: picked,
            weight: &self.weights.lm_head.weight,
            out: logits,
            rows: rows.len(),
            inputs: hidden,
            outputs: padded,
            swiglu: false,
        };
        self.kernels.gemm.run(&self.gpu, product)?;
        Ok(logits.part(0..rows.len() * padded))
    }

    fn check_rows(&self, rows: &[usize]) {
        assert!(
            rows.iter().all(|row| *row < self.rows),
            "a row that was not in the last round"
        );
    }

    fn read_logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), CudaError> {
        let (vocab, padded) = (self.config.vocab, self.weights.lm_head.outputs);
        assert_eq!(out.len(), rows.len() * vocab, "out is [rows, vocab]");
        self.check_rows(rows);
        self.gpu.bind()?;
        let at_once = self.buffers.logits_rows();
        for (rows, out) in rows.chunks(at_once).zip(out.chunks_mut(at_once * vocab)) {
            let logits = self.queue_logits(rows)?;
            let bits = self.gpu.download_pinned(&logits, &mut self.pinned)?;
            for (bits, out) in bits.chunks_exact(padded).zip(out.chunks_exact_mut(vocab)) {
                widen(&bits[..vocab], out);
            }
        }
        Ok(())
    }

    /// Chooses the tokens of rows, with every choice in the hands of `by`.
    pub(crate) fn draw_by(
        &self,
        rows: &[usize],
        choices: &[Choice<'_>],
        mut by: impl FnMut(&dyn Fn() -> Result<Tokens, CudaError>) -> Result<Tokens, CudaError>,
    ) -> Result<Tokens, CudaError> {
        let (vocab, padded) = (self.config.vocab, self.weights.lm_head.outputs);
        assert_eq!(rows.len(), choices.len(), "a choice for each row");
        self.check_rows(rows);
        self.gpu.bind()?;
        let (device, room) = ((&self.gpu, &self.kernels), &self.sample_room);
        let mut found = Vec::with_capacity(rows.len());
        let at_once = self.buffers.logits_rows();
        for (rows, choices) in rows.chunks(at_once).zip(choices.chunks(at_once)) {
            let logits = self.queue_logits(rows)?;
            found.extend(by(&|| {
                room.draw(device, &logits, (vocab, padded), choices)
            })?);
        }
        Ok(found)
    }
}

impl Backend for CudaBackend {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    fn marks_max(&self) -> usize {
        marks_max(self.options.capacity)
    }

    fn rows_step(&self) -> usize {
        // A product's tile has 128 rows, and on Hopper two of them share what they load.
        if self.kernels.gemm.fuses() { 256 } else { 128 }
    }

    fn reset(&mut self, slot: Slot) {
        // A device that cannot zero memory fails the next round too, which can say so; the slot is then undefined anyway.
        let _ = self
            .gpu
            .bind()
            .and_then(|()| self.slots.reset(&self.gpu, slot.0));
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.run_round(round, None)?;
        Ok(self.gpu.wait()?)
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        assert!(
            rows.end <= self.rows,
            "row {} was not in the last round",
            rows.end
        );
        let width = self.config.hidden;
        assert_eq!(out.len(), rows.len() * width, "out is [rows, hidden]");
        self.gpu.bind()?;
        let mut bits = vec![0; out.len()];
        self.gpu.download(
            &self
                .buffers
                .normed
                .part(rows.start * width..rows.end * width),
            &mut bits,
        )?;
        widen(&bits, out);
        Ok(())
    }

    fn keep_hidden(&self, rows: Range<usize>) -> Result<Option<KeptRows>, Defect> {
        assert!(
            rows.end <= self.rows,
            "row {} was not in the last round",
            rows.end
        );
        let Some(staged) = self
            .staging
            .as_ref()
            .and_then(|staging| staging.take(rows.len()))
        else {
            return Ok(None);
        };
        self.gpu.bind()?;
        let width = self.config.hidden;
        let from = &self.buffers.normed;
        self.gpu.copy(
            &from.part(rows.start * width..rows.end * width),
            &staged.block(),
        )?;
        let mark = self.gpu.mark()?;
        Ok(Some(KeptRows {
            rows: rows.len(),
            data: Box::new(Kept { staged, mark }),
        }))
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        Ok(self.read_logits(rows, out)?)
    }

    fn sample(
        &mut self,
        rows: &[usize],
        choices: &[Choice<'_>],
    ) -> Result<Option<Vec<Option<u32>>>, Defect> {
        Ok(Some(self.draw_by(rows, choices, |draw| draw())?))
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        Snapshots::bytes_of(&self.slots, rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        assert!(
            rows.start <= rows.end && rows.end.is_multiple_of(CHUNK_ROWS),
            "a copy ends with a chunk"
        );
        let place = self.slots.place(slot.0, rows.end);
        let place = place.expect("the states after the rows are in the slot or at a mark");
        self.gpu.bind()?;
        let from = (slot.0, place);
        let snapshot = self.snapshots.save(&self.gpu, &self.slots, from, rows)?;
        Ok(snapshot.map(|snapshot| Saved {
            rows: snapshot.rows.clone(),
            bytes: snapshot.bytes(),
            data: Box::new(snapshot),
        }))
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        assert_eq!(self.slots.taken[slot.0], 0, "{slot:?} is not empty");
        self.gpu.bind()?;
        let mut end = 0;
        let chain = saved.iter().map(|saved| {
            assert_eq!(
                saved.rows.start, end,
                "the copies do not follow one another"
            );
            end = saved.rows.end;
            let snapshot = saved.data.downcast_ref::<Snapshot>();
            snapshot.expect("the copy is of another backend")
        });
        let chain: Vec<&Snapshot> = chain.collect();
        Ok(self
            .snapshots
            .load(&self.gpu, &mut self.slots, slot.0, &chain)?)
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend")
            .field("device", &self.gpu)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// bf16 bits as f32.
fn widen(bits: &[u16], out: &mut [f32]) {
    for (bits, out) in bits.iter().zip(out) {
        *out = f32::from_bits(u32::from(*bits) << 16);
    }
}

/// Refuses sizes that the kernels do not take.
fn check_sizes(config: &ModelConfig) -> Result<(), CudaError> {
    let (attention, linear) = (&config.attention, &config.linear);
    let multiples = [
        (
            "hidden_size",
            config.hidden,
            crate::launch::WIDTH_MAX,
            "a multiple of 8, at most 8192",
        ),
        (
            "intermediate_size",
            config.intermediate,
            usize::MAX,
            "a multiple of 8",
        ),
        (
            "head_dim",
            attention.head_dim,
            256,
            "a multiple of 8, at most 256",
        ),
        (
            "linear_key_head_dim",
            linear.key_dim,
            128,
            "a multiple of 8, at most 128",
        ),
        (
            "linear_value_head_dim",
            linear.value_dim,
            256,
            "a multiple of 8, at most 256",
        ),
    ];
    for (what, found, most, wanted) in multiples {
        if !found.is_multiple_of(8) || found > most {
            return Err(CudaError::Unsupported {
                what,
                found,
                wanted,
            });
        }
    }
    if config.vocab > crate::launch::VOCAB_MAX {
        return Err(CudaError::Unsupported {
            what: "vocab_size",
            found: config.vocab,
            wanted: "at most 524288",
        });
    }
    match linear.conv_kernel {
        1..=4 => Ok(()),
        found => Err(CudaError::Unsupported {
            what: "linear_conv_kernel_dim",
            found,
            wanted: "at most 4",
        }),
    }
}
