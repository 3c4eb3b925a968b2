//! Weights from a file's bytes into panels.

use std::sync::atomic::{AtomicBool, Ordering};

use descant_release::{Dtype, Tensor};

use crate::arch::{LANES, Pool};

/// Tensors `[N, K]` that are packed one below the other.
pub(crate) struct Source<'a> {
    tensors: &'a [Tensor<'a>],
    inputs: usize,
}

/// How weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// f32.
    Floats,
    /// bf16, rounded where the file has more digits.
    Pairs,
    /// bf16, those below 2⁻⁴⁹ taken for zero: for the bf16 form of the product.
    PairsFlushed,
}

impl<'a> Source<'a> {
    /// # Panics
    /// If there is no tensor, they differ in K, or one has not two dimensions.
    pub(crate) fn new(tensors: &'a [Tensor<'a>]) -> Source<'a> {
        let inputs = tensors[0].row_len();
        for tensor in tensors {
            assert_eq!(
                tensor.shape,
                [tensor.shape[0], inputs],
                "{} is not [N, {inputs}]",
                tensor.name
            );
        }
        Source { tensors, inputs }
    }

    /// Name of the first tensor, for errors.
    pub(crate) fn name(&self) -> String {
        self.tensors[0].name.to_owned()
    }

    /// Rows of all tensors.
    pub(crate) fn outputs(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.shape[0]).sum()
    }

    /// Values of a row.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// The tensor of an output and its row there.
    fn place(&self, mut output: usize) -> Option<(&Tensor<'a>, usize)> {
        for tensor in self.tensors {
            if output < tensor.shape[0] {
                return Some((tensor, output));
            }
            output -= tensor.shape[0];
        }
        None
    }

    /// A row as bf16 bytes: where they stand, or converted into `buffer`.
    fn row<'b>(&'b self, output: usize, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let (tensor, row) = self.place(output)?;
        if tensor.dtype == Dtype::BF16 {
            return Some(tensor.row_bytes(row..row + 1));
        }
        let mut values = vec![0; self.inputs];
        tensor.copy_rows_bf16_into(row..row + 1, &mut values);
        buffer.clear();
        buffer.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        Some(buffer)
    }
}

/// The form that keeps every value: bf16 if all are, else f32.
pub(crate) fn exact_form(pool: &Pool, source: &Source<'_>) -> Form {
    let exact = AtomicBool::new(true);
    for tensor in source
        .tensors
        .iter()
        .filter(|tensor| tensor.dtype != Dtype::BF16)
    {
        pool.run(tensor.shape[0], |row| {
            let mut values = vec![0.0; source.inputs];
            if exact.load(Ordering::Relaxed) {
                tensor.copy_rows_f32_into(row..row + 1, &mut values);
                if values.iter().any(|value| value.to_bits() & 0xffff != 0) {
                    exact.store(false, Ordering::Relaxed);
                }
            }
        });
    }
    if exact.into_inner() {
        Form::Pairs
    } else {
        Form::Floats
    }
}

/// Packs `[panels][K][16]` f32.
pub(crate) fn floats(pool: &Pool, source: &Source<'_>, block: &mut [f32]) {
    pool.chunks(block, source.inputs * LANES, |panel, out| {
        let mut values = vec![0.0; source.inputs];
        for lane in 0..LANES {
            let Some((tensor, row)) = source.place(panel * LANES + lane) else {
                return;
            };
            tensor.copy_rows_f32_into(row..row + 1, &mut values);
            values
                .iter()
                .enumerate()
                .for_each(|(k, value)| out[k * LANES + lane] = *value);
        }
    });
}

/// Packs `[panels][K / 2, rounded up][16]` pairs of bf16.
pub(crate) fn pairs(pool: &Pool, source: &Source<'_>, flush: bool, block: &mut [u32]) {
    pool.chunks(block, source.inputs.div_ceil(2) * LANES, |panel, out| {
        let mut buffers = [const { Vec::new() }; LANES];
        let mut output = panel * LANES;
        let rows = buffers.each_mut().map(|buffer| {
            output += 1;
            source.row(output - 1, buffer)
        });
        pack_panel(&rows, out);
        if flush {
            out.iter_mut().for_each(|pair| *pair = flushed(*pair));
        }
    });
}

/// Turns sixteen rows of bf16 bytes into a panel; a missing row is zeros.
pub(crate) fn pack_panel(rows: &[Option<&[u8]>; LANES], out: &mut [u32]) {
    const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    let bytes = rows[0].map_or(0, <[u8]>::len);
    let (blocks, rest) = out.as_chunks_mut::<{ LANES * LANES }>();
    let whole = bytes / BLOCK_BYTES;
    for (block, out) in blocks.iter_mut().take(whole).enumerate() {
        let at = block * BLOCK_BYTES;
        let rows = rows.map(|row| match row {
            Some(row) => row[at..at + BLOCK_BYTES]
                .try_into()
                .expect("a block was taken"),
            None => &ZEROS,
        });
        transpose(&rows, out);
    }
    for (lane, row) in rows.iter().enumerate() {
        let Some(row) = row else { continue };
        for (pair, value) in row[whole * BLOCK_BYTES..].chunks(4).enumerate() {
            let mut bytes = [0; 4];
            bytes[..value.len()].copy_from_slice(value);
            rest[pair * LANES + lane] = u32::from_le_bytes(bytes);
        }
    }
}

/// Bytes of sixteen pairs.
const BLOCK_BYTES: usize = 4 * LANES;

/// Sixteen pairs of each of sixteen rows, as sixteen lanes of each of sixteen pairs.
fn transpose(rows: &[&[u8; BLOCK_BYTES]; LANES], out: &mut [u32; LANES * LANES]) {
    for (lane, row) in rows.iter().enumerate() {
        for (pair, bytes) in row.as_chunks::<4>().0.iter().enumerate() {
            out[pair * LANES + lane] = u32::from_le_bytes(*bytes);
        }
    }
}

/// A pair whose values below 2⁻⁴⁹ are zero.
fn flushed(pair: u32) -> u32 {
    /// Bits of 2⁻⁴⁹ as bf16.
    const LEAST: u32 = (127 - 49) << 7;
    let keep = |half: u32| if half & 0x7fff < LEAST { 0 } else { half };
    keep(pair & 0xffff) | keep(pair >> 16) << 16
}
