//! Launches of `kernels/attention.cu` and `kernels/attention_sm90.cu`.

use super::{arguments, blocks, image, int, module, plain};
use crate::driver::{Block, Gpu, Kernel, TensorMap};
use crate::error::CudaError;

/// Keys of a share of decode.
pub(crate) const SHARE: usize = 128;
/// Widths of heads for which there is a prefill kernel.
const WIDTHS: [(usize, &str); 5] = [
    (16, "attend_mma_16"),
    (32, "attend_mma_32"),
    (64, "attend_mma_64"),
    (128, "attend_mma_128"),
    (256, "attend_mma_256"),
];

/// Sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    /// Half of the dimensions that turn.
    pub(crate) half: usize,
    /// Positions of a slot.
    pub(crate) positions: usize,
    pub(crate) slots: usize,
    /// Width of a projected row: queries with gates, keys, values.
    pub(crate) wide: usize,
}

impl AttentionShape {
    /// `log2(e) / sqrt(dim)`: scores as exponents of two.
    fn scale(&self) -> f32 {
        (std::f64::consts::LOG2_E / (self.dim as f64).sqrt()) as f32
    }
}

/// Keys and values of a layer, `[slots, kv_heads, positions, dim]` each.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) keys: Block<u16>,
    pub(crate) values: Block<u16>,
}

/// The kernels of full attention.
#[derive(Debug)]
pub(crate) struct AttentionKernels {
    turn: Kernel,
    attend: Vec<(usize, Kernel)>,
    attend_256: Option<Kernel>,
    share: Kernel,
    gather: Kernel,
}

impl AttentionKernels {
    pub(super) fn load(gpu: &Gpu, hopper: bool) -> Result<AttentionKernels, CudaError> {
        let all = module(gpu, "the attention kernels", image!("attention.fatbin"))?;
        let mut attend = Vec::new();
        for (width, name) in WIDTHS {
            attend.push((width, all.kernel(name, 3 * 64 * (width + 8) * 2)?));
        }
        let attend_256 = if hopper {
            let fast = module(gpu, "Hopper's attention", image!("attention_sm90.fatbin"))?;
            Some(fast.kernel("attend_256", 1024 + 196_608 + 128)?)
        } else {
            None
        };
        Ok(AttentionKernels {
            turn: plain(&all, "turn_heads")?,
            attend,
            attend_256,
            share: plain(&all, "attend_share")?,
            gather: plain(&all, "gather_shares")?,
        })
    }

    /// Query rows of a prefill tile.
    pub(crate) fn tile_rows(&self, shape: &AttentionShape) -> usize {
        if self.is_fast(shape) { 128 } else { 64 }
    }

    fn is_fast(&self, shape: &AttentionShape) -> bool {
        self.attend_256.is_some() && shape.dim == 256
    }

    /// Norms and turns queries and keys; keys and values go into the cache. `norms` are of queries and keys, `[dim]`; `turns`
    /// `[positions, half]`; `places` each row's position and slot, which lie in the cache.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn turn(
        &self,
        gpu: &Gpu,
        shape: &AttentionShape,
        wide: &Block<u16>,
        (norms, eps): ([&Block<f32>; 2], f32),
        turns: &Block<[f32; 2]>,
        places: [&Block<i32>; 2],
        (queries, cache): (&Block<u16>, &Cache),
    ) -> Result<(), CudaError> {
        let rows = places[0].len();
        check(shape, wide, queries, rows);
        check_cache(shape, cache);
        assert!(
            places[1].len() == rows && turns.len() >= shape.positions * shape.half,
            "a place and a turn for each row"
        );
        assert!(
            norms.iter().all(|norm| norm.len() == shape.dim) && 2 * shape.half <= shape.dim,
            "norms of a head"
        );
        let AttentionShape {
            heads,
            kv_heads,
            dim,
            half,
            positions,
            ..
        } = *shape;
        // SAFETY: the asserts bound every block by rows, heads and cache; positions and slots lie in the cache, as the caller
        // says.
        unsafe {
            gpu.launch_chained(
                self.turn,
                blocks(rows * (heads + 2 * kv_heads), 8),
                256,
                arguments![
                    wide.address(),
                    norms[0].address(),
                    norms[1].address(),
                    turns.address(),
                    places[0].address(),
                    places[1].address(),
                    queries.address(),
                    cache.keys.address(),
                    cache.values.address(),
                    int(rows),
                    int(shape.wide),
                    int(heads),
                    int(kv_heads),
                    int(dim),
                    int(half),
                    int(positions),
                    eps
                ],
            )
        }
    }

    /// Prefill: attends with tiles of rows (first row of the round, rows, position of the first, slot), whose keys and values
    /// are in the cache; gated rows go to `out`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn attend(
        &self,
        gpu: &Gpu,
        shape: &AttentionShape,
        tiles: &Block<[i32; 4]>,
        (queries, cache, wide): (&Block<u16>, &Cache, &Block<u16>),
        out: &Block<u16>,
        rows: usize,
    ) -> Result<(), CudaError> {
        check(shape, wide, queries, rows);
        check(shape, wide, out, rows);
        check_cache(shape, cache);
        let AttentionShape {
            heads,
            kv_heads,
            dim,
            positions,
            slots,
            ..
        } = *shape;
        if self.is_fast(shape) {
            let kernel = self.attend_256.expect("it is fast");
            let queries_map = TensorMap::new(queries, [rows, heads * dim, heads * dim], [128, 64])?;
            let cached = [slots * kv_heads * positions, dim, dim];
            let keys_map = TensorMap::new(&cache.keys, cached, [64, 64])?;
            let values_map = TensorMap::new(&cache.values, cached, [64, 64])?;
            // SAFETY: the copy engine stays inside the maps; `check` bounds `wide` and `out` by `rows`, below which the tiles'
            // rows lie, as the caller says.
            return unsafe {
                gpu.launch_chained(
                    kernel,
                    [heads, tiles.len(), 1],
                    384,
                    arguments![
                        queries_map,
                        keys_map,
                        values_map,
                        tiles.address(),
                        wide.address(),
                        out.address(),
                        int(shape.wide),
                        int(heads),
                        int(kv_heads),
                        int(positions),
                        shape.scale()
                    ],
                )
            };
        }
        let kernel = self
            .attend
            .iter()
            .find(|(width, _)| dim <= *width)
            .expect("heads of at most 256 values")
            .1;
        // SAFETY: as above; positions are a multiple of 64, so a block of keys ends inside its head's cache.
        unsafe {
            gpu.launch_chained(
                kernel,
                [tiles.len(), heads, 1],
                128,
                arguments![
                    queries.address(),
                    cache.keys.address(),
                    cache.values.address(),
                    tiles.address(),
                    wide.address(),
                    out.address(),
                    int(shape.wide),
                    int(heads),
                    int(kv_heads),
                    int(dim),
                    int(positions),
                    shape.scale()
                ],
            )
        }
    }

    /// Decode: attends with one row of each stream (row of the round, position, slot, unused). `marks` and `sums` hold the
    /// shares of all streams; `position_max` is the largest position.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one step, borrowed apart"
    )]
    pub(crate) fn decode(
        &self,
        gpu: &Gpu,
        shape: &AttentionShape,
        (streams, position_max): (&Block<[i32; 4]>, usize),
        (queries, cache, wide): (&Block<u16>, &Cache, &Block<u16>),
        (marks, sums): (&Block<[f32; 2]>, &Block<f32>),
        out: &Block<u16>,
        rows: usize,
    ) -> Result<(), CudaError> {
        check(shape, wide, queries, rows);
        check(shape, wide, out, rows);
        check_cache(shape, cache);
        let AttentionShape {
            heads,
            kv_heads,
            dim,
            positions,
            ..
        } = *shape;
        assert!(position_max < positions, "positions of the cache");
        let shares = positions.div_ceil(SHARE);
        let cells = streams.len() * heads * shares;
        assert!(
            cells <= marks.len() && cells * dim <= sums.len(),
            "room for all shares"
        );
        // SAFETY: the asserts bound every block; rows, positions and slots of the streams lie in the round and the cache, as
        // the caller says.
        unsafe {
            gpu.launch_chained(
                self.share,
                [streams.len(), kv_heads, position_max / SHARE + 1],
                256,
                arguments![
                    queries.address(),
                    cache.keys.address(),
                    cache.values.address(),
                    streams.address(),
                    marks.address(),
                    sums.address(),
                    int(heads),
                    int(kv_heads),
                    int(dim),
                    int(positions),
                    int(shares),
                    shape.scale()
                ],
            )?;
            gpu.launch_chained(
                self.gather,
                [streams.len(), heads, 1],
                128,
                arguments![
                    marks.address(),
                    sums.address(),
                    streams.address(),
                    wide.address(),
                    out.address(),
                    int(shape.wide),
                    int(heads),
                    int(dim),
                    int(shares)
                ],
            )
        }
    }
}

fn check(shape: &AttentionShape, wide: &Block<u16>, heads: &Block<u16>, rows: usize) {
    assert!(
        shape.dim.is_multiple_of(8) && shape.dim <= 256,
        "heads of at most 256 values"
    );
    assert!(
        2 * (shape.heads + shape.kv_heads) * shape.dim <= shape.wide,
        "queries, gates, keys and values in a row"
    );
    assert!(
        rows * shape.wide <= wide.len() && rows * shape.heads * shape.dim <= heads.len(),
        "all rows"
    );
}

fn check_cache(shape: &AttentionShape, cache: &Cache) {
    let values = shape.slots * shape.kv_heads * shape.positions * shape.dim;
    assert!(shape.positions.is_multiple_of(64), "whole blocks of keys");
    assert!(
        values <= cache.keys.len() && values <= cache.values.len(),
        "a cache for all slots"
    );
}
