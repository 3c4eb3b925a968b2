//! Copies of a slot, out to other device memory and back.

use std::ops::Range;
use std::sync::Arc;

use descant_model::{CHUNK_ROWS, Capacity};
use descant_release::ModelConfig;

use super::slots::{LayerState, Slots};
use crate::driver::{Gpu, Pages, Shelf};
use crate::error::CudaError;
use crate::paging::{Paging, Region};

/// Where snapshots are kept.
#[derive(Debug)]
pub(crate) struct Snapshots {
    paging: Paging,
}

/// A slot's states after `rows.end`, and its KV rows of `rows`: regions one behind the other in pages, KV rows first.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rows: Range<usize>,
    pages: Pages,
}

impl Snapshots {
    /// Reserves room for `bytes` of snapshots.
    pub(crate) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        capacity: Capacity,
        bytes: usize,
    ) -> Result<Snapshots, CudaError> {
        let shelf = Arc::new(Shelf::new(gpu, "snapshots", bytes)?);
        let pieces = Snapshots::pieces_max(config, capacity);
        Ok(Snapshots {
            paging: Paging::new(gpu, shelf, pieces)?,
        })
    }

    /// Bytes that are reserved for `bytes` of snapshots.
    pub(crate) fn bytes(config: &ModelConfig, capacity: Capacity, bytes: usize) -> usize {
        Shelf::bytes(bytes) + Paging::list_bytes(Snapshots::pieces_max(config, capacity))
    }

    /// Pieces of a snapshot of a full slot.
    fn pieces_max(config: &ModelConfig, capacity: Capacity) -> usize {
        let one = Capacity {
            slots: 1,
            ..capacity
        };
        let bytes = Slots::kv_bytes(config, one) + Slots::state_bytes(config, 1);
        let regions = config.layers.len() * 2 * config.attention.kv_heads.max(1);
        Paging::pieces_max(regions, bytes)
    }

    /// Bytes of the pages that a snapshot of so many rows takes.
    pub(crate) fn bytes_of(slots: &Slots, rows: usize) -> usize {
        let layers = slots.layers.iter();
        Paging::bytes_of(layers.map(|layer| layer_bytes(slots, layer, rows)).sum())
    }

    /// Where the pages are.
    pub(crate) fn shelf(&self) -> Arc<Shelf> {
        self.paging.shelf()
    }

    /// Copies KV rows out of a slot, and the states after them out of a place ([`Slots::place`]); `None` if there is no room.
    pub(crate) fn save(
        &self,
        gpu: &Gpu,
        slots: &Slots,
        (slot, place): (usize, usize),
        rows: Range<usize>,
    ) -> Result<Option<Snapshot>, CudaError> {
        let pages = self
            .paging
            .save(gpu, &regions(slots, (slot, place), &rows).concat())?;
        Ok(pages.map(|pages| Snapshot { rows, pages }))
    }

    /// Copies a chain of snapshots, one behind the other from position 0 on, into a slot: KV rows of all, states of the last.
    pub(crate) fn load(
        &self,
        gpu: &Gpu,
        slots: &mut Slots,
        slot: usize,
        chain: &[&Snapshot],
    ) -> Result<(), CudaError> {
        for (index, snapshot) in chain.iter().enumerate() {
            slots.touched[slot] = slots.touched[slot].max(snapshot.rows.end);
            let [kv, mut states] = regions(slots, (slot, slot), &snapshot.rows);
            if index + 1 < chain.len() {
                states.clear();
            }
            self.paging
                .load(gpu, &[kv, states].concat(), &snapshot.pages)?;
            slots.taken[slot] = snapshot.rows.end;
        }
        Ok(())
    }

    /// Whether a snapshot of an empty slot's first chunk comes back bit for bit, with bytes of all kinds in it. The device is asked
    /// once, when it is loaded, since answers depend on it and few kinds of devices were at hand for tests. The slot is left
    /// with rows to reset. With no room for a snapshot there is nothing to ask.
    pub(crate) fn are_exact(
        &self,
        gpu: &Gpu,
        slots: &mut Slots,
        slot: usize,
    ) -> Result<bool, CudaError> {
        let rows = 0..CHUNK_ROWS;
        if !self.paging.has_room(Snapshots::bytes_of(slots, rows.len())) {
            return Ok(true);
        }
        let all = regions(slots, (slot, slot), &rows).concat();
        let bytes = |region: usize, len: usize| -> Vec<u8> {
            // A period that divides no page.
            let byte = |index: usize| (index % 251 + 31 * region) as u8;
            (0..len).map(byte).collect()
        };
        for (index, region) in all.iter().enumerate() {
            gpu.upload(region, &bytes(index, region.len()))?;
        }
        slots.touched[slot] = rows.end;
        let saved = self.save(gpu, slots, (slot, slot), rows)?;
        let saved = saved.expect("there was room for it");
        for region in &all {
            gpu.fill(region, 0xFF)?;
        }
        self.load(gpu, slots, slot, &[&saved])?;
        for (index, region) in all.iter().enumerate() {
            let mut found = vec![0; region.len()];
            gpu.download(region, &mut found)?;
            if found != bytes(index, region.len()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Snapshot {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }
}

/// A slot's KV rows, layer by layer and head by head, and a place's states, layer by layer.
fn regions(slots: &Slots, (slot, place): (usize, usize), rows: &Range<usize>) -> [Vec<Region>; 2] {
    let (mut kv, mut states_and_inputs) = (Vec::new(), Vec::new());
    for layer in &slots.layers {
        match layer {
            LayerState::Attention(cache) => {
                for cache in [&cache.keys, &cache.values] {
                    let (block, (heads, width, pitch)) = slots.lines(cache, slot, rows.clone());
                    let line =
                        |head: usize| block.part(head * pitch..head * pitch + width).as_bytes();
                    kv.extend((0..heads).map(line));
                }
            }
            LayerState::Delta { states, inputs } => {
                states_and_inputs.push(slots.at_place(states, place).as_bytes());
                states_and_inputs.push(slots.at_place(inputs, place).as_bytes());
            }
        }
    }
    kv.retain(|region| region.len() > 0);
    [kv, states_and_inputs]
}

fn layer_bytes(slots: &Slots, layer: &LayerState, rows: usize) -> usize {
    match layer {
        LayerState::Attention(cache) => {
            let (_, (heads, width, _)) = slots.lines(&cache.keys, 0, 0..rows);
            2 * heads * width * size_of::<u16>()
        }
        LayerState::Delta { states, inputs } => {
            slots.at_place(states, 0).bytes() + slots.at_place(inputs, 0).bytes()
        }
    }
}
