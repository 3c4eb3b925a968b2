//! Disjoint parts of a buffer for tasks that run at the same time.
//!
//! Why `unsafe`: threads write to parts of one buffer that interleave in memory (columns of rows). What the safe side
//! guarantees: a splitter borrows the buffer mutably, its parts do not overlap (checked when it is made), and
//! [`super::Pool::split`] takes each part once.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// A buffer, or a tuple of buffers, in parts that do not overlap.
pub(crate) trait Split: Sync {
    /// One part.
    type Part;

    /// Number of parts.
    fn parts(&self) -> usize;

    /// A part.
    ///
    /// # Safety
    /// No index is asked for twice, and `index` is below [`Split::parts`].
    unsafe fn part(&self, index: usize) -> Self::Part;
}

/// Neighbouring chunks of equal length.
pub(crate) struct Chunks<'a, T> {
    at: *mut T,
    len: usize,
    chunk: usize,
    buffer: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get different chunks of a buffer that is borrowed mutably; a `T` may be written by any of them.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Chunks of `chunk` values; the last may be shorter.
    ///
    /// # Panics
    /// If `chunk` is 0.
    pub(crate) fn new(buffer: &'a mut [T], chunk: usize) -> Chunks<'a, T> {
        assert!(chunk > 0, "chunks of nothing");
        Chunks {
            at: buffer.as_mut_ptr(),
            len: buffer.len(),
            chunk,
            buffer: PhantomData,
        }
    }
}

impl<'a, T: Send> Split for Chunks<'a, T> {
    type Part = &'a mut [T];

    fn parts(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        let start = index * self.chunk;
        let len = self.chunk.min(self.len - start);
        // SAFETY: `start + len` is at most the buffer's length; the chunk of another index does not overlap this one, and
        // the caller asks for each index once.
        unsafe { slice::from_raw_parts_mut(self.at.add(start), len) }
    }
}

/// Groups of neighbouring chunks, picked by number: part `pick · group + member` is chunk `picks[pick] · group + member`.
pub(crate) struct Picks<'a, T> {
    chunks: Chunks<'a, T>,
    picks: &'a [usize],
    group: usize,
}

impl<'a, T: Send> Picks<'a, T> {
    /// Chunks of `chunk` values in groups of `group`.
    ///
    /// # Panics
    /// If a group is picked twice or lies outside the buffer.
    pub(crate) fn new(
        buffer: &'a mut [T],
        chunk: usize,
        group: usize,
        picks: &'a [usize],
    ) -> Picks<'a, T> {
        for (i, pick) in picks.iter().enumerate() {
            assert!(
                (pick + 1) * group * chunk <= buffer.len(),
                "group {pick} lies outside the buffer"
            );
            assert!(!picks[..i].contains(pick), "group {pick} is picked twice");
        }
        Picks {
            chunks: Chunks::new(buffer, chunk),
            picks,
            group,
        }
    }
}

impl<'a, T: Send> Split for Picks<'a, T> {
    type Part = &'a mut [T];

    fn parts(&self) -> usize {
        self.picks.len() * self.group
    }

    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        let chunk = self.picks[index / self.group] * self.group + index % self.group;
        // SAFETY: `new` checked that the chunk lies in the buffer and that no two indices mean the same chunk; the caller
        // asks for each index once.
        unsafe { self.chunks.part(chunk) }
    }
}

/// A row-major matrix cut into row ranges and column blocks: part `range · blocks + block`.
pub(crate) struct Tiles<'a, 'r> {
    at: *mut f32,
    width: usize,
    ranges: Ranges<'r>,
    columns: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

/// The row ranges of a [`Tiles`].
enum Ranges<'r> {
    /// These, ascending.
    Given(&'r [Range<usize>]),
    /// Ranges of equal length, of `.0` rows; the last may be shorter.
    Equal(usize, usize),
}

/// Columns of some rows of a matrix.
pub(crate) struct Tile<'a> {
    at: *mut f32,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: threads get tiles that do not overlap, of a buffer that is borrowed mutably.
unsafe impl Sync for Tiles<'_, '_> {}
// SAFETY: a tile is the only way to its values, which are plain numbers.
unsafe impl Send for Tile<'_> {}

impl<'a, 'r> Tiles<'a, 'r> {
    /// Tiles of the rows `ranges` of a matrix of rows of `width` values, `columns` columns each (the last of a range may
    /// have fewer).
    ///
    /// # Panics
    /// If the buffer is not whole rows, or the ranges are not ascending within it.
    pub(crate) fn new(
        buffer: &'a mut [f32],
        width: usize,
        ranges: &'r [Range<usize>],
        columns: usize,
    ) -> Tiles<'a, 'r> {
        let mut end = 0;
        for range in ranges {
            assert!(
                end <= range.start && range.start <= range.end,
                "row ranges overlap"
            );
            end = range.end;
        }
        assert!(
            columns > 0 && end * width <= buffer.len(),
            "row ranges lie outside the matrix"
        );
        Tiles {
            at: buffer.as_mut_ptr(),
            width,
            ranges: Ranges::Given(ranges),
            columns,
            buffer: PhantomData,
        }
    }

    /// Tiles of `rows` rows and `columns` columns each of a whole matrix of rows of `width` values; the last in each
    /// direction may be smaller.
    ///
    /// # Panics
    /// If the buffer is not whole rows.
    pub(crate) fn even(
        buffer: &'a mut [f32],
        width: usize,
        rows: usize,
        columns: usize,
    ) -> Tiles<'a, 'static> {
        assert!(rows > 0 && columns > 0 && width > 0, "tiles of nothing");
        assert!(
            buffer.len().is_multiple_of(width),
            "the matrix has a broken row"
        );
        let ranges = Ranges::Equal(rows, buffer.len() / width);
        Tiles {
            at: buffer.as_mut_ptr(),
            width,
            ranges,
            columns,
            buffer: PhantomData,
        }
    }

    /// Column blocks of a row range.
    pub(crate) fn blocks(&self) -> usize {
        self.width.div_ceil(self.columns)
    }
}

impl Ranges<'_> {
    fn count(&self) -> usize {
        match self {
            Ranges::Given(ranges) => ranges.len(),
            Ranges::Equal(rows, all) => all.div_ceil(*rows),
        }
    }

    fn range(&self, index: usize) -> Range<usize> {
        match self {
            Ranges::Given(ranges) => ranges[index].clone(),
            Ranges::Equal(rows, all) => index * rows..((index + 1) * rows).min(*all),
        }
    }
}

impl<'a> Split for Tiles<'a, '_> {
    type Part = Tile<'a>;

    fn parts(&self) -> usize {
        self.ranges.count() * self.blocks()
    }

    unsafe fn part(&self, index: usize) -> Tile<'a> {
        let (range, block) = (index / self.blocks(), index % self.blocks());
        let columns = block * self.columns..((block + 1) * self.columns).min(self.width);
        Tile {
            at: self.at,
            width: self.width,
            rows: self.ranges.range(range),
            columns,
            buffer: PhantomData,
        }
    }
}

impl Tile<'_> {
    /// The matrix rows it covers.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The matrix columns it covers.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Its columns of one matrix row.
    ///
    /// # Panics
    /// If it does not cover the row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(self.rows.contains(&row), "row {row} is not in the tile");
        // SAFETY: the row and the columns lie in the matrix (checked when the splitter was made), and no other tile covers
        // both; `&mut self` is the only way to them meanwhile.
        unsafe {
            slice::from_raw_parts_mut(
                self.at.add(row * self.width + self.columns.start),
                self.columns.len(),
            )
        }
    }

    /// Some of its columns, counted as [`Tile::columns`] counts.
    ///
    /// # Panics
    /// If it does not cover them.
    pub(crate) fn narrow(&mut self, columns: Range<usize>) -> Tile<'_> {
        assert!(self.columns.start <= columns.start && columns.end <= self.columns.end);
        Tile {
            at: self.at,
            width: self.width,
            rows: self.rows.clone(),
            columns,
            buffer: PhantomData,
        }
    }

    /// First value and row stride, for kernels: value `(r, c)` of the tile stands at `r · stride + c`.
    pub(super) fn raw(&mut self) -> (*mut f32, usize) {
        // SAFETY: the tile's first value lies in the matrix, or the tile is empty and the place at most one past its end.
        (
            unsafe {
                self.at
                    .add(self.rows.start * self.width + self.columns.start)
            },
            self.width,
        )
    }
}

/// Two buffers with the same number of parts.
impl<A: Split, B: Split> Split for (A, B) {
    type Part = (A::Part, B::Part);

    fn parts(&self) -> usize {
        assert_eq!(
            self.0.parts(),
            self.1.parts(),
            "buffers are split into different numbers of parts"
        );
        self.0.parts()
    }

    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: the caller's promise is that of both.
        unsafe { (self.0.part(index), self.1.part(index)) }
    }
}

/// Three buffers with the same number of parts.
impl<A: Split, B: Split, C: Split> Split for (A, B, C) {
    type Part = (A::Part, B::Part, C::Part);

    fn parts(&self) -> usize {
        assert_eq!(
            self.0.parts(),
            self.1.parts(),
            "buffers are split into different numbers of parts"
        );
        assert_eq!(
            self.1.parts(),
            self.2.parts(),
            "buffers are split into different numbers of parts"
        );
        self.0.parts()
    }

    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: the caller's promise is that of all three.
        unsafe { (self.0.part(index), self.1.part(index), self.2.part(index)) }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "small whole numbers are exact")]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_a_matrix_once() {
        let mut matrix = [0.0f32; 7 * 10];
        let tiles = Tiles::even(&mut matrix, 10, 3, 4);
        assert_eq!((tiles.parts(), tiles.blocks()), (9, 3));
        for index in 0..tiles.parts() {
            // SAFETY: each index is asked for once and is below `parts`.
            let mut tile = unsafe { tiles.part(index) };
            for row in tile.rows() {
                tile.row(row).iter_mut().for_each(|x| *x += 1.0);
            }
        }
        assert_eq!(matrix, [1.0; 70]);
    }

    #[test]
    #[should_panic(expected = "picked twice")]
    fn a_group_is_picked_once() {
        Picks::new(&mut [0.0f32; 8], 2, 2, &[1, 1]);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn row_ranges_do_not_overlap() {
        Tiles::new(&mut [0.0f32; 8], 2, &[0..2, 1..3], 2);
    }

    #[test]
    #[should_panic(expected = "outside the matrix")]
    fn row_ranges_lie_in_the_matrix() {
        Tiles::new(&mut [0.0f32; 8], 2, std::slice::from_ref(&(3..5)), 2);
    }
}
