//! Launches of `kernels/rows.cu`.

use super::{arguments, blocks, image, int, module, plain};
use crate::driver::{Block, Gpu, Kernel};
use crate::error::CudaError;

/// Widest row that the norms take.
pub(crate) const WIDTH_MAX: usize = 8192;
const THREADS: usize = 256;

/// Kernels on whole rows.
#[derive(Debug)]
pub(crate) struct RowKernels {
    gather: Kernel,
    norm: Kernel,
    add_norm: Kernel,
    swiglu: Kernel,
    gated_norm: Kernel,
    fill_bf16: Kernel,
    fill_f32: Kernel,
    copy: Kernel,
}

/// The kernel that copies many pieces in one launch.
#[derive(Debug)]
pub(crate) struct CopyKernel(Kernel);

impl CopyKernel {
    pub(crate) fn load(gpu: &Gpu) -> Result<CopyKernel, CudaError> {
        let rows = module(gpu, "the row kernels", image!("rows.fatbin"))?;
        Ok(CopyKernel(plain(&rows, "copy_pieces")?))
    }

    /// Copies pieces, from and to, of which `list` has the addresses and the groups of 16 bytes.
    pub(crate) fn run(
        &self,
        gpu: &Gpu,
        pieces: &[[Block<u8>; 2]],
        list: &Block<[u64; 4]>,
    ) -> Result<(), CudaError> {
        let whole = |[from, to]: &[Block<u8>; 2]| {
            let aligned = |block: &Block<u8>| block.address().is_multiple_of(16);
            from.len() == to.len() && from.len().is_multiple_of(16) && aligned(from) && aligned(to)
        };
        assert!(
            list.len() == pieces.len() && pieces.iter().all(whole),
            "pieces of equal lengths, in groups of 16 bytes"
        );
        // SAFETY: the list names these pieces, as its caller says, which are blocks of equal lengths; any bits are bytes.
        unsafe {
            gpu.launch(
                self.0,
                [pieces.len(), 1, 1],
                THREADS,
                arguments![list.address()],
            )
        }
    }
}

impl RowKernels {
    pub(super) fn load(gpu: &Gpu) -> Result<RowKernels, CudaError> {
        let rows = module(gpu, "the row kernels", image!("rows.fatbin"))?;
        Ok(RowKernels {
            gather: plain(&rows, "gather_rows")?,
            norm: plain(&rows, "norm_rows")?,
            add_norm: plain(&rows, "add_norm_rows")?,
            swiglu: plain(&rows, "swiglu_rows")?,
            gated_norm: plain(&rows, "gated_norm")?,
            fill_bf16: plain(&rows, "fill_normal_bf16")?,
            fill_f32: plain(&rows, "fill_normal_f32")?,
            copy: plain(&rows, "copy_rows")?,
        })
    }

    /// `out[i] = table[ids[i]]`, rows of `width` values. The ids lie below the table's rows.
    pub(crate) fn gather(
        &self,
        gpu: &Gpu,
        table: &Block<u16>,
        ids: &Block<i32>,
        out: &Block<u16>,
        width: usize,
    ) -> Result<(), CudaError> {
        let rows = ids.len();
        assert!(
            rows * width <= out.len() && width.is_multiple_of(8) && width <= table.len(),
            "rows of the table"
        );
        // SAFETY: `out` has `rows` rows by the assert; `ids` are below the table's rows, as its caller says.
        unsafe {
            gpu.launch_chained(
                self.gather,
                [rows, 1, 1],
                THREADS,
                arguments![table.address(), ids.address(), out.address(), int(width)],
            )
        }
    }

    /// `out = norm(h) · weight`; with `add`, `h += add` first.
    pub(crate) fn norm(
        &self,
        gpu: &Gpu,
        (h, add): (&Block<u16>, Option<&Block<u16>>),
        (weight, eps): (&Block<f32>, f32),
        out: &Block<u16>,
        rows: usize,
    ) -> Result<(), CudaError> {
        let width = weight.len();
        assert!(
            width.is_multiple_of(8) && width <= WIDTH_MAX,
            "a width that the norm takes"
        );
        assert!(
            rows * width <= h.len().min(out.len())
                && add.is_none_or(|add| rows * width <= add.len()),
            "all rows"
        );
        match add {
            // SAFETY: all four blocks have `rows` rows of `width` values, `weight` has one, by the asserts.
            Some(add) => unsafe {
                gpu.launch_chained(
                    self.add_norm,
                    [rows, 1, 1],
                    THREADS,
                    arguments![
                        h.address(),
                        add.address(),
                        weight.address(),
                        out.address(),
                        int(width),
                        eps
                    ],
                )
            },
            // SAFETY: as above, without `add`.
            None => unsafe {
                gpu.launch_chained(
                    self.norm,
                    [rows, 1, 1],
                    THREADS,
                    arguments![
                        h.address(),
                        weight.address(),
                        out.address(),
                        int(width),
                        eps
                    ],
                )
            },
        }
    }

    /// SwiGLU of rows of gate and up in turns of 8 values; `out` has rows of `width`.
    pub(crate) fn swiglu(
        &self,
        gpu: &Gpu,
        wide: &Block<u16>,
        out: &Block<u16>,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        assert!(
            width.is_multiple_of(8) && 2 * rows * width <= wide.len() && rows * width <= out.len(),
            "all rows"
        );
        // SAFETY: both blocks have `rows` rows, by the assert.
        unsafe {
            gpu.launch_chained(
                self.swiglu,
                [rows, 1, 1],
                THREADS,
                arguments![wide.address(), out.address(), int(width)],
            )
        }
    }

    /// In place: the rows of `heads` value heads, normed, weighted and gated by `z`, which begins at column `z_at` of rows of
    /// `z_width` values.
    pub(crate) fn gated_norm(
        &self,
        gpu: &Gpu,
        x: &Block<u16>,
        (z, z_width, z_at): (&Block<u16>, usize, usize),
        (weight, eps): (&Block<f32>, f32),
        (rows, heads): (usize, usize),
    ) -> Result<(), CudaError> {
        let dim = weight.len();
        assert!(dim <= 256 && rows * heads * dim <= x.len(), "all rows of x");
        assert!(
            z_at + heads * dim <= z_width && rows * z_width <= z.len(),
            "all rows of z"
        );
        // SAFETY: the asserts bound both blocks; lanes that have no cell write nothing.
        unsafe {
            gpu.launch_chained(
                self.gated_norm,
                blocks(rows * heads, THREADS / 16),
                THREADS,
                arguments![
                    x.address(),
                    z.address(),
                    weight.address(),
                    int(rows),
                    int(heads),
                    int(dim),
                    int(z_width),
                    int(z_at),
                    eps
                ],
            )
        }
    }

    /// Fills a block with seeded normal numbers of a standard deviation.
    pub(crate) fn fill_bf16(
        &self,
        gpu: &Gpu,
        to: &Block<u16>,
        seed: u32,
        scale: f32,
    ) -> Result<(), CudaError> {
        // SAFETY: the kernel writes `len` values.
        unsafe {
            gpu.launch(
                self.fill_bf16,
                [2048, 1, 1],
                THREADS,
                arguments![to.address(), to.len() as u64, seed, scale],
            )
        }
    }

    /// The same in f32, around a base.
    pub(crate) fn fill_f32(
        &self,
        gpu: &Gpu,
        to: &Block<f32>,
        seed: u32,
        (scale, base): (f32, f32),
    ) -> Result<(), CudaError> {
        // SAFETY: the kernel writes `len` values.
        unsafe {
            gpu.launch(
                self.fill_f32,
                [256, 1, 1],
                THREADS,
                arguments![to.address(), to.len() as u64, seed, scale, base],
            )
        }
    }

    /// Copies a block, 16 bytes a step.
    pub(crate) fn copy(
        &self,
        gpu: &Gpu,
        from: &Block<u16>,
        to: &Block<u16>,
    ) -> Result<(), CudaError> {
        assert!(
            from.len() == to.len() && from.len().is_multiple_of(8),
            "blocks of equal lengths"
        );
        // SAFETY: the kernel moves `len / 8` pieces of 8 values.
        unsafe {
            gpu.launch(
                self.copy,
                [4096, 1, 1],
                THREADS,
                arguments![from.address(), to.address(), from.len() as u64 / 8],
            )
        }
    }
}
