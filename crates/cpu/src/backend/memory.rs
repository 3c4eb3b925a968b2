//! How much memory a backend will take, item by item, before anything is allocated.

use descant_release::ModelConfig;

use super::round::Buffers;
use super::slots::StateSizes;
use super::weights::Weights;
use super::{LmHead, Options};
use crate::linear::{Form, Linear};
use crate::ops::rope::Rope;

/// One item of a backend's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// What it is for.
    pub name: &'static str,
    /// How much.
    pub bytes: usize,
}

/// What [`super::CpuBackend::load`] will allocate, if the release stores its weights as bf16, and what each thread's scratch
/// memory will come to. Weights that are not exactly bf16 take twice their share in f32 precision.
pub fn memory(config: &ModelConfig, options: &Options, threads: usize) -> Vec<MemoryItem> {
    let capacity = options.capacity;
    let sizes = StateSizes::new(config, capacity.positions);
    let mut items = vec![
        MemoryItem {
            name: "weights",
            bytes: Weights::bytes(config),
        },
        MemoryItem {
            name: "KV cache",
            bytes: sizes.kv_bytes(config, options.precision, capacity.slots),
        },
        MemoryItem {
            name: "recurrent states",
            bytes: sizes.state_bytes(config, capacity.slots),
        },
        MemoryItem {
            name: "activations of a round",
            bytes: Buffers::bytes(config, capacity.rows),
        },
        MemoryItem {
            name: "rotary tables",
            bytes: Rope::bytes(&config.attention, capacity.positions),
        },
        MemoryItem {
            name: "scratch of the threads",
            bytes: threads * scratch_bytes(config),
        },
    ];
    if options.lm_head == LmHead::Packed {
        items.push(MemoryItem {
            name: "LM head",
            bytes: Linear::bytes(Form::Pairs, config.vocab, config.hidden),
        });
    }
    items
}

/// A bound of one thread's scratch memory: the largest of a product's packed rows, a block of attention and a chunk of the
/// delta rule.
fn scratch_bytes(config: &ModelConfig) -> usize {
    let (head, key, value) = (
        config.attention.head_dim,
        config.linear.key_dim,
        config.linear.value_dim,
    );
    let product = crate::linear::scratch_len(config.hidden.max(config.intermediate));
    let group = config.attention.heads / config.attention.kv_heads;
    let attention = 16 * group * (2 * (head + 16) + 66) + 128 * (head + 16);
    let chunk = 64 * (6 * (key + 16) + 3 * (value + 16) + 2 * 64);
    size_of::<f32>() * product.max(attention).max(chunk)
}
