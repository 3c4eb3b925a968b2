//! Everything with `unsafe`: vector instructions, memory blocks, and what threads share.
//!
//! Why it is needed: vector instructions exist on some machines only, threads write disjoint parts of one buffer, and
//! weights lie in one large aligned block. What the safe side guarantees is said at the head of each file: `isa` makes
//! a token type only after the instructions were found; `tile` checks every extent once a call; `pool` lends a closure
//! to its threads and takes it back before it returns; `split` hands out each part once; `memory` cuts a block into
//! parts that do not overlap. Tested by the unit tests of these files and, on bits against the portable path over
//! random shapes, by `tests/isa.rs`.
#![allow(unsafe_code, reason = "the one place of unsafe code of this crate")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod isa;
mod memory;
mod pool;
mod portable;
mod scratch;
mod simd;
mod split;
mod tile;

pub use isa::{Isa, IsaMissing};
pub use memory::{Arena, Block};
pub use pool::Pool;
pub use tile::{MULTIPLY_ADDS_A_ROUND, dot_products, multiply_adds};

pub(crate) use isa::{Kernel, kernel};
pub(crate) use memory::Plain;
pub(crate) use scratch::with_scratch;
pub(crate) use simd::{LANES, Simd};
pub(crate) use split::{Chunks, Picks, Tile, Tiles};
pub(crate) use tile::{Left, LinearRight, Pairs, Right, TILE_ROWS, linear_tile, matmul, widen};
