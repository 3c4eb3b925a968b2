//! How much device memory a backend will take, item by item, before anything is allocated.

use descant_model::{CHUNK_ROWS, Capacity};
use descant_release::ModelConfig;

use super::plan::Lists;
use super::round::Buffers;
use super::sampling::SampleRoom;
use super::slots::Slots;
use super::snapshot::Snapshots;
use super::weights::Weights;

/// One item of a backend's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// What it is for.
    pub name: &'static str,
    /// How much.
    pub bytes: usize,
}

/// What [`super::CudaBackend::load`] will allocate on the device, `snapshot_bytes` of it for copies of slots.
pub fn memory(config: &ModelConfig, capacity: Capacity, snapshot_bytes: usize) -> Vec<MemoryItem> {
    let capacity = Capacity {
        positions: capacity.positions.next_multiple_of(CHUNK_ROWS),
        ..capacity
    };
    let item = |name, bytes| MemoryItem { name, bytes };
    vec![
        item("weights", Weights::bytes(config)),
        item("KV cache", Slots::kv_bytes(config, capacity)),
        item(
            "recurrent states",
            Slots::state_bytes(config, Slots::places(capacity)),
        ),
        item("activations of a round", Buffers::bytes(config, capacity)),
        item("lists of a round", Lists::bytes(capacity)),
        item("choice of tokens", SampleRoom::bytes(config.vocab)),
        item(
            "state cache",
            Snapshots::bytes(config, capacity, snapshot_bytes),
        ),
    ]
}
