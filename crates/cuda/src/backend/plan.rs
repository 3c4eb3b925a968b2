//! A round as lists of numbers that the kernels read.

use descant_model::{CHUNK_ROWS, Capacity, Pass, Segment};

use crate::driver::{Arena, Block, Gpu};
use crate::error::CudaError;
use crate::launch::SHARE;

use super::slots::marks_max;

/// Where a round's rows belong. Every row, position and slot in it lies in what was reserved: `CudaBackend::check` looked.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Of each row: token, position, slot, first row of its segment.
    tokens: Vec<i32>,
    positions: Vec<i32>,
    slots: Vec<i32>,
    firsts: Vec<i32>,
    /// Rows whose last inputs of the convolution are kept: first row, rows, place, unused. Of every segment in its slot, and of
    /// its rows before a mark.
    kept: Vec<[i32; 4]>,
    /// Prefill segments: first row, rows, slot, first chunk.
    prefills: Vec<[i32; 4]>,
    /// Their marks: chunks before it, 0 for none; place; unused, unused.
    marks: Vec<[i32; 4]>,
    /// Their chunks: first row, rows, unused, unused.
    chunks: Vec<[i32; 4]>,
    /// Their tiles of query rows: first row, rows, position, slot; those with most keys first.
    tiles: Vec<[i32; 4]>,
    /// Decode rows: row, position, slot, unused.
    streams: Vec<[i32; 4]>,
}

impl Plan {
    /// A round over slots whose number is `slots`; the states at marks go to the places behind them, in order.
    pub(crate) fn new(round: &[Segment<'_>], slots: usize, tile_rows: usize) -> Plan {
        let mut places = slots..;
        let int = |x: usize| i32::try_from(x).expect("rows, positions and slots are below 2^31");
        let mut plan = Plan::default();
        for segment in round {
            let (first, rows, slot) = (plan.rows(), segment.tokens.len(), int(segment.slot.0));
            for (row, token) in segment.tokens.iter().enumerate() {
                plan.tokens.push(int(*token as usize));
                plan.positions.push(int(segment.start + row));
                plan.slots.push(slot);
                plan.firsts.push(int(first));
            }
            plan.kept.push([int(first), int(rows), slot, 0]);
            match segment.pass {
                Pass::Decode => plan.streams.push([int(first), int(segment.start), slot, 0]),
                Pass::Prefill => {
                    plan.prefills
                        .push([int(first), int(rows), slot, int(plan.chunks.len())]);
                    plan.marks.push(match segment.mark {
                        None => [0; 4],
                        Some(mark) => {
                            let (before, place) = (mark - segment.start, places.next());
                            let place = int(place.expect("the numbers do not end"));
                            plan.kept.push([int(first), int(before), place, 0]);
                            [int(before / CHUNK_ROWS), place, 0, 0]
                        }
                    });
                    for at in (0..rows).step_by(CHUNK_ROWS) {
                        plan.chunks
                            .push([int(first + at), int((rows - at).min(CHUNK_ROWS)), 0, 0]);
                    }
                    for at in (0..rows).step_by(tile_rows) {
                        let tile =
                            [first + at, (rows - at).min(tile_rows), segment.start + at].map(int);
                        plan.tiles.push([tile[0], tile[1], tile[2], slot]);
                    }
                }
            }
        }
        plan.tiles.sort_by_key(|tile| std::cmp::Reverse(tile[2]));
        plan
    }

    /// Rows of the round.
    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Pairs of a query and a key that it sees, of all prefill rows.
    pub(crate) fn prefill_pairs(&self) -> f64 {
        let pairs = self.tiles.iter().map(|[_, rows, position, _]| {
            let (rows, position) = (f64::from(*rows), f64::from(*position));
            rows * position + rows * (rows + 1.0) / 2.0
        });
        pairs.sum()
    }

    /// The same of all decode rows.
    pub(crate) fn decode_pairs(&self) -> f64 {
        self.streams
            .iter()
            .map(|[_, position, ..]| f64::from(*position) + 1.0)
            .sum()
    }

    /// What a round of decode rows alone launches: its number of rows, and of shares of their keys. Everything else is in
    /// lists, so rounds with the same two are the same launches.
    pub(crate) fn decode_form(&self) -> Option<DecodeForm> {
        let is_decode = self.prefills.is_empty() && !self.streams.is_empty();
        is_decode.then(|| DecodeForm {
            rows: self.rows(),
            shares: self.decode_position_max() / SHARE + 1,
        })
    }

    /// Largest position of a decode row.
    pub(crate) fn decode_position_max(&self) -> usize {
        let positions = self
            .streams
            .iter()
            .map(|stream| usize::try_from(stream[1]).expect("positions are not negative"));
        positions.max().unwrap_or(0)
    }
}

/// What tells rounds of decode rows apart that need other launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeForm {
    rows: usize,
    shares: usize,
}

/// Room for the lists of a round on the device.
#[derive(Debug)]
pub(crate) struct Lists {
    fours: Block<[i32; 4]>,
    ones: Block<i32>,
    picks: Block<i32>,
}

/// A round's lists on the device; those that are empty are none.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub(crate) tokens: Block<i32>,
    pub(crate) positions: Block<i32>,
    pub(crate) slots: Block<i32>,
    pub(crate) firsts: Block<i32>,
    pub(crate) kept: Block<[i32; 4]>,
    pub(crate) prefills: Option<Block<[i32; 4]>>,
    pub(crate) marks: Option<Block<[i32; 4]>>,
    pub(crate) chunks: Option<Block<[i32; 4]>>,
    pub(crate) tiles: Option<Block<[i32; 4]>>,
    pub(crate) streams: Option<Block<[i32; 4]>>,
}

impl Lists {
    pub(crate) fn new(gpu: &Gpu, capacity: Capacity) -> Result<Lists, CudaError> {
        let mut arena = Arena::new(gpu, "lists of a round", Lists::bytes(capacity))?;
        Ok(Lists {
            fours: arena.take(Lists::fours(capacity)),
            ones: arena.take(4 * capacity.rows),
            picks: arena.take(capacity.rows),
        })
    }

    /// Prefills, their marks and streams are at most the slots, what is kept a place, chunks and tiles a short one more for each
    /// slot.
    fn fours(capacity: Capacity) -> usize {
        6 * capacity.slots + marks_max(capacity) + 2 * capacity.rows.div_ceil(CHUNK_ROWS)
    }

    pub(crate) fn bytes(capacity: Capacity) -> usize {
        Arena::bytes_for::<[i32; 4]>(Lists::fours(capacity))
            + Arena::bytes_for::<i32>(4 * capacity.rows)
            + Arena::bytes_for::<i32>(capacity.rows)
    }

    /// Copies a round's lists to the device, in two copies.
    pub(crate) fn upload(&self, gpu: &Gpu, plan: &Plan) -> Result<OnDevice, CudaError> {
        let ones = [&plan.tokens[..], &plan.positions, &plan.slots, &plan.firsts].concat();
        gpu.upload(&self.ones.part(0..ones.len()), &ones)?;
        let rows = plan.rows();
        let one = |index: usize| self.ones.part(index * rows..(index + 1) * rows);

        let lists = [
            &plan.kept,
            &plan.prefills,
            &plan.marks,
            &plan.chunks,
            &plan.tiles,
            &plan.streams,
        ];
        let fours: Vec<[i32; 4]> = lists.iter().flat_map(|list| list.iter()).copied().collect();
        gpu.upload(&self.fours.part(0..fours.len()), &fours)?;
        let mut at = 0;
        let [kept, prefills, marks, chunks, tiles, streams] = lists.map(|list| {
            let start = at;
            at += list.len();
            (!list.is_empty()).then(|| self.fours.part(start..at))
        });
        Ok(OnDevice {
            tokens: one(0),
            positions: one(1),
            slots: one(2),
            firsts: one(3),
            kept: kept.expect("a round with rows has segments"),
            prefills,
            marks,
            chunks,
            tiles,
            streams,
        })
    }

    /// Copies numbers of rows to the device.
    pub(crate) fn picks(&self, gpu: &Gpu, rows: &[i32]) -> Result<Block<i32>, CudaError> {
        let block = self.picks.part(0..rows.len());
        gpu.upload(&block, rows)?;
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use descant_model::Slot;

    use super::*;

    /// A decode row, a prompt of 130 rows from position 64 on with a mark behind its first chunk, and a short prompt: worked by hand.
    #[test]
    fn a_round_is_cut_at_chunks_and_tiles() {
        let tokens: Vec<u32> = (0..200).collect();
        let segment = |slot, start, rows: Range, pass| Segment {
            slot: Slot(slot),
            start,
            tokens: &tokens[rows.0..rows.1],
            pass,
            mark: (start == 64).then_some(128),
        };
        struct Range(usize, usize);
        let round = [
            segment(2, 700, Range(0, 1), Pass::Decode),
            segment(0, 64, Range(1, 131), Pass::Prefill),
            segment(1, 0, Range(131, 134), Pass::Prefill),
        ];
        let plan = Plan::new(&round, 5, 128);
        assert_eq!(plan.rows(), 134);
        assert_eq!(
            plan.kept,
            [[0, 1, 2, 0], [1, 130, 0, 0], [1, 64, 5, 0], [131, 3, 1, 0]]
        );
        assert_eq!(plan.prefills, [[1, 130, 0, 0], [131, 3, 1, 3]]);
        assert_eq!(plan.marks, [[1, 5, 0, 0], [0; 4]]);
        assert_eq!(
            plan.chunks,
            [
                [1, 64, 0, 0],
                [65, 64, 0, 0],
                [129, 2, 0, 0],
                [131, 3, 0, 0]
            ]
        );
        assert_eq!(
            plan.tiles,
            [[129, 2, 192, 0], [1, 128, 64, 0], [131, 3, 0, 1]]
        );
        assert_eq!(plan.streams, [[0, 700, 2, 0]]);
        assert_eq!(
            (
                plan.positions[1],
                plan.slots[1],
                plan.firsts[130],
                plan.positions[133]
            ),
            (64, 0, 1, 2)
        );
        assert_eq!(plan.decode_position_max(), 700);
    }
}
