//! The joint schema head on a CUDA device.
//!
//! ```text
//! hidden rows ─norm─► n ─┬─ memory_projection ─► mem, in normal form [T, W] ─────┐
//!  piece by piece        └─ means over spans ──► q, c, g ─┐                      │
//! output embedding's rows ─ means ─────────────► x ───────┴─► options ─► questions ─► logits
//!                                                               evidence   decoder
//! ```
//!
//! The head has a stream of its own beside the backend's. Hidden rows come from the backend's device memory
//! ([`HeadRun::absorb_kept`]), or from the host ([`HeadRun::absorb`]); a row's bits are the same either way. `room` is its
//! memory, `forward` its passes, `kernels/head.cu`, `kernels/head_sm90.cu` and `kernels/head_finish.cu` what runs.
//!
//! Precision: rows of the prompt have 22 bits, products of theirs f32 accuracy; what belongs to the few options and
//! questions is f64. Sum order: fixed by the record alone, see the kernels.

mod forward;
mod room;
mod weights;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use descant_decision::{Encoded, Logits, Span};
use descant_model::{CHUNK_ROWS, Defect, Head, HeadRun, HeadWeights, KeptRows, SavedMemory};
use descant_release::{HeadConfig, LoadError};

use crate::backend::{CudaBackend, MemoryItem};
use crate::bench::{PartTime, Profile};
use crate::driver::{Block, Gpu, Mark, Pages, Shelf};
use crate::error::CudaError;
use crate::launch::{HeadKernels, HeadSizes, Rows};
use crate::paging::{Paging, Region};
use forward::{Forward, Lexical, Schema};
use room::{HOST_ROWS, OwnPlace, Place, Places, ROWS, Work};
pub(crate) use room::{Staged, Staging};
use weights::Weights;

/// How a head is made.
#[derive(Clone, Copy, Debug)]
pub struct HeadOptions {
    /// Number of the device.
    pub ordinal: usize,
    /// Rows of the longest prompt.
    pub positions: usize,
    /// Decisions that may be in the head at one time.
    pub runs: usize,
    /// Hidden rows that a backend may keep for it at one time; 0 if it is not on the same device.
    pub staged_rows: usize,
    /// Questions, options and one more that a record may have.
    pub spans: usize,
    /// Whether to use only kernels that every device from compute capability 8.0 on has; for tests.
    pub portable: bool,
}

impl HeadOptions {
    /// Questions, options and one more that fit a prompt: each takes eight tokens at least, of which its own are one.
    pub fn spans_of(positions: usize) -> usize {
        positions / 8 + 8
    }
}

/// What [`CudaHead::load`] will allocate on the device.
pub fn head_memory(config: &HeadConfig, options: &HeadOptions) -> Vec<MemoryItem> {
    let item = |name, bytes| MemoryItem { name, bytes };
    vec![
        item("head weights", Weights::bytes(config)),
        item("decisions in the head", Places::bytes(config, options)),
        item("activations of the head", Work::bytes(config, options)),
        item(
            "lists of the head's snapshots",
            Paging::list_bytes(memory_pieces(config, options)),
        ),
        item(
            "hidden rows on their way to the head",
            2 * options.staged_rows * config.hidden,
        ),
    ]
}

/// A joint schema head on a CUDA device. Cloning gives another handle to the same weights.
#[derive(Clone)]
pub struct CudaHead {
    shared: Arc<Shared>,
}

/// What all decisions share.
struct Shared {
    config: HeadConfig,
    options: HeadOptions,
    weights: Weights,
    /// Read again for the output embedding's rows.
    source: Arc<dyn HeadWeights>,
    /// The output embedding, `[vocab, H]`, if the backend has it.
    table: Option<Block<u16>>,
    staging: Option<Arc<Staging>>,
    places: Arc<Places>,
    /// Held while work is queued that uses it; what is queued runs in the order of the stream.
    work: Mutex<Work>,
    /// Held while rows of the host are brought and taken.
    uploads: Mutex<()>,
    /// Where copies of memory rows are kept, and held while one is made; none if nothing keeps any.
    paging: Option<Mutex<Paging>>,
    kernels: HeadKernels,
    // Last: blocks go before the device does.
    gpu: Gpu,
}

impl CudaHead {
    /// Allocates everything and copies a head's weights to the device. `source`, usually the release, is kept: the output
    /// embedding's rows are read from it unless the backend has them.
    ///
    /// # Errors
    /// A [`CudaError`]: no driver, no device, no memory, a size that the kernels do not take, or the release's own.
    pub fn load(
        config: &HeadConfig,
        source: Arc<dyn HeadWeights>,
        options: HeadOptions,
    ) -> Result<CudaHead, CudaError> {
        check_sizes(config)?;
        let gpu = Gpu::open(options.ordinal)?;
        gpu.bind()?;
        let kernels = HeadKernels::load(&gpu, room::sizes(config), options.portable)?;
        let work = Work::new(&gpu, config, &options)?;
        let places = Places::new(&gpu, config, &options)?;
        let staging = match options.staged_rows {
            0 => None,
            rows => Some(Staging::new(&gpu, config.hidden, rows)?),
        };
        let weights = Weights::load(&gpu, config, source.as_ref())?;
        Ok(CudaHead {
            shared: Arc::new(Shared {
                config: config.clone(),
                options,
                weights,
                source,
                table: None,
                staging,
                places,
                work: Mutex::new(work),
                uploads: Mutex::new(()),
                paging: None,
                kernels,
                gpu,
            }),
        })
    }

    /// The same for a backend on the same device, which from now on keeps hidden rows for this head; copies of memory rows lie where
    /// the backend's snapshots do. `is_its_own` says that the backend's output embedding is what the lexical prior averages.
    ///
    /// # Errors
    /// As [`CudaHead::load`].
    pub fn load_beside(
        backend: &mut CudaBackend,
        config: &HeadConfig,
        source: Arc<dyn HeadWeights>,
        options: HeadOptions,
        is_its_own: bool,
    ) -> Result<CudaHead, CudaError> {
        let mut head = CudaHead::load(config, source, options)?;
        let shared = Arc::get_mut(&mut head.shared).expect("nobody else has it yet");
        shared.table = is_its_own.then(|| backend.output_embedding());
        shared.keep_memory_in(backend.shelf())?;
        backend.keep_rows_in(shared.staging.clone());
        Ok(head)
    }

    /// Keeps copies of memory rows in so many bytes of its own, as beside a backend in that one's; for tests.
    #[cfg(test)]
    pub(crate) fn with_shelf(mut self, bytes: usize) -> CudaHead {
        let shared = Arc::get_mut(&mut self.shared).expect("nobody else has it");
        shared.gpu.bind().unwrap();
        let shelf = Shelf::new(&shared.gpu, "a test", bytes).unwrap();
        shared.keep_memory_in(Arc::new(shelf)).unwrap();
        self
    }

    /// Puts rows of an output embedding on the device, as a backend that has it would; for tests.
    #[cfg(test)]
    pub(crate) fn with_table(mut self, rows: &[u16]) -> CudaHead {
        let shared = Arc::get_mut(&mut self.shared).expect("nobody else has it");
        shared.gpu.bind().unwrap();
        let bytes = crate::driver::Arena::bytes_for::<u16>(rows.len());
        let mut arena = crate::driver::Arena::new(&shared.gpu, "a table", bytes).unwrap();
        let table = arena.take(rows.len());
        shared.gpu.upload(&table, rows).unwrap();
        shared.table = Some(table);
        self
    }

    /// Runs attention over the memory in a manner; for tests.
    #[cfg(test)]
    pub(crate) fn in_manner(mut self, manner: crate::launch::Manner) -> CudaHead {
        let shared = Arc::get_mut(&mut self.shared).expect("nobody else has it");
        shared.kernels.take_manner(manner);
        self
    }

    /// Fills all memory that a decision uses with NaN, as a decision that was wrong would leave it; for tests.
    #[cfg(test)]
    pub(crate) fn poison(&self) {
        let shared = &self.shared;
        shared.gpu.bind().unwrap();
        let work = shared.work();
        for block in [
            &work.lexical,
            &work.features,
            &work.inner,
            &work.options,
            &work.fields,
        ] {
            shared.gpu.fill(block, 0xFF).unwrap();
        }
        for block in [
            &work.queries,
            &work.attended,
            &work.conversed,
            &work.mixed,
            &work.global,
        ] {
            shared.gpu.fill(block, 0xFF).unwrap();
        }
        for block in [&work.priors, &work.cosines, &work.weights] {
            shared.gpu.fill(block, 0xFF).unwrap();
        }
        for block in [&work.memory, &work.partial, &work.uploaded] {
            shared.gpu.fill(block, 0xFF).unwrap();
        }
        for parts in [&work.normed, &work.expanded, &work.pair_weights] {
            shared.gpu.fill(&parts.high, 0xFF).unwrap();
            shared.gpu.fill(&parts.low, 0xFF).unwrap();
        }
        for block in [&work.pair_scales, &work.mark_sums, &work.stats] {
            shared.gpu.fill(block, 0xFF).unwrap();
        }
        shared.gpu.fill(&work.marks, 0xFF).unwrap();
        let place = shared.places.take().unwrap();
        shared.gpu.fill(&place.get().sums, 0xFF).unwrap();
        shared.gpu.fill(&place.get().forms, 0xFF).unwrap();
        shared.gpu.fill(&place.get().memory.high, 0xFF).unwrap();
        shared.gpu.fill(&place.get().memory.low, 0xFF).unwrap();
        shared.gpu.wait().unwrap();
    }

    /// Answers a record of hidden rows, `[T, H]` bf16 bits, and gives the milliseconds that the device took: from the first
    /// launch to the last, without the copy of the rows to it.
    ///
    /// # Errors
    /// The device's, or the first question whose logits are not finite.
    ///
    /// # Panics
    /// If there is no room for the record.
    pub fn run_timed(&self, encoded: &Arc<Encoded>, hidden: &[u16]) -> Result<f64, Defect> {
        let (mut run, start, _rows) = self.take_alone(encoded, hidden, None)?;
        run.answer(None)?;
        Ok(start.ms_until(&self.shared.gpu.mark()?)?)
    }

    /// The same, with the times of all parts. The marks between them cost a little.
    ///
    /// # Errors
    /// As [`CudaHead::run_timed`].
    ///
    /// # Panics
    /// As [`CudaHead::run_timed`].
    pub fn run_in_parts(
        &self,
        encoded: &Arc<Encoded>,
        hidden: &[u16],
    ) -> Result<Vec<PartTime>, Defect> {
        let profile = Profile::default();
        let (mut run, start, _rows) = self.take_alone(encoded, hidden, Some(&profile))?;
        run.answer(Some(&profile))?;
        Ok(profile.times(&start)?)
    }

    /// The same, but gives the milliseconds of the finish by the clock: from when the last rows were taken in until the logits
    /// are in host memory.
    ///
    /// # Errors
    /// As [`CudaHead::run_timed`].
    ///
    /// # Panics
    /// As [`CudaHead::run_timed`].
    pub fn time_finish(&self, encoded: &Arc<Encoded>, hidden: &[u16]) -> Result<f64, Defect> {
        let (mut run, ..) = self.take_alone(encoded, hidden, None)?;
        let started = Instant::now();
        run.answer(None)?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }

    /// Launches that a record's finish is.
    ///
    /// # Errors
    /// The device's, or that there is no room for the record.
    pub fn launches(&self, encoded: &Arc<Encoded>) -> Result<usize, Defect> {
        if option_spans(encoded).count() == 0 {
            return Ok(0);
        }
        let shared = &self.shared;
        let mut run = Run::new(Arc::clone(shared), Arc::clone(encoded));
        run.settle()?;
        let (means, place) = (run.means()?, run.place());
        let work = shared.work();
        let (schema, lexical) = run.lists(&work, &means)?;
        Ok(shared
            .forward(&work, place, None)
            .launches(&schema, &lexical))
    }

    /// Takes in a record's rows from memory of their own, which is given as well, since giving it back takes a while; gives the
    /// place before the first launch.
    fn take_alone(
        &self,
        encoded: &Arc<Encoded>,
        hidden: &[u16],
        profile: Option<&Profile>,
    ) -> Result<(Run, Mark, Staged), Defect> {
        let shared = &self.shared;
        shared.gpu.bind()?;
        let rows = hidden.len() / shared.config.hidden;
        let staging = Staging::new(&shared.gpu, shared.config.hidden, rows)?;
        let staged = staging.take(rows).expect("it was made for them");
        shared.gpu.upload(&staged.block(), hidden)?;
        let mut run = Run::new(Arc::clone(shared), Arc::clone(encoded));
        run.settle()?;
        shared.gpu.wait()?;
        let start = shared.gpu.mark()?;
        run.take(Rows::Half(&staged.block()), rows, profile)?;
        Ok((run, start, staged))
    }
}

impl fmt::Debug for CudaHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaHead")
            .field("device", &self.shared.gpu)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Keeps copies of memory rows on a shelf from now on.
    fn keep_memory_in(&mut self, shelf: Arc<Shelf>) -> Result<(), CudaError> {
        let pieces = memory_pieces(&self.config, &self.options);
        self.paging = Some(Mutex::new(Paging::new(&self.gpu, shelf, pieces)?));
        Ok(())
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forward<'a>(
        &'a self,
        work: &'a Work,
        place: &'a Place,
        profile: Option<&'a Profile>,
    ) -> Forward<'a> {
        Forward {
            gpu: &self.gpu,
            kernels: &self.kernels,
            sizes: room::sizes(&self.config),
            weights: &self.weights,
            work,
            place,
            profile,
        }
    }
}

impl Head for CudaHead {
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun> {
        Box::new(Run::new(Arc::clone(&self.shared), encoded))
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        Paging::bytes_of(memory_region_bytes(&self.shared.config, rows))
    }
}

/// One decision on its way.
struct Run {
    head: Arc<Shared>,
    encoded: Arc<Encoded>,
    /// Spans of questions, of options, and the last row.
    spans: Vec<Span>,
    /// Rows taken so far.
    rows: usize,
    /// Its memory, once a row came.
    place: Option<OwnPlace>,
    /// What went wrong where no error could be given; the next call gives it.
    defect: Option<Defect>,
}

impl Run {
    fn new(head: Arc<Shared>, encoded: Arc<Encoded>) -> Run {
        let questions = encoded
            .questions
            .iter()
            .map(|question| question.span.clone());
        let last = encoded.ids.len().saturating_sub(1);
        let spans: Vec<Span> = questions
            .chain(option_spans(&encoded).cloned())
            .chain(std::iter::once(last..encoded.ids.len()))
            .collect();
        Run {
            head,
            spans,
            encoded,
            rows: 0,
            place: None,
            defect: None,
        }
    }

    /// Takes a place, if there is none yet, with sums of zero.
    fn settle(&mut self) -> Result<(), Defect> {
        if let Some(defect) = self.defect.take() {
            return Err(defect);
        }
        let head = Arc::clone(&self.head);
        head.gpu.bind()?;
        if self.place.is_some() {
            return Ok(());
        }
        let HeadOptions {
            positions, spans, ..
        } = head.options;
        let (rows_needed, spans_needed) = (self.encoded.ids.len(), self.spans.len());
        let full = |what: &str, needed: usize, there: usize| Defect::Device {
            message: format!(
                "the head on the device has room for {there} {what}, not for {needed}"
            ),
        };
        if rows_needed > positions {
            return Err(full("rows", rows_needed, positions));
        }
        if spans_needed > spans {
            return Err(full("questions and options", spans_needed, spans));
        }
        let tokens: usize = option_spans(&self.encoded).map(Span::len).sum();
        if tokens > positions {
            return Err(full("tokens of options", tokens, positions));
        }
        let place = head.places.take().ok_or_else(|| Defect::Device {
            message: format!("all {} places in the head are taken", head.options.runs),
        })?;
        let pitch = room::sizes(&head.config).hidden_pitch;
        head.gpu
            .fill(&place.get().sums.part(0..self.spans.len() * pitch), 0)?;
        self.place = Some(place);
        Ok(())
    }

    /// First row of the first span.
    fn first_span_row(&self) -> usize {
        let spans = &self.spans[..self.spans.len() - 1];
        spans
            .iter()
            .map(|span| span.start)
            .min()
            .unwrap_or(usize::MAX)
    }

    /// The parts of spans in `count` rows from the next on.
    fn span_parts(&self, count: usize) -> Vec<[i32; 4]> {
        let (start, end) = (self.rows, self.rows + count);
        let int = |x: usize| i32::try_from(x).expect("rows and spans are below 2^31");
        let parts = self.spans.iter().enumerate().filter_map(|(index, span)| {
            let (first, last) = (span.start.max(start), span.end.min(end));
            (first < last).then(|| [int(index), int(first - start), int(last - start), 0])
        });
        parts.collect()
    }

    /// Queues what hidden rows on the device need, and waits until it is done, so that their memory may be used again.
    fn take(
        &mut self,
        rows: Rows<'_>,
        count: usize,
        profile: Option<&Profile>,
    ) -> Result<(), Defect> {
        self.settle()?;
        let head = Arc::clone(&self.head);
        let hidden = head.config.hidden;
        let done = {
            let work = head.work();
            for first in (0..count).step_by(ROWS) {
                let some = (count - first).min(ROWS);
                let values = first * hidden..(first + some) * hidden;
                let place = self.place();
                let (half, single);
                let rows = match rows {
                    Rows::Half(block) => {
                        half = block.part(values);
                        Rows::Half(&half)
                    }
                    Rows::Single(block) => {
                        single = block.part(values);
                        Rows::Single(&single)
                    }
                };
                let parts = self.span_parts(some);
                head.forward(&work, place, profile)
                    .absorb(self.rows, rows, some, &parts)?;
                self.rows += some;
            }
            head.gpu.mark()?
        };
        done.wait()?;
        Ok(())
    }

    fn check(&self, start: usize, count: usize) {
        assert_eq!(start, self.rows, "rows come in order, none twice");
        assert!(
            start + count <= self.encoded.ids.len(),
            "more rows than the prompt has"
        );
    }

    /// Its memory, once it is settled.
    fn place(&self) -> &Place {
        self.place.as_ref().expect("it is settled").get()
    }

    /// Means of the output embedding's rows, if the device does not have these.
    fn means(&self) -> Result<Vec<f64>, Defect> {
        let head = &self.head;
        match &head.table {
            Some(_) => Ok(Vec::new()),
            None => {
                lexical_means(head.source.as_ref(), &self.encoded, &head.config).map_err(|error| {
                    Defect::Device {
                        message: error.to_string(),
                    }
                })
            }
        }
    }

    /// Puts what a finish reads of the record on the device.
    fn lists<'a>(
        &'a self,
        work: &Work,
        means: &'a [f64],
    ) -> Result<(Schema, Lexical<'a>), CudaError> {
        let (gpu, encoded) = (&self.head.gpu, &self.encoded);
        let schema = schema(gpu, work, encoded, &self.spans)?;
        let lexical = match &self.head.table {
            Some(table) => tokens(gpu, work, encoded, table)?,
            None => Lexical::Means(means),
        };
        Ok((schema, lexical))
    }

    /// The logits, once all rows were taken.
    fn answer(&mut self, profile: Option<&Profile>) -> Result<Logits, Defect> {
        self.settle()?;
        let (head, encoded) = (Arc::clone(&self.head), Arc::clone(&self.encoded));
        assert_eq!(
            self.rows,
            encoded.ids.len(),
            "finished before every row was taken"
        );
        let options = option_spans(&encoded).count();
        if options == 0 {
            return Ok(vec![Vec::new(); encoded.questions.len()]);
        }
        let (place, means) = (self.place(), self.means()?);
        let mut logits = vec![0.0; options];
        let work = head.work();
        let (schema, lexical) = self.lists(&work, &means)?;
        head.forward(&work, place, profile)
            .logits(&schema, &lexical)?;
        // The workspace is the next one's only when this is read.
        head.gpu
            .download(&work.logits.part(0..options), &mut logits)?;
        drop(work);
        let mut rest = &logits[..];
        let of_question = encoded.questions.iter().map(|question| {
            rest.split_off(..question.options.len())
                .expect("a logit for each option")
                .to_vec()
        });
        let logits: Logits = of_question.collect();
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

    /// Copies memory rows out to pages; `None` if there is no room for them.
    fn copy_memory(&self, rows: &Range<usize>) -> Result<Option<Pages>, CudaError> {
        let (Some(place), Some(paging)) = (&self.place, &self.head.paging) else {
            return Ok(None);
        };
        let gpu = &self.head.gpu;
        gpu.bind()?;
        let regions = memory_regions(place.get(), room::sizes(&self.head.config), rows);
        locked(paging).save(gpu, &regions)
    }

    fn load_memory(&mut self, rows: &Range<usize>, pages: &Pages) -> Result<(), Defect> {
        self.settle()?;
        let place = self.place.as_ref().expect("it is settled").get();
        let regions = memory_regions(place, room::sizes(&self.head.config), rows);
        let paging = self.head.paging.as_ref();
        let paging = locked(paging.expect("there are copies where they are kept"));
        Ok(paging.load(&self.head.gpu, &regions, pages)?)
    }
}

/// Memory rows of a place: the high parts, the low parts, and the forms.
fn memory_regions(place: &Place, sizes: HeadSizes, rows: &Range<usize>) -> [Region; 3] {
    assert!(
        rows.start.is_multiple_of(CHUNK_ROWS) && rows.end.is_multiple_of(CHUNK_ROWS),
        "memory rows are copied by whole chunks"
    );
    let values = rows.start * sizes.pitch..rows.end * sizes.pitch;
    let memory = place.memory.part(values);
    [
        memory.high.as_bytes(),
        memory.low.as_bytes(),
        place.forms.part(rows.clone()).as_bytes(),
    ]
}

/// Bytes of [`memory_regions`].
fn memory_region_bytes(config: &HeadConfig, rows: usize) -> usize {
    let parts = 2 * room::sizes(config).pitch * size_of::<u16>();
    rows * (parts + size_of::<[f32; 2]>())
}

/// Pieces of a copy of a whole prompt's memory rows at most.
fn memory_pieces(config: &HeadConfig, options: &HeadOptions) -> usize {
    Paging::pieces_max(3, memory_region_bytes(config, options.positions))
}

fn locked(paging: &Mutex<Paging>) -> MutexGuard<'_, Paging> {
    paging.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HeadRun for Run {
    fn absorb(&mut self, start: usize, hidden: &[f32]) -> Result<(), Defect> {
        let width = self.head.config.hidden;
        assert!(
            hidden.len().is_multiple_of(width),
            "hidden rows of another width"
        );
        self.check(start, hidden.len() / width);
        self.settle()?;
        for rows in hidden.chunks(HOST_ROWS * width) {
            let head = Arc::clone(&self.head);
            let uploaded = head.work().uploaded.part(0..rows.len());
            let _alone = head.uploads.lock().unwrap_or_else(PoisonError::into_inner);
            head.gpu.upload(&uploaded, rows)?;
            self.take(Rows::Single(&uploaded), rows.len() / width, None)?;
        }
        Ok(())
    }

    fn absorb_kept(&mut self, start: usize, rows: KeptRows) -> Result<(), Defect> {
        self.check(start, rows.rows);
        let kept = rows.data.downcast::<Kept>().map_err(|_| Defect::Device {
            message: "the hidden rows are kept for another head".into(),
        })?;
        self.head.gpu.bind()?;
        self.head.gpu.wait_for(&kept.mark)?;
        self.take(Rows::Half(&kept.staged.block()), rows.rows, None)
    }

    fn memory(&self, rows: Range<usize>) -> Option<SavedMemory> {
        assert!(
            rows.end <= self.rows,
            "rows {rows:?} of {} taken",
            self.rows
        );
        // A device that cannot copy fails the pass itself too.
        let pages = self.copy_memory(&rows).ok().flatten()?;
        Some(SavedMemory {
            rows,
            bytes: pages.bytes(),
            data: Box::new(pages),
        })
    }

    fn preload(&mut self, memory: &SavedMemory) {
        let rows = memory.rows.clone();
        self.check(rows.start, rows.len());
        let end = rows.end;
        assert!(
            end <= self.first_span_row(),
            "row {end} is in a span, its hidden row is needed"
        );
        assert!(
            end < self.encoded.ids.len(),
            "the last hidden row is needed"
        );
        let pages = memory.data.downcast_ref::<Pages>();
        let pages = pages.expect("the memory rows are of another head");
        match self.load_memory(&rows, pages) {
            Ok(()) => {}
            Err(defect) => self.defect = Some(defect),
        }
        self.rows = end;
    }

    fn finish(mut self: Box<Self>) -> Result<Logits, Defect> {
        self.answer(None)
    }
}

/// Hidden rows that a backend kept, with the place in its stream at which they are there.
pub(crate) struct Kept {
    pub(crate) staged: Staged,
    pub(crate) mark: Mark,
}

/// Puts a record's lists on the device.
fn schema(gpu: &Gpu, work: &Work, encoded: &Encoded, spans: &[Span]) -> Result<Schema, CudaError> {
    let int = |x: usize| i32::try_from(x).expect("rows and options are below 2^31");
    let (mut questions, mut question_of) = (Vec::new(), Vec::new());
    for (index, question) in encoded.questions.iter().enumerate() {
        let (first, count) = (question_of.len(), question.options.len());
        questions.push([int(first), int(count), question.kind as i32, 0]);
        question_of.resize(first + count, int(index));
    }
    let span_rows: Vec<i32> = spans.iter().map(|span| int(span.len())).collect();
    let schema = Schema {
        questions: work.questions.part(0..questions.len()),
        question_of: work.question_of.part(0..question_of.len()),
        span_rows: work.span_rows.part(0..span_rows.len()),
        rows: encoded.ids.len(),
    };
    gpu.upload(&schema.questions, &questions)?;
    gpu.upload(&schema.question_of, &question_of)?;
    gpu.upload(&schema.span_rows, &span_rows)?;
    Ok(schema)
}

/// Puts the tokens of all options on the device.
fn tokens<'a>(
    gpu: &Gpu,
    work: &Work,
    encoded: &Encoded,
    table: &'a Block<u16>,
) -> Result<Lexical<'a>, CudaError> {
    let (mut ids, mut starts) = (Vec::new(), vec![0]);
    for span in option_spans(encoded) {
        ids.extend(encoded.ids[span.clone()].iter().map(|id| id.cast_signed()));
        starts.push(i32::try_from(ids.len()).expect("tokens of a prompt"));
    }
    let (ids_block, starts_block) = (
        work.ids.part(0..ids.len()),
        work.starts.part(0..starts.len()),
    );
    gpu.upload(&ids_block, &ids)?;
    gpu.upload(&starts_block, &starts)?;
    Ok(Lexical::Table {
        table,
        ids: ids_block,
        starts: starts_block,
    })
}

/// x of every option: the mean of the output embedding's rows of its tokens, `[options, hidden pitch]`, by the host.
fn lexical_means(
    weights: &dyn HeadWeights,
    encoded: &Encoded,
    config: &HeadConfig,
) -> Result<Vec<f64>, LoadError> {
    let embedding = weights.lexical_embedding()?;
    let pitch = room::sizes(config).hidden_pitch;
    let mut means = vec![0.0; option_spans(encoded).count() * pitch];
    let mut row = vec![0.0; config.hidden];
    for (mean, span) in means.chunks_exact_mut(pitch).zip(option_spans(encoded)) {
        for id in &encoded.ids[span.clone()] {
            let id = *id as usize;
            embedding.copy_rows_f32_into(id..id + 1, &mut row);
            mean.iter_mut()
                .zip(&row)
                .for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let count = span.len() as f64;
        mean.iter_mut().for_each(|sum| *sum /= count);
    }
    Ok(means)
}

/// The span of every option of all questions, in order.
fn option_spans(encoded: &Encoded) -> impl Iterator<Item = &Span> {
    encoded
        .questions
        .iter()
        .flat_map(|question| question.options.iter().map(|option| &option.span))
}

/// Refuses sizes that the kernels do not take.
fn check_sizes(config: &HeadConfig) -> Result<(), CudaError> {
    let unsupported = |what, found, wanted| {
        Err(CudaError::Unsupported {
            what,
            found,
            wanted,
        })
    };
    match config {
        HeadConfig { hidden, .. } if !hidden.is_multiple_of(8) || *hidden > 8192 => {
            unsupported("hidden_size", *hidden, "a multiple of 8, at most 8192")
        }
        HeadConfig { width, .. } if !width.is_multiple_of(4) || *width > 2048 => {
            unsupported("width of the head", *width, "a multiple of 4, at most 2048")
        }
        HeadConfig { width, heads, .. } if !width.is_multiple_of(*heads) => {
            unsupported("number of heads", *heads, "a divisor of the head's width")
        }
        _ => Ok(()),
    }
}
