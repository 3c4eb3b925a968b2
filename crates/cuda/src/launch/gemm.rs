//! Launches of `kernels/gemm_sm90.cu` and `kernels/gemm_mma.cu`, and which tile a product takes.
//!
//! The choice touches speed alone: all tiles give a row the same bits.

use super::{arguments, image, int, module};
use crate::driver::{Block, Gpu, Kernel, TensorMap};
use crate::error::CudaError;

/// A product of rows with a weight: `out[m][n] = Σ x[m][k] weight[n][k]`, or SwiGLU of it. All dense, bf16.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// `[rows, inputs]`.
    pub(crate) x: &'a Block<u16>,
    /// `[outputs, inputs]`; for SwiGLU 8 rows of the gate, then 8 of up, and so on.
    pub(crate) weight: &'a Block<u16>,
    /// `[rows, outputs]`; for SwiGLU `[rows, outputs / 2]`.
    pub(crate) out: &'a Block<u16>,
    pub(crate) rows: usize,
    /// A multiple of 8.
    pub(crate) inputs: usize,
    /// A multiple of 8; for SwiGLU of 16.
    pub(crate) outputs: usize,
    pub(crate) swiglu: bool,
}

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is added to what is there, each rounded as if by a pass of its own.
    Add,
    /// It takes the place of what is there.
    Plain,
    /// SwiGLU of it does.
    Swiglu,
}

/// A kernel of `gemm_sm90.cu`: rows and columns of its tile, stages of its pipeline, blocks of a cluster along the rows.
#[derive(Clone, Copy, Debug)]
struct Tile {
    name: &'static str,
    kind: Kind,
    rows: usize,
    columns: usize,
    stages: usize,
    cluster: usize,
}

const fn tile(
    name: &'static str,
    kind: Kind,
    [rows, columns, stages, cluster]: [usize; 4],
) -> Tile {
    Tile {
        name,
        kind,
        rows,
        columns,
        stages,
        cluster,
    }
}

/// `GEMM_KERNELS` of the source.
const TILES: [Tile; 32] = [
    tile("gemm_128x256_c2", Kind::Plain, [128, 256, 4, 2]),
    tile("gemm_128x256_c1", Kind::Plain, [128, 256, 4, 1]),
    tile("gemm_128x192_c2", Kind::Plain, [128, 192, 4, 2]),
    tile("gemm_128x128_c2", Kind::Plain, [128, 128, 6, 2]),
    tile("gemm_128x128_c1", Kind::Plain, [128, 128, 6, 1]),
    tile("gemm_128x64_c2", Kind::Plain, [128, 64, 8, 2]),
    tile("gemm_128x64_c1", Kind::Plain, [128, 64, 8, 1]),
    tile("gemm_64x192_c2", Kind::Plain, [64, 192, 6, 2]),
    tile("gemm_64x96_c1", Kind::Plain, [64, 96, 10, 1]),
    tile("gemm_64x64_c2", Kind::Plain, [64, 64, 12, 2]),
    tile("gemm_64x64_c1", Kind::Plain, [64, 64, 12, 1]),
    tile("gemm_64x32_c1", Kind::Plain, [64, 32, 16, 1]),
    tile("swiglu_128x256_c2", Kind::Swiglu, [128, 256, 4, 2]),
    tile("swiglu_128x256_c1", Kind::Swiglu, [128, 256, 4, 1]),
    tile("swiglu_128x128_c2", Kind::Swiglu, [128, 128, 6, 2]),
    tile("swiglu_128x128_c1", Kind::Swiglu, [128, 128, 6, 1]),
    tile("swiglu_64x192_c2", Kind::Swiglu, [64, 192, 6, 2]),
    tile("swiglu_64x192_c1", Kind::Swiglu, [64, 192, 6, 1]),
    tile("swiglu_64x128_c1", Kind::Swiglu, [64, 128, 8, 1]),
    tile("swiglu_64x64_c1", Kind::Swiglu, [64, 64, 12, 1]),
    tile("add_128x256_c2", Kind::Add, [128, 256, 4, 2]),
    tile("add_128x256_c1", Kind::Add, [128, 256, 4, 1]),
    tile("add_128x192_c2", Kind::Add, [128, 192, 4, 2]),
    tile("add_128x128_c2", Kind::Add, [128, 128, 6, 2]),
    tile("add_128x128_c1", Kind::Add, [128, 128, 6, 1]),
    tile("add_128x64_c2", Kind::Add, [128, 64, 8, 2]),
    tile("add_128x64_c1", Kind::Add, [128, 64, 8, 1]),
    tile("add_64x192_c2", Kind::Add, [64, 192, 6, 2]),
    tile("add_64x96_c1", Kind::Add, [64, 96, 10, 1]),
    tile("add_64x64_c2", Kind::Add, [64, 64, 12, 2]),
    tile("add_64x64_c1", Kind::Add, [64, 64, 12, 1]),
    tile("add_64x32_c1", Kind::Add, [64, 32, 16, 1]),
];

impl Tile {
    /// Consumer warpgroups.
    fn warpgroups(&self) -> usize {
        self.rows / 64
    }

    /// Columns of one store.
    fn store_columns(&self) -> usize {
        let columns = if self.kind == Kind::Swiglu {
            self.columns / 2
        } else {
            self.columns
        };
        if columns.is_multiple_of(64) { 64 } else { 32 }
    }

    /// `Shape::SMEM`.
    fn shared(&self) -> usize {
        let stages = self.stages * (self.rows + self.columns) * 128;
        let staging = self.warpgroups() * 4 * 2 * 16 * self.store_columns() * 2;
        1024 + stages + staging + 2 * self.stages * 8 + self.warpgroups() * 4 * 2 * 8
    }

    /// A cluster's tiles of a product.
    fn clusters(&self, rows: usize, outputs: usize) -> usize {
        rows.div_ceil(self.rows * self.cluster) * outputs.div_ceil(self.columns)
    }

    /// Cycles that a product takes, by a model: of a block of 64 of k the tensor cores take `rows · columns / 32`; shared memory
    /// moves 128 bytes a cycle; loads enter a multiprocessor at 54 bytes a cycle (fitted).
    fn cost(&self, product: &Product<'_>, multiprocessors: usize) -> f64 {
        let (rows, columns) = (self.rows as f64, self.columns as f64);
        let waves = self
            .clusters(product.rows, product.outputs)
            .div_ceil(multiprocessors / self.cluster) as f64;
        let tensor = rows * columns / 32.0;
        let shared = (self.warpgroups() as f64 * 4.0 * (2048.0 + 32.0 * columns)
            + 128.0 * (rows + columns))
            / 128.0;
        let load = 128.0 * (rows + columns) / 54.0;
        let alone = if self.cluster > 1 || product.rows <= self.rows {
            1.0
        } else {
            1.03
        };
        waves * (product.inputs.div_ceil(64) as f64 * tensor.max(shared).max(load) + 1500.0) * alone
    }
}

/// The kernels of matrix products.
#[derive(Debug)]
pub(crate) struct GemmKernels {
    /// Of Hopper.
    tiles: Vec<(Tile, Kernel)>,
    /// 128 and 32 rows a block, 64 columns.
    portable: [Kernel; 2],
    multiprocessors: usize,
}

impl GemmKernels {
    pub(super) fn load(gpu: &Gpu, hopper: bool) -> Result<GemmKernels, CudaError> {
        let mut tiles = Vec::new();
        if hopper {
            let fast = module(gpu, "Hopper's matrix products", image!("gemm_sm90.fatbin"))?;
            for tile in TILES {
                tiles.push((tile, fast.kernel(tile.name, tile.shared())?));
            }
        }
        let plain = module(gpu, "the matrix products", image!("gemm_mma.fatbin"))?;
        let stages = |rows: usize| 3 * (rows + 64) * 40 * 2;
        Ok(GemmKernels {
            tiles,
            portable: [
                plain.kernel("gemm_mma_128x64", stages(128))?,
                plain.kernel("gemm_mma_32x64", stages(32))?,
            ],
            multiprocessors: gpu.multiprocessors(),
        })
    }

    /// Whether SwiGLU and sums are part of a product here; otherwise each is a pass of its own.
    pub(crate) fn fuses(&self) -> bool {
        !self.tiles.is_empty()
    }

    /// Adds a product to `out`: the bits are those of [`GemmKernels::run`] and a sum in a pass of its own.
    ///
    /// # Panics
    /// If [`GemmKernels::fuses`] says no.
    pub(crate) fn add(&self, gpu: &Gpu, product: Product<'_>) -> Result<(), CudaError> {
        let index = self.best(&product, Kind::Add);
        self.run_tile(gpu, product, index.expect("kernels that add"))
    }

    /// Runs a product.
    pub(crate) fn run(&self, gpu: &Gpu, product: Product<'_>) -> Result<(), CudaError> {
        let kind = if product.swiglu {
            Kind::Swiglu
        } else {
            Kind::Plain
        };
        match self.best(&product, kind) {
            Some(index) => self.run_tile(gpu, product, index),
            None => self.run_portable(gpu, product),
        }
    }

    /// Names of the kernels that take products of a kind, for tests.
    #[cfg(test)]
    pub(crate) fn names(&self, kind: Kind) -> Vec<(usize, &'static str)> {
        let all = self.tiles.iter().enumerate();
        all.filter(|(_, (tile, _))| tile.kind == kind)
            .map(|(index, (tile, _))| (index, tile.name))
            .collect()
    }

    /// The tile with the least cost; the first of equals.
    fn best(&self, product: &Product<'_>, kind: Kind) -> Option<usize> {
        let mut best = None;
        for (index, (tile, _)) in self.tiles.iter().enumerate() {
            if tile.kind != kind || tile.cluster > product.rows.div_ceil(tile.rows) {
                continue;
            }
            let cost = tile.cost(product, self.multiprocessors);
            if best.is_none_or(|(_, least)| cost < least * 0.999) {
                best = Some((index, cost));
            }
        }
        best.map(|(index, _)| index)
    }

    /// Runs a product with one of Hopper's kernels.
    pub(crate) fn run_tile(
        &self,
        gpu: &Gpu,
        product: Product<'_>,
        index: usize,
    ) -> Result<(), CudaError> {
        let (tile, kernel) = &self.tiles[index];
        check(&product);
        assert_eq!(
            tile.kind == Kind::Swiglu,
            product.swiglu,
            "a kernel of the product's kind"
        );
        let Product {
            x,
            weight,
            out,
            rows,
            inputs,
            outputs,
            ..
        } = product;
        let columns = if product.swiglu { outputs / 2 } else { outputs };
        let x_map = TensorMap::new(x, [rows, inputs, inputs], [rows.min(tile.rows), 64])?;
        let weight_map = TensorMap::new(
            weight,
            [outputs, inputs, inputs],
            [tile.columns / tile.cluster, 64],
        )?;
        let out_map = TensorMap::new(out, [rows, columns, columns], [16, tile.store_columns()])?;
        let clusters = tile
            .clusters(rows, outputs)
            .min(self.multiprocessors / tile.cluster);
        let group = (8 * 256 / (tile.rows * tile.cluster)).max(1);
        // SAFETY: the copy engine stays inside the three maps, which lie inside their blocks; the grid is whole clusters.
        unsafe {
            gpu.launch_chained(
                *kernel,
                [clusters * tile.cluster, 1, 1],
                128 * (tile.warpgroups() + 1),
                arguments![
                    x_map,
                    weight_map,
                    out_map,
                    int(rows),
                    int(outputs),
                    int(inputs),
                    int(group),
                    1i32
                ],
            )
        }
    }

    /// Runs a product with mma.sync; SwiGLU is not part of it.
    pub(crate) fn run_portable(&self, gpu: &Gpu, product: Product<'_>) -> Result<(), CudaError> {
        check(&product);
        assert!(!product.swiglu, "SwiGLU is a pass of its own here");
        let Product {
            x,
            weight,
            out,
            rows,
            inputs,
            outputs,
            ..
        } = product;
        let (kernel, tile_rows, threads) = match rows {
            0..=64 => (self.portable[1], 32, 64),
            _ => (self.portable[0], 128, 256),
        };
        // SAFETY: `check` bounds the three blocks by rows, inputs and outputs, past which the kernel does not reach.
        unsafe {
            gpu.launch_chained(
                kernel,
                [outputs.div_ceil(64), rows.div_ceil(tile_rows), 1],
                threads,
                arguments![
                    x.address(),
                    weight.address(),
                    out.address(),
                    int(rows),
                    int(outputs),
                    int(inputs),
                    int(inputs),
                    int(outputs)
                ],
            )
        }
    }
}

fn check(product: &Product<'_>) {
    let Product {
        x,
        weight,
        out,
        rows,
        inputs,
        outputs,
        swiglu,
    } = *product;
    let columns = if swiglu { outputs / 2 } else { outputs };
    assert!(
        inputs.is_multiple_of(8) && columns.is_multiple_of(8),
        "rows at multiples of 16 bytes"
    );
    assert!(rows > 0 && rows * inputs <= x.len(), "all rows of x");
    assert!(outputs * inputs <= weight.len(), "all of the weight");
    assert!(rows * columns <= out.len(), "all rows of out");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that `Shape::SMEM` has for the largest and the smallest tile, worked by hand.
    #[test]
    fn shared_memory_is_what_the_source_says() {
        assert_eq!(
            TILES[0].shared(),
            1024 + 4 * (128 + 256) * 128 + 2 * 4 * 2 * 16 * 64 * 2 + 64 + 128
        );
        assert_eq!(
            TILES[11].shared(),
            1024 + 16 * (64 + 32) * 128 + 4 * 2 * 16 * 32 * 2 + 256 + 64
        );
        for tile in TILES {
            assert!(tile.shared() <= 232_448, "{}", tile.name);
        }
    }
}
