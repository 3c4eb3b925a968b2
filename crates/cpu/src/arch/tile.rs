//! The inner loops of every matrix product: a tile of sums stays in registers while it walks along k.
//!
//! Shapes: left `[rows, k]` f32 with any strides; right in panels of sixteen outputs, `[k][16]` f32 or `[k/2][16]` pairs
//! of bf16; sums `[rows, columns]` f32.
//! Sum order: each output is one chain of fused multiply-adds from the first term to the last. A chain may be cut and
//! continued from memory, which changes no bit, so tiles, panels and cuts are free to choose.
//!
//! Why `unsafe`: bounds checks in these loops would cost more than the arithmetic. What the safe side guarantees:
//! [`matmul`] and [`linear_tile`] compare the largest index of each operand with its length, once a call.

#[cfg(target_arch = "x86_64")]
use super::avx512::Dots;
use super::isa::{Isa, Kernel, kernel};
use super::simd::{LANES, Simd};
use super::split::Tile;

/// Rows of the largest tile, and of a group of packed rows.
pub(crate) const TILE_ROWS: usize = 6;

/// The left operand: value `(row, k)` stands at
/// `row / 6 · group_stride + row % 6 · row_stride + k · k_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    data: &'a [f32],
    rows: usize,
    group_stride: usize,
    row_stride: usize,
    k_stride: usize,
}

impl<'a> Left<'a> {
    /// Rows that are `row_stride` apart, of values that are `k_stride` apart.
    pub(crate) fn strided(
        data: &'a [f32],
        rows: usize,
        row_stride: usize,
        k_stride: usize,
    ) -> Left<'a> {
        Left {
            data,
            rows,
            group_stride: TILE_ROWS * row_stride,
            row_stride,
            k_stride,
        }
    }

    /// Groups of six rows, `[rows / 6][k][6]`.
    pub(crate) fn grouped(data: &'a [f32], rows: usize, k: usize) -> Left<'a> {
        Left {
            data,
            rows,
            group_stride: TILE_ROWS * k,
            row_stride: 1,
            k_stride: TILE_ROWS,
        }
    }

    fn place(&self, row: usize) -> usize {
        row / TILE_ROWS * self.group_stride + row % TILE_ROWS * self.row_stride
    }

    /// Rows of a tile, none of which straddles a group; as even as may be where there are no groups.
    fn tile_rows(&self, most: usize) -> usize {
        let grouped = self.group_stride != TILE_ROWS * self.row_stride;
        if grouped {
            TILE_ROWS
        } else {
            self.rows.div_ceil(self.rows.div_ceil(most))
        }
    }

    fn check(&self, k: usize) {
        let last = self.rows - 1;
        assert!(
            self.place(last) + (k - 1) * self.k_stride < self.data.len(),
            "left operand too short"
        );
        // The last row of a group stands furthest where groups are packed.
        assert!(
            self.place(last / TILE_ROWS * TILE_ROWS) < self.data.len(),
            "left operand too short"
        );
    }
}

/// The right operand in f32: value `(k, 16 · panel + lane)` stands at `panel · panel_stride + k · k_stride + lane`. With
/// `panel_stride` 16 it is a row-major matrix whose rows are `k_stride` long.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) k_stride: usize,
    pub(crate) panel_stride: usize,
}

/// The right operand as panels of bf16 pairs: pair `(k / 2, 16 · panel + lane)` stands at
/// `panel · panel_stride + k / 2 · 16 + lane`, the even value in its low half.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<'a> {
    pub(crate) data: &'a [u32],
    pub(crate) panel_stride: usize,
}

/// The right operand of a linear map, and what the left one holds for it.
#[derive(Clone, Copy)]
pub(crate) enum LinearRight<'a> {
    /// f32, in the order of k.
    Floats(Right<'a>),
    /// Pairs, even value first.
    Rising(Pairs<'a>),
    /// Pairs, odd value first; so stand the left operand's terms.
    OddFirst(Pairs<'a>),
    /// Pairs for the bf16 dot product; the left operand's terms are the bits of pairs too. Needs [`Isa::has_dots`].
    Dots(Pairs<'a>),
}

impl Isa {
    /// Whether these instructions have a bf16 dot product.
    pub(crate) fn has_dots(self) -> bool {
        self.name() == "avx512bf16"
    }

    /// Whether tiles of six rows run faster on panels that were widened to f32 before.
    pub(crate) fn widens_first(self) -> bool {
        !self.name().starts_with("avx512")
    }
}

/// Where a tile of sums stands: value `(row, column)` at `row · stride + column`.
#[derive(Clone, Copy)]
struct Sums {
    at: *mut f32,
    stride: usize,
    columns: usize,
    more: bool,
}

/// `sums = left · right` over `k` terms, or, if `more`, the chains that end in `sums` go on. Value `(row, column)` of
/// `sums` stands at `row · stride + column`; `columns` of a row are written.
///
/// # Panics
/// If an operand is shorter than its shape.
pub(crate) fn matmul(
    isa: Isa,
    k: usize,
    left: Left<'_>,
    right: Right<'_>,
    (sums, stride, columns): (&mut [f32], usize, usize),
    more: bool,
) {
    if left.rows == 0 || columns == 0 {
        return;
    }
    assert!(stride >= columns || left.rows == 1, "rows of sums overlap");
    assert!(
        (left.rows - 1) * stride + columns <= sums.len(),
        "sums too short"
    );
    let sums = Sums {
        at: sums.as_mut_ptr(),
        stride,
        columns,
        more,
    };
    // SAFETY: `sums` has `(rows − 1) · stride + columns` values by the lines above.
    unsafe { product(isa, k, left, LinearRight::Floats(right), sums) };
}

/// Adds `k` terms of a linear map to a tile of its output: all the tile's rows and columns. The chains start at zero, or
/// go on if `more`. Row 0 of `left` is the tile's first row; panel 0 of `right` begins at its first column, and the last
/// panel may reach beyond its last.
///
/// # Panics
/// If an operand is shorter than its shape, or a pair is cut.
pub(crate) fn linear_tile(
    isa: Isa,
    k: usize,
    left: Left<'_>,
    right: LinearRight<'_>,
    tile: &mut Tile<'_>,
    more: bool,
) {
    assert_eq!(left.rows, tile.rows().len(), "a row for each of the tile");
    let columns = tile.columns().len();
    if left.rows == 0 || columns == 0 {
        return;
    }
    let (at, stride) = tile.raw();
    // SAFETY: the tile has `left.rows` rows of `columns` values, `stride` apart.
    unsafe {
        product(
            isa,
            k,
            left,
            right,
            Sums {
                at,
                stride,
                columns,
                more,
            },
        )
    };
}

/// Checks the operands and runs the product for the kind of right operand.
///
/// # Safety
/// `sums` has `left.rows` rows of `sums.columns` values.
unsafe fn product(isa: Isa, k: usize, left: Left<'_>, right: LinearRight<'_>, sums: Sums) {
    if k == 0 {
        assert!(sums.more, "a sum without terms");
        return;
    }
    let last_panel = sums.columns.div_ceil(LANES) - 1;
    let steps = match right {
        LinearRight::Floats(right) => {
            let last = last_panel * right.panel_stride + (k - 1) * right.k_stride;
            assert!(last + LANES <= right.data.len(), "right operand too short");
            k
        }
        LinearRight::Rising(pairs) | LinearRight::OddFirst(pairs) | LinearRight::Dots(pairs) => {
            assert!(k.is_multiple_of(2), "a pair is cut");
            assert!(
                last_panel * pairs.panel_stride + k / 2 * LANES <= pairs.data.len(),
                "right operand too short"
            );
            k / 2
        }
    };
    left.check(if matches!(right, LinearRight::Dots(_)) {
        steps
    } else {
        k
    });
    match right {
        LinearRight::Floats(right) if right.k_stride == LANES => {
            isa.call(Product {
                left,
                right: Floats::<true>(right),
                steps,
                sums,
            });
        }
        LinearRight::Floats(right) => isa.call(Product {
            left,
            right: Floats::<false>(right),
            steps,
            sums,
        }),
        LinearRight::Rising(right) => isa.call(Product {
            left,
            right: Halves::<false>(right),
            steps,
            sums,
        }),
        LinearRight::OddFirst(right) => isa.call(Product {
            left,
            right: Halves::<true>(right),
            steps,
            sums,
        }),
        LinearRight::Dots(right) => match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16(isa) => isa.call_dots(DotsProduct {
                left,
                right,
                steps,
                sums,
            }),
            _ => panic!("{} has no bf16 dot product", isa.name()),
        },
    }
}

/// A product whose operands were checked.
struct Product<'a, P> {
    left: Left<'a>,
    right: P,
    /// Terms of a chain, or pairs of terms.
    steps: usize,
    sums: Sums,
}

impl<P: Panels> Kernel for Product<'_, P> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Product {
            left,
            right,
            steps,
            sums,
        } = self;
        let chains = Chains {
            s,
            right,
            steps,
            row_stride: left.row_stride,
            k_stride: left.k_stride,
        };
        // SAFETY: `product`, the only maker of a `Product`, checked the extents of both operands; those of the sums are its
        // caller's promise.
        unsafe { walk(&chains, left, sums) };
    }
}

/// A product by the bf16 dot product whose operands were checked.
#[cfg(target_arch = "x86_64")]
pub(super) struct DotsProduct<'a> {
    left: Left<'a>,
    right: Pairs<'a>,
    steps: usize,
    sums: Sums,
}

#[cfg(target_arch = "x86_64")]
impl DotsProduct<'_> {
    /// Runs it; to be inlined where the instructions are enabled.
    #[inline(always)]
    pub(super) fn run(self) {
        let DotsProduct {
            left,
            right,
            steps,
            sums,
        } = self;
        let dots = Dots {
            pairs: right,
            steps,
            row_stride: left.row_stride,
            k_stride: left.k_stride,
        };
        // SAFETY: `product`, the only maker of a `DotsProduct`, checked the extents of both operands; those of the sums are
        // its caller's promise.
        unsafe { walk(&dots, left, sums) };
    }
}

/// What fills a tile of `R` rows and `C` panels.
pub(super) trait Fill {
    /// Most panels beside `R` rows.
    const PANELS: [usize; TILE_ROWS + 1];

    /// Asks for the cache line of a place that will be read soon.
    fn prefetch(at: *const f32);

    /// Fills the tile whose first row begins at `left` and whose first panel is `panel`.
    ///
    /// # Safety
    /// The operands hold the tile's rows and panels over all steps; `to` has `R` rows of `16 · C` values, `stride` apart.
    unsafe fn fill<const R: usize, const C: usize>(
        &self,
        left: *const f32,
        panel: usize,
        to: *mut f32,
        stride: usize,
        more: bool,
    );
}

/// Walks over the sums tile by tile: all rows of some panels, then the next panels.
///
/// # Safety
/// The operands hold all rows and panels over all steps; `sums` has `left.rows` rows of `sums.columns` values.
#[inline(always)]
unsafe fn walk<T: Fill>(fill: &T, left: Left<'_>, sums: Sums) {
    let most = (1..=TILE_ROWS)
        .rev()
        .find(|rows| T::PANELS[*rows] > 0)
        .unwrap_or(1);
    let tile_rows = left.tile_rows(most);
    let width = T::PANELS[tile_rows];
    let whole = sums.columns / LANES;
    let mut panel = 0;
    while panel < whole {
        let panels = width.min(whole - panel);
        let mut row = 0;
        while row < left.rows {
            let rows = tile_rows.min(left.rows - row);
            // The next tile's sums lie on other pages, which the machine does not foresee.
            for next in row + rows..(row + 2 * rows).min(left.rows) {
                T::prefetch(sums.at.wrapping_add(next * sums.stride + panel * LANES));
            }
            // SAFETY: `row < left.rows` and `panel + panels ≤ whole`, so both places lie inside what the caller promises.
            unsafe {
                let to = sums.at.add(row * sums.stride + panel * LANES);
                let from = left.data.as_ptr().add(left.place(row));
                fill_tile(
                    fill,
                    (rows, panels),
                    from,
                    panel,
                    to,
                    sums.stride,
                    sums.more,
                );
            }
            row += rows;
        }
        panel += panels;
    }
    let rest = sums.columns % LANES;
    if rest == 0 {
        return;
    }
    let mut row = 0;
    while row < left.rows {
        let rows = tile_rows.min(left.rows - row);
        let mut part = [0.0; TILE_ROWS * LANES];
        // SAFETY: as above; of the last panel's sums only the `rest` values that exist are touched, through `part`.
        unsafe {
            let to = sums.at.add(row * sums.stride + whole * LANES);
            for r in 0..rows {
                to.add(r * sums.stride)
                    .copy_to(part.as_mut_ptr().add(r * LANES), rest);
            }
            let from = left.data.as_ptr().add(left.place(row));
            fill_tile(
                fill,
                (rows, 1),
                from,
                whole,
                part.as_mut_ptr(),
                LANES,
                sums.more,
            );
            for r in 0..rows {
                to.add(r * sums.stride)
                    .copy_from(part.as_ptr().add(r * LANES), rest);
            }
        }
        row += rows;
    }
}

/// Fills a tile whose size is known at run time.
///
/// # Safety
/// As [`Fill::fill`] with `R` and `C` the two numbers of `size`.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "the innermost loop's operands, in registers"
)]
unsafe fn fill_tile<T: Fill>(
    fill: &T,
    size: (usize, usize),
    left: *const f32,
    panel: usize,
    to: *mut f32,
    stride: usize,
    more: bool,
) {
    macro_rules! sizes {
        ($($rows:literal: $($panels:literal)*;)*) => {
            match size {
                // SAFETY: the caller's promise.
                $($(($rows, $panels) if T::PANELS[$rows] >= $panels => unsafe {
                    fill.fill::<$rows, $panels>(left, panel, to, stride, more);
                },)*)*
                _ => unreachable!("tiles have 1 to 6 rows and at most PANELS panels"),
            }
        };
    }
    sizes! { 1: 1 2 3 4; 2: 1 2 3 4; 3: 1 2 3 4; 4: 1 2 3 4; 5: 1 2 3 4; 6: 1 2 3 4; }
}

/// A right operand that gives its terms as vectors.
trait Panels: Copy {
    /// Terms of a step.
    const DEPTH: usize;
    /// Whether a step's vectors take twice the registers.
    const WIDENS: bool;

    /// The sixteen lanes of a step's terms, in the order in which they are added.
    ///
    /// # Safety
    /// The operand holds the panel over the step.
    unsafe fn step<S: Simd>(self, s: S, panel: usize, step: usize) -> (S::F, S::F);
}

/// f32 panels; `TIGHT` ones have their steps sixteen values apart.
#[derive(Clone, Copy)]
struct Floats<'a, const TIGHT: bool>(Right<'a>);

impl<const TIGHT: bool> Panels for Floats<'_, TIGHT> {
    const DEPTH: usize = 1;
    const WIDENS: bool = false;

    #[inline(always)]
    unsafe fn step<S: Simd>(self, s: S, panel: usize, step: usize) -> (S::F, S::F) {
        // SAFETY: the sixteen values lie in the operand, which the caller promises.
        let x = unsafe {
            s.load_raw(place(
                self.0.data,
                (panel, self.0.panel_stride),
                (step, if TIGHT { LANES } else { self.0.k_stride }),
            ))
        };
        (x, x)
    }
}

/// Panels of bf16 pairs; of a pair the odd value first, or the even one.
#[derive(Clone, Copy)]
struct Halves<'a, const ODD_FIRST: bool>(Pairs<'a>);

impl<const ODD_FIRST: bool> Panels for Halves<'_, ODD_FIRST> {
    const DEPTH: usize = 2;
    const WIDENS: bool = true;

    #[inline(always)]
    unsafe fn step<S: Simd>(self, s: S, panel: usize, step: usize) -> (S::F, S::F) {
        // SAFETY: the sixteen pairs lie in the operand, which the caller promises.
        let (even, odd) = unsafe {
            s.load_pairs_raw(place(
                self.0.data,
                (panel, self.0.panel_stride),
                (step, LANES),
            ))
        };
        if ODD_FIRST { (odd, even) } else { (even, odd) }
    }
}

/// Where a panel's step begins, without the checks of overflow that the callers have made.
#[inline(always)]
fn place<T>(data: &[T], panel: (usize, usize), step: (usize, usize)) -> *const T {
    let at = panel
        .0
        .wrapping_mul(panel.1)
        .wrapping_add(step.0.wrapping_mul(step.1));
    data.as_ptr().wrapping_add(at)
}

/// Tiles by fused multiply-add.
struct Chains<S, P> {
    s: S,
    right: P,
    steps: usize,
    row_stride: usize,
    k_stride: usize,
}

impl<S: Simd, P: Panels> Fill for Chains<S, P> {
    const PANELS: [usize; TILE_ROWS + 1] = if P::WIDENS { S::PAIR_PANELS } else { S::PANELS };

    #[inline(always)]
    fn prefetch(at: *const f32) {
        S::prefetch(at);
    }

    #[inline(always)]
    unsafe fn fill<const R: usize, const C: usize>(
        &self,
        left: *const f32,
        panel: usize,
        to: *mut f32,
        stride: usize,
        more: bool,
    ) {
        let s = self.s;
        let mut sums = [[s.splat(0.0); C]; R];
        if more {
            for (r, row) in sums.iter_mut().enumerate() {
                for (c, sum) in row.iter_mut().enumerate() {
                    // SAFETY: `r < R` and `c < C`, so the sixteen values lie in the tile.
                    *sum = unsafe { s.load_raw(to.add(r * stride + c * LANES)) };
                }
            }
        }
        let mut step = 0;
        if self.row_stride == 1 && self.k_stride == TILE_ROWS {
            // Rows packed in a group: all strides are known here, and four steps a turn hide the loop's own work.
            let rows = row_places::<R>(left, 1);
            while step + 4 <= self.steps {
                for next in step..step + 4 {
                    // SAFETY: the caller promises the tile's rows and panels over all steps.
                    unsafe { self.add_step(&mut sums, &rows, TILE_ROWS, panel, next) };
                }
                step += 4;
            }
        }
        let rows = row_places::<R>(left, self.row_stride);
        while step < self.steps {
            // SAFETY: the caller promises the tile's rows and panels over all steps.
            unsafe { self.add_step(&mut sums, &rows, self.k_stride, panel, step) };
            step += 1;
        }
        for (r, row) in sums.iter().enumerate() {
            for (c, sum) in row.iter().enumerate() {
                // SAFETY: `r < R` and `c < C`, so the sixteen values lie in the tile.
                unsafe { s.store_raw(to.add(r * stride + c * LANES), *sum) };
            }
        }
    }
}

impl<S: Simd, P: Panels> Chains<S, P> {
    /// Adds one step's terms to a tile's sums.
    ///
    /// # Safety
    /// The operands hold the tile's rows and panels at the step.
    #[inline(always)]
    unsafe fn add_step<const R: usize, const C: usize>(
        &self,
        sums: &mut [[S::F; C]; R],
        rows: &[*const f32; R],
        k_stride: usize,
        panel: usize,
        step: usize,
    ) {
        let s = self.s;
        let mut terms = [(s.splat(0.0), s.splat(0.0)); C];
        for (c, terms) in terms.iter_mut().enumerate() {
            // SAFETY: the caller promises the tile's panels at the step.
            *terms = unsafe { self.right.step(s, panel.wrapping_add(c), step) };
        }
        let first = step.wrapping_mul(P::DEPTH).wrapping_mul(k_stride);
        for (row, sums) in rows.iter().zip(sums.iter_mut()) {
            // SAFETY: the caller promises the tile's rows at the step.
            let x = s.splat(unsafe { *row.wrapping_add(first) });
            for (sum, terms) in sums.iter_mut().zip(&terms) {
                *sum = s.fma(x, terms.0, *sum);
            }
        }
        if P::DEPTH == 1 {
            return;
        }
        for (row, sums) in rows.iter().zip(sums) {
            // SAFETY: as for the first term of the step; a step has two.
            let x = s.splat(unsafe { *row.wrapping_add(first.wrapping_add(k_stride)) });
            for (sum, terms) in sums.iter_mut().zip(&terms) {
                *sum = s.fma(x, terms.1, *sum);
            }
        }
    }
}

/// Where each row of a tile begins. Wrapping offsets here and below: checked arithmetic would keep the sums out of
/// registers in builds with overflow checks.
#[inline(always)]
pub(super) fn row_places<const R: usize>(left: *const f32, row_stride: usize) -> [*const f32; R] {
    let mut rows = [left; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = left.wrapping_add(r.wrapping_mul(row_stride));
    }
    rows
}

kernel! {
    /// Widens a panel of pairs, `[pairs][16]`, to f32, `[2 · pairs][16]`; of each pair the odd value first if `odd_first`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub(crate) fn widen<'a>(s, pairs: &'a [u32], odd_first: bool, out: &'a mut [f32]) {
        let (pairs, _) = pairs.as_chunks::<LANES>();
        let (out, _) = out.as_chunks_mut::<{ 2 * LANES }>();
        assert!(out.len() >= pairs.len());
        for (pair, out) in pairs.iter().zip(out) {
            // SAFETY: an array of sixteen u32 is valid for reading sixteen u32.
            let (even, odd) = unsafe { s.load_pairs_raw(pair.as_ptr()) };
            let (first, second) = if odd_first { (odd, even) } else { (even, odd) };
            s.store(&mut out[..LANES], first);
            s.store(&mut out[LANES..], second);
        }
    }
}

/// Multiply-adds of a round of [`multiply_adds`].
pub const MULTIPLY_ADDS_A_ROUND: usize = 6 * LANES;

/// Six independent chains of sixteen multiply-adds, `rounds` long: what a machine can do at most, for benches.
pub fn multiply_adds(isa: Isa, rounds: usize) -> f32 {
    chains(isa, rounds)
}

/// As [`multiply_adds`], of the bf16 dot product: twice as many chains, and each product counts as two. `None` where there
/// is none.
pub fn dot_products(isa: Isa, rounds: usize) -> Option<f32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16(isa) => Some(isa.dot_products(rounds)),
        _ => None,
    }
}

kernel! {
    fn chains<'a>(s, rounds: usize) -> f32 {
        let mut sums: [S::F; 6] = std::array::from_fn(|i| s.splat(i as f32));
        let (x, y) = (s.splat(0.5), s.splat(0.25));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = s.fma(x, *sum, y);
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}
