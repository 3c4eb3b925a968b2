//! The operations between the linear maps. Each is arithmetic on rows, the same bits on every path.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod gate;
pub(crate) mod lanes;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod rope;

/// How activations are kept between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Rounded to bf16 wherever the release's bf16 run rounds. Sums are f32 all the same.
    Bf16,
    /// f32 throughout.
    F32,
}

impl Precision {
    pub(crate) fn is_bf16(self) -> bool {
        self == Precision::Bf16
    }
}
