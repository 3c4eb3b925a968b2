//! What lies on disk: a Clef release directory, read and checked before anything is computed.
//!
//! ```text
//! config.json, joint_head_config.json ──► ModelConfig, HeadConfig ──► LoadPlan ─┐
//! model*.safetensors, joint_head.safetensors ──► SafetensorsFile ───────────────┴─► Release ──► Tensor
//! tokenizer.json ──► Tokenizer
//! ```
//!
//! A [`ModelConfig`] and a [`HeadConfig`] come from the config files; from these alone a [`LoadPlan`] lists every tensor
//! with its shape; the weight files, read through one bounded safetensors reader, must hold just these. An open
//! [`Release`] is proof that they do. [`hub`] fetches a release by name.
//!
//! Invariants: no length, offset or count of a file is used before it was checked; nothing is allocated by a size that a
//! file names without the chance to fail; every fault names its file and the field or tensor, and all are reported at
//! once. Start reading at [`Release::open`].
#![deny(unsafe_code)]

mod config;
mod config_files;
mod digest;
mod error;
mod fields;
pub mod hub;
mod mmap;
mod plan;
mod release;
pub mod safetensors;
mod segments;
mod shards;
mod source;
mod tokenizer;
mod words;

pub use config::{AttentionConfig, HeadConfig, LayerKind, LinearConfig, ModelConfig};
pub use digest::Digests;
pub use error::{FileFault, Foreign, LoadError};
pub use plan::{LoadPlan, Part, Wanted};
pub use release::{HeadMissing, Outline, PartSize, Release};
pub use safetensors::{Dtype, Tensor};
pub use source::EmbeddedFiles;
pub use tokenizer::Tokenizer;
