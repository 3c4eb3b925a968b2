//! Copies of a slot, out to host memory and back.

use std::ops::Range;

use super::slots::{LayerState, Slots, of_slot};
use crate::driver::Gpu;
use crate::error::CudaError;

/// A slot's states after `rows.end`, and its KV rows of `rows`.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rows: Range<usize>,
    layers: Vec<LayerCopy>,
}

#[derive(Debug)]
enum LayerCopy {
    /// KV rows, head after head.
    Attention {
        keys: Vec<u16>,
        values: Vec<u16>,
    },
    Delta {
        states: Vec<f32>,
        inputs: Vec<u16>,
    },
}

impl Snapshot {
    pub(crate) fn save(
        gpu: &Gpu,
        slots: &Slots,
        slot: usize,
        from: usize,
    ) -> Result<Snapshot, CudaError> {
        let rows = from..slots.taken[slot];
        let copy = |layer: &LayerState| match layer {
            LayerState::Attention(cache) => {
                let kv = |cache| {
                    let (block, lines) = slots.lines(cache, slot, rows.clone());
                    let mut copy = vec![0; lines.0 * lines.1];
                    gpu.download_lines(&block, lines, &mut copy).map(|()| copy)
                };
                Ok(LayerCopy::Attention {
                    keys: kv(&cache.keys)?,
                    values: kv(&cache.values)?,
                })
            }
            LayerState::Delta { states, inputs } => {
                let (states, inputs) = (
                    of_slot(states, slots.taken.len(), slot),
                    of_slot(inputs, slots.taken.len(), slot),
                );
                let (mut state_copy, mut input_copy) =
                    (vec![0.0; states.len()], vec![0; inputs.len()]);
                gpu.download(&states, &mut state_copy)?;
                gpu.download(&inputs, &mut input_copy)?;
                Ok(LayerCopy::Delta {
                    states: state_copy,
                    inputs: input_copy,
                })
            }
        };
        let layers = slots
            .layers
            .iter()
            .map(copy)
            .collect::<Result<_, CudaError>>()?;
        Ok(Snapshot { rows, layers })
    }

    /// Copies into a slot: the KV rows, and the states too, which those of a later snapshot replace.
    pub(crate) fn load(&self, gpu: &Gpu, slots: &mut Slots, slot: usize) -> Result<(), CudaError> {
        slots.touched[slot] = slots.touched[slot].max(self.rows.end);
        for (copy, layer) in self.layers.iter().zip(&slots.layers) {
            match (copy, layer) {
                (LayerCopy::Attention { keys, values }, LayerState::Attention(cache)) => {
                    for (cache, copy) in [(&cache.keys, keys), (&cache.values, values)] {
                        let (block, lines) = slots.lines(cache, slot, self.rows.clone());
                        gpu.upload_pieces(&block, lines, copy)?;
                    }
                }
                (
                    LayerCopy::Delta {
                        states: state_copy,
                        inputs: input_copy,
                    },
                    LayerState::Delta { states, inputs },
                ) => {
                    gpu.upload(&of_slot(states, slots.taken.len(), slot), state_copy)?;
                    gpu.upload(&of_slot(inputs, slots.taken.len(), slot), input_copy)?;
                }
                _ => panic!("the snapshot is of another backend"),
            }
        }
        slots.taken[slot] = self.rows.end;
        Ok(())
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        let layer = |copy: &LayerCopy| match copy {
            LayerCopy::Attention { keys, values } => 2 * (keys.len() + values.len()),
            LayerCopy::Delta { states, inputs } => 4 * states.len() + 2 * inputs.len(),
        };
        self.layers.iter().map(layer).sum()
    }
}
