//! The plain forward pass in f64, as the formulas read: the judge of error for every backend.
//!
//! Nothing here is fast. A sum is a sum over one index, a loop is a loop over rows, and no step is fused with another.
//! Weights are the release's own values (bf16, f16 and f32 are exact in f64); what a backend rounds, this does not.
//! One thing is rounded as the reference rounds it, because it is part of the model: rotary angles are f32 products.
//!
//! Start with [`Backbone::run`] (token ids to hidden rows) and [`Head::logits`] (hidden rows to logits).

mod attention;
mod backbone;
mod delta;
mod head;
pub mod ops;

pub use attention::{CausalAttention, rotary_angles, rotate};
pub use backbone::{Backbone, Trace};
pub use delta::{DeltaStep, convolve, delta_rule};
pub use head::Head;
pub use ops::Matrix;
