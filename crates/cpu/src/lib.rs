//! A backend and a head on the CPU.
//!
//! One bit contract holds for every instruction set, number of threads, number of rows and cut into pieces: each output
//! of a matrix product is one chain of fused multiply-adds along k, vectors lie across outputs and never along a sum, and
//! a sum along a row has one order (sixteen lanes, then pairwise). So the vectors only decide how fast it goes.
//!
//! ```text
//! arch/     instructions, memory, threads; all `unsafe`        ops/      norms, rope, softmax, conv, attention, delta rule
//! linear    packed weights and their product with rows          backend/  a `Backend`: slots, rounds, snapshots
//! head/     a `Head`: memory, spans, evidence and decoder layers, scores
//! ```
#![deny(unsafe_code)]

mod arch;
mod backend;
mod head;
mod linear;
mod ops;

pub use arch::{
    Arena, Block, Isa, IsaMissing, MULTIPLY_ADDS_A_ROUND, Pool, dot_products, multiply_adds,
};
pub use backend::{CpuBackend, LmHead, MemoryItem, Options, memory};
pub use head::CpuHead;
pub use linear::Linear;
pub use ops::Precision;
