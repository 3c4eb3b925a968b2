//! Launches of `kernels/delta.cu` and `kernels/delta_sm90.cu`.

use super::{arguments, blocks, image, int, module, plain};
use crate::driver::{Block, Gpu, Kernel, TensorMap};
use crate::error::CudaError;

/// Values of a chunk and head between the two kernels of the chunked rule: four squares.
pub(crate) const SQUARES: usize = 4 * 64 * 64;
/// f32 values of a chunk and head between them: its sums, or on Hopper its fades.
pub(crate) const SUMS: usize = 2 * 64;
/// Rows of a warp of the convolution: few, so that short rounds fill the device, or many, so that taps are read seldom.
const CONV_ROWS: [(usize, &str); 2] = [(8, "convolve_8"), (32, "convolve_32")];
/// Rows from which the many are faster.
const CONV_LONG: usize = 1024;
/// Widths of keys for which there are kernels, with the names of both.
const WIDTHS: [(usize, &str, &str); 4] = [
    (16, "prepare_16", "scan_16"),
    (32, "prepare_32", "scan_32"),
    (64, "prepare_64", "scan_64"),
    (128, "prepare_128", "scan_128"),
];

/// `Sizes` of the source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DeltaSizes {
    pub(crate) key_heads: i32,
    pub(crate) value_heads: i32,
    pub(crate) key: i32,
    pub(crate) value: i32,
    pub(crate) channels: i32,
    pub(crate) wide: i32,
}

const _: () = assert!(size_of::<DeltaSizes>() == 24, "six ints, as in the source");

impl DeltaSizes {
    fn of(x: i32) -> usize {
        usize::try_from(x).expect("sizes are positive")
    }

    fn heads(&self) -> usize {
        DeltaSizes::of(self.value_heads)
    }

    /// Width of all values.
    fn values(&self) -> usize {
        self.heads() * DeltaSizes::of(self.value)
    }

    fn check(&self, wide: &Block<u16>, mixed: &Block<u16>, rows: usize) {
        let (channels, width) = (DeltaSizes::of(self.channels), DeltaSizes::of(self.wide));
        assert!(
            self.key % 8 == 0 && self.value % 8 == 0 && self.key <= 128 && self.value <= 256,
            "widths of heads"
        );
        assert!(
            channels + self.values() + 2 * self.heads() <= width,
            "channels, z, b and a in a row"
        );
        assert!(
            rows * width <= wide.len() && rows * channels <= mixed.len(),
            "all rows"
        );
    }
}

/// What the recurrence of a layer knows and thinks.
#[derive(Clone, Copy)]
pub(crate) struct Recurrence<'a> {
    /// `[value_heads]`: `−e^(A_log)`.
    pub(crate) rates: &'a Block<f32>,
    /// `[value_heads]`: `dt_bias`.
    pub(crate) biases: &'a Block<f32>,
    /// `[places, value_heads, V, K]`.
    pub(crate) states: &'a Block<f32>,
}

/// The kernels of the gated delta net.
#[derive(Debug)]
pub(crate) struct DeltaKernels {
    convolve: [Kernel; 2],
    keep: Kernel,
    prepare: Vec<(usize, Kernel)>,
    scan: Vec<(usize, Kernel)>,
    step: Kernel,
    fast: Option<Fast>,
}

/// Hopper's kernels of the chunked rule.
#[derive(Debug)]
struct Fast {
    prepare: Kernel,
    scan: Kernel,
}

impl Fast {
    /// Most value heads of a key head, `GROUP_MAX` of the source.
    const GROUP_MAX: i32 = 8;
    /// Shared memory of the source's two drawings.
    const PREPARE: usize = 2 * 64 * 136 * 2 + 2 * 64 * 64 * 2 + 2 * 8 * 64 * 4;
    const SCAN: usize = 1024 + 3 * 9 * 64 * 128 + 64 * 128 + 3 * 512 + 48;

    fn load(gpu: &Gpu) -> Result<Fast, CudaError> {
        let all = module(gpu, "Hopper's delta rule", image!("delta_sm90.fatbin"))?;
        Ok(Fast {
            prepare: all.kernel("prepare_sm90", Fast::PREPARE)?,
            scan: all.kernel("scan_sm90", Fast::SCAN)?,
        })
    }

    fn takes(sizes: DeltaSizes) -> bool {
        sizes.key == 128
            && sizes.value % 64 == 0
            && sizes.value_heads / sizes.key_heads <= Fast::GROUP_MAX
    }
}

impl DeltaKernels {
    pub(super) fn load(gpu: &Gpu, hopper: bool) -> Result<DeltaKernels, CudaError> {
        let all = module(gpu, "the delta net's kernels", image!("delta.fatbin"))?;
        let (mut prepare, mut scan) = (Vec::new(), Vec::new());
        for (key, prepare_name, scan_name) in WIDTHS {
            let chunk = 2 * 64 * (key + 8) * 2;
            prepare.push((
                key,
                all.kernel(prepare_name, chunk + 64 * 68 * 4 + 2 * 64 * 4)?,
            ));
            scan.push((
                key,
                all.kernel(scan_name, 2 * (chunk + 5 * 64 * 72 * 2 + 64 * 4))?,
            ));
        }
        Ok(DeltaKernels {
            convolve: [plain(&all, CONV_ROWS[0].1)?, plain(&all, CONV_ROWS[1].1)?],
            keep: plain(&all, "keep_inputs")?,
            prepare,
            scan,
            step: plain(&all, "step")?,
            fast: hopper.then(|| Fast::load(gpu)).transpose()?,
        })
    }

    /// Hopper's kernels, if there are any for these sizes.
    fn fast(&self, sizes: DeltaSizes) -> Option<&Fast> {
        self.fast.as_ref().filter(|_| Fast::takes(sizes))
    }

    /// Convolves the channels of `wide` into `mixed`, queries and keys at unit length. `taps` is `[4, channels]`, `inputs` `[slots,
    /// 3, channels]`; `places` each row's first row of its segment, and slot.
    pub(crate) fn convolve(
        &self,
        gpu: &Gpu,
        sizes: DeltaSizes,
        (wide, mixed): (&Block<u16>, &Block<u16>),
        (taps, inputs): (&Block<f32>, &Block<u16>),
        places: [&Block<i32>; 2],
    ) -> Result<(), CudaError> {
        let rows = places[0].len();
        sizes.check(wide, mixed, rows);
        assert!(
            places[1].len() == rows && taps.len() == 4 * DeltaSizes::of(sizes.channels),
            "a place a row, four taps a channel"
        );
        let heads = DeltaSizes::of(2 * sizes.key_heads + sizes.value_heads);
        let which = usize::from(rows >= CONV_LONG);
        // SAFETY: `check` bounds `wide` and `mixed` by `rows`; slots lie in `inputs`, as the caller says.
        unsafe {
            gpu.launch_chained(
                self.convolve[which],
                blocks(rows.div_ceil(CONV_ROWS[which].0) * heads, 8),
                256,
                arguments![
                    wide.address(),
                    taps.address(),
                    inputs.address(),
                    places[0].address(),
                    places[1].address(),
                    mixed.address(),
                    int(rows),
                    sizes
                ],
            )
        }
    }

    /// Keeps the last inputs of each segment, or of its rows before a mark (first row, rows, slot or place, unused).
    pub(crate) fn keep(
        &self,
        gpu: &Gpu,
        sizes: DeltaSizes,
        wide: &Block<u16>,
        inputs: &Block<u16>,
        segments: &Block<[i32; 4]>,
    ) -> Result<(), CudaError> {
        let channels = DeltaSizes::of(sizes.channels);
        // SAFETY: segments lie in the round and their slots in `inputs`, as the caller says.
        unsafe {
            gpu.launch_chained(
                self.keep,
                [channels.div_ceil(256), segments.len(), 1],
                256,
                arguments![wide.address(), inputs.address(), segments.address(), sizes],
            )
        }
    }

    /// Prefill: moves the states on by segments (first row, rows, slot, first chunk) whose chunks are listed (first row, rows,
    /// unused, unused) and whose marks are (chunks before it, 0 for none; place of the states there; unused, unused); outputs go to
    /// `out`, `[rows, value_heads · V]`. `squares` and `sums` hold all chunks.
    #[cfg(test)]
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn prefill(
        &self,
        gpu: &Gpu,
        sizes: DeltaSizes,
        (wide, mixed): (&Block<u16>, &Block<u16>),
        recurrence: Recurrence<'_>,
        (chunks, segments): (&Block<[i32; 4]>, [&Block<[i32; 4]>; 2]),
        (squares, sums): (&Block<u16>, &Block<f32>),
        (out, rows): (&Block<u16>, usize),
    ) -> Result<(), CudaError> {
        self.prepare(
            gpu,
            sizes,
            (wide, mixed),
            recurrence,
            chunks,
            (squares, sums),
            rows,
        )?;
        self.scan(
            gpu,
            sizes,
            mixed,
            recurrence,
            segments,
            (squares, sums),
            (out, rows),
        )
    }

    /// The half of [`DeltaKernels::prefill`] that all chunks do side by side.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn prepare(
        &self,
        gpu: &Gpu,
        sizes: DeltaSizes,
        (wide, mixed): (&Block<u16>, &Block<u16>),
        recurrence: Recurrence<'_>,
        chunks: &Block<[i32; 4]>,
        (squares, sums): (&Block<u16>, &Block<f32>),
        rows: usize,
    ) -> Result<(), CudaError> {
        sizes.check(wide, mixed, rows);
        let heads = sizes.heads();
        assert!(
            recurrence.rates.len() >= heads && recurrence.biases.len() >= heads,
            "a rate a head"
        );
        assert!(
            chunks.len() * heads * SQUARES <= squares.len()
                && chunks.len() * heads * SUMS <= sums.len(),
            "room for all chunks"
        );
        let (kernel, heads) = match self.fast(sizes) {
            Some(fast) => (fast.prepare, DeltaSizes::of(sizes.key_heads)),
            None => (of_width(&self.prepare, sizes), heads),
        };
        // SAFETY: the asserts bound the blocks; chunks lie in the round, as the caller says.
        unsafe {
            gpu.launch_chained(
                kernel,
                [chunks.len(), heads, 1],
                128,
                arguments![
                    wide.address(),
                    mixed.address(),
                    recurrence.rates.address(),
                    recurrence.biases.address(),
                    chunks.address(),
                    squares.address(),
                    sums.address(),
                    sizes
                ],
            )
        }
    }

    /// The half of [`DeltaKernels::prefill`] that goes from chunk to chunk, over segments and their marks.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn scan(
        &self,
        gpu: &Gpu,
        sizes: DeltaSizes,
        mixed: &Block<u16>,
        recurrence: Recurrence<'_>,
        [segments, marks]: [&Block<[i32; 4]>; 2],
        (squares, sums): (&Block<u16>, &Block<f32>),
        (out, rows): (&Block<u16>, usize),
    ) -> Result<(), CudaError> {
        assert!(
            rows * sizes.values() <= out.len()
                && rows * DeltaSizes::of(sizes.channels) <= mixed.len(),
            "all rows"
        );
        assert_eq!(segments.len(), marks.len(), "a mark, or none, a segment");
        let grid = [
            DeltaSizes::of(sizes.value).div_ceil(64),
            sizes.heads(),
            segments.len(),
        ];
        if let Some(fast) = self.fast(sizes) {
            let channels = DeltaSizes::of(sizes.channels);
            let mixed_map = TensorMap::new(mixed, [rows, channels, channels], [64, 64])?;
            // SAFETY: the copy engine stays inside the map; segments lie in the round, their chunks among those prepared and
            // their slots and the places of marks in `states`, as the caller says.
            return unsafe {
                gpu.launch_chained(
                    fast.scan,
                    grid,
                    160,
                    arguments![
                        mixed_map,
                        squares.address(),
                        sums.address(),
                        segments.address(),
                        marks.address(),
                        recurrence.states.address(),
                        out.address(),
                        sizes
                    ],
                )
            };
        }
        let kernel = of_width(&self.scan, sizes);
        // SAFETY: segments lie in the round, their chunks among those prepared and their slots and the places of marks in `states`, as
        // the caller says.
        unsafe {
            gpu.launch_chained(
                kernel,
                grid,
                256,
                arguments![
                    mixed.address(),
                    squares.address(),
                    sums.address(),
                    segments.address(),
                    marks.address(),
                    recurrence.states.address(),
                    out.address(),
                    sizes
                ],
            )
        }
    }

    /// Decode: moves the state of each stream (row of the round, position, slot, unused) on by its row.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn step(
        &self,
        gpu: &Gpu,
        sizes: DeltaSizes,
        (wide, mixed): (&Block<u16>, &Block<u16>),
        recurrence: Recurrence<'_>,
        streams: &Block<[i32; 4]>,
        (out, rows): (&Block<u16>, usize),
    ) -> Result<(), CudaError> {
        sizes.check(wide, mixed, rows);
        assert!(rows * sizes.values() <= out.len(), "all rows");
        // SAFETY: the asserts bound the blocks; rows lie in the round and slots in `states`, as the caller says.
        unsafe {
            gpu.launch_chained(
                self.step,
                [
                    streams.len(),
                    sizes.heads(),
                    DeltaSizes::of(sizes.value).div_ceil(32),
                ],
                128,
                arguments![
                    wide.address(),
                    mixed.address(),
                    recurrence.rates.address(),
                    recurrence.biases.address(),
                    streams.address(),
                    recurrence.states.address(),
                    out.address(),
                    sizes
                ],
            )
        }
    }
}

/// The kernel of the least width that a key fits in.
fn of_width(kernels: &[(usize, Kernel)], sizes: DeltaSizes) -> Kernel {
    let key = DeltaSizes::of(sizes.key);
    kernels
        .iter()
        .find(|(width, _)| key <= *width)
        .expect("keys of at most 128 values")
        .1
}
