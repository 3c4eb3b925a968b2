//! Device memory of the head: places of decisions, hidden rows on their way, and what a pass needs.
//!
//! Everything is allocated when the head is loaded. A place is one decision's: its memory rows and the sums of its spans; it is
//! given back when the decision is dropped. The workspace serves one decision after the other, in the order of the stream.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use descant_release::HeadConfig;

use super::HeadOptions;
use crate::driver::{Arena, Block, Gpu, Plain};
use crate::error::CudaError;
use crate::launch::{HeadSizes, Mix, Parts, Phase, Splits};

/// Hidden rows that are normed and projected at one time.
pub(super) const ROWS: usize = 4096;
/// Hidden rows that come from host memory and are copied at one time.
pub(super) const HOST_ROWS: usize = 256;
/// Options whose wide rows exist at one time.
pub(super) const OPTIONS: usize = 256;
/// Most queries that attend the memory together, of a prompt of up to `LENGTH` rows.
const QUERIES: usize = 256;
const LENGTH: usize = 16_384;
/// How many there is room for at least of the longest prompt.
const QUERIES_LEAST: usize = 32;
/// Queries of a prompt of `LENGTH` rows whose weights exist at one time: of 16 heads these stay in the second-level cache of a large
/// device, and their tiles still occupy its multiprocessors some four times over.
const QUERIES_WEIGHED: usize = 32;

/// The sizes of a head as its kernels take them.
pub(super) fn sizes(config: &HeadConfig) -> HeadSizes {
    HeadSizes {
        hidden: config.hidden,
        hidden_pitch: config.hidden.next_multiple_of(8),
        width: config.width,
        pitch: config.width.next_multiple_of(8),
        heads: config.heads,
    }
}

/// Memory of one decision.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Normal forms of the memory rows, `[positions, pitch]`
    pub(super) memory: Parts,
    /// Their deviations and means.
    pub(super) forms: Block<[f32; 2]>,
    /// Sums over spans: questions, options, the last row alone; `[spans, hidden pitch]`
    pub(super) sums: Block<f64>,
}

/// The places of all decisions.
#[derive(Debug)]
pub(super) struct Places {
    free: Mutex<Vec<Place>>,
}

/// A place that is given back when this is dropped.
#[derive(Debug)]
pub(super) struct OwnPlace {
    place: Option<Place>,
    places: Arc<Places>,
}

/// What a pass needs; see `forward`.
#[derive(Debug)]
pub(super) struct Work {
    /// `[HOST_ROWS, H]`
    pub(super) uploaded: Block<f32>,
    /// `[ROWS, hidden pitch]`, with the (mean, 1 / deviation) of each row.
    pub(super) normed: Parts,
    pub(super) stats: Block<[f64; 2]>,
    /// `[ROWS, pitch]`
    pub(super) memory: Block<f32>,
    /// Lists of a pass.
    pub(super) span_parts: Block<[i32; 4]>,
    pub(super) questions: Block<[i32; 4]>,
    pub(super) span_rows: Block<i32>,
    pub(super) question_of: Block<i32>,
    pub(super) ids: Block<i32>,
    pub(super) starts: Block<i32>,
    /// `[OPTIONS, hidden pitch]`
    pub(super) lexical: Block<f64>,
    /// `[OPTIONS, 4 · pitch]`
    pub(super) features: Block<f64>,
    /// `[OPTIONS, max(feedforward, W)]` and its pitch
    pub(super) inner: Block<f64>,
    pub(super) inner_pitch: usize,
    /// Rows of options and of questions, `[spans, pitch]`
    pub(super) options: Block<f64>,
    pub(super) fields: Block<f64>,
    pub(super) queries: Block<f64>,
    pub(super) attended: Block<f64>,
    /// `[spans, 3 · pitch]`
    pub(super) conversed: Block<f64>,
    /// A number an option.
    pub(super) priors: Block<f64>,
    pub(super) cosines: Block<f64>,
    pub(super) weights: Block<f64>,
    pub(super) logits: Block<f32>,
    /// P_global g, `[pitch]`
    pub(super) global: Block<f64>,
    /// The list of a finish, and where its blocks wait for one another: zero between launches.
    pub(super) phases: Block<Phase>,
    pub(super) gate: Block<i32>,
    /// Where splits of linear maps meet.
    pub(super) splits: Splits,
    /// See [`Mix`].
    pub(super) expanded: Parts,
    pub(super) pair_scales: Block<[f64; 2]>,
    pub(super) pair_weights: Parts,
    pub(super) marks: Block<[f32; 2]>,
    pub(super) mark_sums: Block<[f64; 2]>,
    pub(super) partial: Block<f32>,
    pub(super) mixed: Block<f64>,
}

/// Cuts blocks off an arena, or sums what they would take.
enum Cutter {
    Measure(usize),
    Cut(Arena),
}

impl Cutter {
    /// A block; `None` while measuring.
    fn take<T: Plain>(&mut self, len: usize) -> Option<Block<T>> {
        match self {
            Cutter::Measure(bytes) => {
                *bytes = bytes.saturating_add(Arena::bytes_for::<T>(len));
                None
            }
            Cutter::Cut(arena) => Some(arena.take(len)),
        }
    }

    fn parts(&mut self, len: usize) -> Option<Parts> {
        let (high, low) = (self.take(len), self.take(len));
        Some(Parts {
            high: high?,
            low: low?,
        })
    }

    fn splits(&mut self, tiles: usize) -> Option<Splits> {
        let (partial, tickets) = (self.take(Splits::values(tiles)), self.take(tiles));
        Some(Splits {
            partial: partial?,
            tickets: tickets?,
        })
    }
}

/// Measures what `make` takes, then lets it take that.
fn cut<T>(
    gpu: &Gpu,
    what: &'static str,
    make: impl Fn(&mut Cutter) -> Option<T>,
) -> Result<T, CudaError> {
    let arena = Arena::new(gpu, what, measure(&make))?;
    Ok(make(&mut Cutter::Cut(arena)).expect("an arena gives blocks"))
}

fn measure<T>(make: impl Fn(&mut Cutter) -> Option<T>) -> usize {
    let mut cutter = Cutter::Measure(0);
    make(&mut cutter);
    match cutter {
        Cutter::Measure(bytes) => bytes,
        Cutter::Cut(_) => 0,
    }
}

/// Evaluates all takes before the first missing block ends the function: so that all are measured.
macro_rules! all_of {
    ($type:ident { $($field:ident: $take:expr),* $(,)? }) => {{
        $(let $field = $take;)*
        Some($type { $($field: $field?),* })
    }};
}

fn place(cutter: &mut Cutter, sizes: HeadSizes, options: &HeadOptions) -> Option<Place> {
    all_of!(Place {
        memory: cutter.parts(options.positions * sizes.pitch),
        forms: cutter.take(options.positions),
        sums: cutter.take(options.spans * sizes.hidden_pitch),
    })
}

fn work(cutter: &mut Cutter, config: &HeadConfig, options: &HeadOptions) -> Option<Work> {
    let HeadSizes {
        hidden,
        hidden_pitch,
        pitch,
        heads,
        ..
    } = sizes(config);
    let (spans, positions) = (options.spans, options.positions);
    let rows_at_once = positions.min(ROWS);
    let queries = spans.min(QUERIES);
    let pairs = queries * heads;
    // Pairs with rows, of which the last few are filled up, with groups of these, and with partial sums.
    let pair_rows = (queries * positions)
        .min((QUERIES_WEIGHED * LENGTH).max(QUERIES_LEAST * positions))
        * heads;
    let pair_groups = (queries * positions.min(LENGTH)).max(QUERIES_LEAST * positions) * heads
        / Mix::GROUP_LEAST
        + pairs;
    let pair_splits = (queries * Mix::splits_at_most(positions.min(LENGTH)))
        .max(QUERIES_LEAST * Mix::splits(positions))
        * heads;
    let phases = phases_at_most(config, options);
    // The widest maps: the first of a feed-forward layer, and queries, keys and values side by side.
    let tiles = Splits::tiles(config.feedforward.max(3 * config.width))
        .max(Splits::tiles(config.width / heads) * heads);
    let inner_pitch = config.feedforward.max(config.width).next_multiple_of(8);
    all_of!(Work {
        uploaded: cutter.take(HOST_ROWS * hidden),
        normed: cutter.parts(rows_at_once * hidden_pitch),
        stats: cutter.take(rows_at_once),
        memory: cutter.take(rows_at_once * pitch),
        span_parts: cutter.take(spans),
        questions: cutter.take(spans),
        span_rows: cutter.take(spans),
        question_of: cutter.take(spans),
        ids: cutter.take(positions),
        starts: cutter.take(spans + 1),
        lexical: cutter.take(OPTIONS * hidden_pitch),
        features: cutter.take(OPTIONS * 4 * pitch),
        inner: cutter.take(OPTIONS * inner_pitch),
        inner_pitch: Some(inner_pitch),
        options: cutter.take(spans * pitch),
        fields: cutter.take(spans * pitch),
        queries: cutter.take(spans * pitch),
        attended: cutter.take(spans * pitch),
        conversed: cutter.take(spans * 3 * pitch),
        priors: cutter.take(spans),
        cosines: cutter.take(OPTIONS),
        weights: cutter.take(spans),
        logits: cutter.take(spans),
        global: cutter.take(pitch),
        phases: cutter.take(phases),
        gate: cutter.take(2),
        splits: cutter.splits(tiles),
        expanded: cutter.parts(pairs * pitch),
        pair_scales: cutter.take(pairs),
        pair_weights: cutter.parts(pair_rows + 8 * pairs),
        marks: cutter.take(pair_groups),
        mark_sums: cutter.take(pair_groups),
        partial: cutter.take(pair_splits * pitch),
        mixed: cutter.take(pairs * pitch),
    })
}

/// Phases of a finish at most: of each layer eight, two for each part of the options in feed-forward, five for each part of the
/// queries; and the rest.
fn phases_at_most(config: &HeadConfig, options: &HeadOptions) -> usize {
    let (parts, query_parts) = (
        options.spans.div_ceil(OPTIONS),
        options.spans.div_ceil(QUERIES_LEAST),
    );
    let layer = 8 + 2 * parts + 5 * query_parts;
    16 + 8 * parts + (config.routing_layers + config.layers) * layer
}

impl Work {
    /// How many of so many queries attend `rows` memory rows together.
    pub(super) fn queries_at_once(&self, sizes: HeadSizes, rows: usize, count: usize) -> usize {
        let HeadSizes { pitch, heads, .. } = sizes;
        let room = [
            self.mixed.len() / pitch,
            self.marks.len() / rows.div_ceil(Mix::GROUP_LEAST),
            self.partial.len() / (Mix::splits(rows) * pitch),
        ];
        let pairs = room.into_iter().fold(count * heads, usize::min);
        pairs / heads
    }

    pub(super) fn new(
        gpu: &Gpu,
        config: &HeadConfig,
        options: &HeadOptions,
    ) -> Result<Work, CudaError> {
        cut(gpu, "activations of the head", |cutter| {
            work(cutter, config, options)
        })
    }

    pub(super) fn bytes(config: &HeadConfig, options: &HeadOptions) -> usize {
        measure(|cutter| work(cutter, config, options))
    }
}

impl Places {
    pub(super) fn new(
        gpu: &Gpu,
        config: &HeadConfig,
        options: &HeadOptions,
    ) -> Result<Arc<Places>, CudaError> {
        let make = |_| {
            cut(gpu, "memory rows of decisions in the head", |cutter| {
                place(cutter, sizes(config), options)
            })
        };
        let free = (0..options.runs).map(make).collect::<Result<_, _>>()?;
        Ok(Arc::new(Places {
            free: Mutex::new(free),
        }))
    }

    pub(super) fn bytes(config: &HeadConfig, options: &HeadOptions) -> usize {
        options.runs * measure(|cutter| place(cutter, sizes(config), options))
    }

    /// A free place; none if all are taken.
    pub(super) fn take(self: &Arc<Places>) -> Option<OwnPlace> {
        let place = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        Some(OwnPlace {
            place: Some(place),
            places: Arc::clone(self),
        })
    }
}

impl OwnPlace {
    pub(super) fn get(&self) -> &Place {
        self.place.as_ref().expect("it is there until the drop")
    }
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        let mut free = self
            .places
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        free.extend(self.place.take());
    }
}

/// Hidden rows on their way from a backend to the head, bf16: a bounded block from which ranges are taken.
#[derive(Debug)]
pub(crate) struct Staging {
    rows: Block<u16>,
    width: usize,
    /// Taken ranges of rows, in order.
    taken: Mutex<Vec<Range<usize>>>,
}

/// Rows of the staging block. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Staged {
    range: Range<usize>,
    staging: Arc<Staging>,
}

impl Staging {
    pub(super) fn new(gpu: &Gpu, width: usize, rows: usize) -> Result<Arc<Staging>, CudaError> {
        let len = rows * width;
        let mut arena = Arena::new(
            gpu,
            "hidden rows on their way to the head",
            Arena::bytes_for::<u16>(len),
        )?;
        Ok(Arc::new(Staging {
            rows: arena.take(len),
            width,
            taken: Mutex::default(),
        }))
    }

    /// The first range of so many rows that is free; none if there is none.
    pub(crate) fn take(self: &Arc<Staging>, rows: usize) -> Option<Staged> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let range = first_gap(&taken, rows, self.rows.len() / self.width)?;
        let at = taken.partition_point(|other| other.start < range.start);
        taken.insert(at, range.clone());
        Some(Staged {
            range,
            staging: Arc::clone(self),
        })
    }
}

impl Staged {
    /// The rows, `[n, H]`.
    pub(crate) fn block(&self) -> Block<u16> {
        let Staging { rows, width, .. } = self.staging.as_ref();
        rows.part(self.range.start * width..self.range.end * width)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut taken = self
            .staging
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        taken.retain(|other| *other != self.range);
    }
}

/// The first gap of so many rows between ranges in order.
fn first_gap(taken: &[Range<usize>], rows: usize, all: usize) -> Option<Range<usize>> {
    let mut start = 0;
    for range in taken {
        if range.start - start >= rows {
            break;
        }
        start = range.end;
    }
    let end = start + rows;
    let next = taken.iter().find(|range| range.start >= start);
    (end <= next.map_or(all, |range| range.start)).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "ranges are what is listed")]
    fn rows_go_into_the_first_gap() {
        assert_eq!(first_gap(&[], 5, 5), Some(0..5));
        assert_eq!(first_gap(&[], 6, 5), None);
        assert_eq!(first_gap(&[0..2, 4..6], 2, 9), Some(2..4));
        assert_eq!(first_gap(&[0..2, 4..6], 3, 9), Some(6..9));
        assert_eq!(first_gap(&[0..2, 4..6], 4, 9), None);
        assert_eq!(first_gap(&[3..4], 3, 9), Some(0..3));
    }
}
