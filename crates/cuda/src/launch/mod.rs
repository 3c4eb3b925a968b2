//! Launches: a Rust function for each kernel, with named arguments, that checks shapes and holds the one unsafe block.
//!
//! `unsafe` is needed because a launch hands untyped pointers to code that no compiler here sees. Each function names its
//! kernel's parameters in the kernel's order (`kernels/*.cu`) and asserts that every block is as large as the kernel will
//! reach; what kernels read through lists made on the host (rows, slots, positions) is bounded by `crate::backend::plan`,
//! which makes these lists. Tested on a device by `crate::tests`.

use crate::driver::{Gpu, Image, Kernel, Module};
use crate::error::CudaError;

mod attention;
mod delta;
mod gemm;
mod head;
mod rows;
mod sampling;

pub(crate) use attention::{AttentionKernels, AttentionShape, Cache, SHARE};
pub(crate) use delta::{DeltaKernels, DeltaSizes, Recurrence, SQUARES, SUMS};
#[cfg(test)]
pub(crate) use gemm::Kind;
pub(crate) use gemm::{GemmKernels, Product};
#[cfg(test)]
pub(crate) use head::Manner;
pub(crate) use head::{
    HeadKernels, HeadMap, HeadSizes, Mix, Parts, Phase, Phases, Rows, SplitProduct, Splits,
    WeightBlock,
};
pub(crate) use rows::{CopyKernel, RowKernels, WIDTH_MAX};
pub(crate) use sampling::{BINS, Draws, SETTINGS_FOURS, SamplingKernels, VOCAB_MAX, spans};

/// All kernels of a device.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) rows: RowKernels,
    pub(crate) gemm: GemmKernels,
    pub(crate) attention: AttentionKernels,
    pub(crate) delta: DeltaKernels,
    pub(crate) sampling: SamplingKernels,
}

impl Kernels {
    /// Loads what this device runs; `portable` leaves out what only Hopper has.
    ///
    /// # Errors
    /// [`CudaError::TooOld`], or the driver's.
    pub(crate) fn load(gpu: &Gpu, portable: bool) -> Result<Kernels, CudaError> {
        if gpu.capability() < (8, 0) {
            return Err(CudaError::TooOld {
                name: gpu.name().to_owned(),
                capability: gpu.capability(),
            });
        }
        let hopper = gpu.capability() == (9, 0) && !portable;
        Ok(Kernels {
            rows: RowKernels::load(gpu)?,
            gemm: GemmKernels::load(gpu, hopper)?,
            attention: AttentionKernels::load(gpu, hopper)?,
            sampling: SamplingKernels::load(gpu)?,
            delta: DeltaKernels::load(gpu, hopper)?,
        })
    }
}

macro_rules! image {
    ($name:literal) => {{
        static IMAGE: &$crate::driver::Image<[u8]> = &$crate::driver::Image {
            bytes: *include_bytes!(concat!("../../fatbin/", $name)),
        };
        IMAGE
    }};
}
use image;

/// Pointers to the values of a kernel's parameters.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { &mut [$(std::ptr::from_mut(&mut { $value }).cast::<std::ffi::c_void>()),*] };
}
use arguments;

/// A count as kernels take it.
fn int(x: usize) -> i32 {
    i32::try_from(x).expect("counts of a round and a model are below 2^31")
}

fn module(gpu: &Gpu, name: &'static str, image: &'static Image<[u8]>) -> Result<Module, CudaError> {
    gpu.load_module(name, image)
}

/// Blocks for a count of items.
fn blocks(items: usize, a_block: usize) -> [usize; 3] {
    [items.div_ceil(a_block), 1, 1]
}

fn plain(module: &Module, name: &'static str) -> Result<Kernel, CudaError> {
    module.kernel(name, 0)
}
