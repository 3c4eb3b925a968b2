//! What lies on disk: a Clef release directory, read and checked before anything is computed.
//!
//! A [`ModelConfig`] and a [`HeadConfig`] come from `config.json` and `joint_head_config.json`; from these alone a
//! load plan lists every tensor with its shape; the weights are then read through one bounded safetensors reader.
#![deny(unsafe_code)]

mod config;

pub use config::{AttentionConfig, HeadConfig, LayerKind, LinearConfig, ModelConfig};
