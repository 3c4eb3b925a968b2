//! A tensor of a file: its dtype, shape and bytes, and the ways to read its values.

use std::fmt;

use half::{bf16, f16};

use crate::error::LoadError;

/// How a value is stored. The names are the format's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say all")]
#[expect(non_camel_case_types, reason = "the format's own names")]
pub enum Dtype {
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    F4,
    F64,
    F6_E2M3,
    F6_E3M2,
    F8_E4M3,
    F8_E4M3FNUZ,
    F8_E5M2,
    F8_E5M2FNUZ,
    F8_E8M0,
    I16,
    I32,
    I64,
    I8,
    U16,
    U32,
    U64,
    U8,
}

impl Dtype {
    /// Every dtype of the format with its name and width in bits.
    const ALL: [(Dtype, &'static str, usize); 22] = [
        (Dtype::BF16, "BF16", 16),
        (Dtype::BOOL, "BOOL", 8),
        (Dtype::C64, "C64", 64),
        (Dtype::F16, "F16", 16),
        (Dtype::F32, "F32", 32),
        (Dtype::F4, "F4", 4),
        (Dtype::F64, "F64", 64),
        (Dtype::F6_E2M3, "F6_E2M3", 6),
        (Dtype::F6_E3M2, "F6_E3M2", 6),
        (Dtype::F8_E4M3, "F8_E4M3", 8),
        (Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8),
        (Dtype::F8_E5M2, "F8_E5M2", 8),
        (Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8),
        (Dtype::F8_E8M0, "F8_E8M0", 8),
        (Dtype::I16, "I16", 16),
        (Dtype::I32, "I32", 32),
        (Dtype::I64, "I64", 64),
        (Dtype::I8, "I8", 8),
        (Dtype::U16, "U16", 16),
        (Dtype::U32, "U32", 32),
        (Dtype::U64, "U64", 64),
        (Dtype::U8, "U8", 8),
    ];

    /// The dtype of a name in a header.
    pub(crate) fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(dtype, _, _)| *dtype)
    }

    /// The name in a header.
    pub fn name(self) -> &'static str {
        Dtype::ALL[self as usize].1
    }

    /// Width of a value in bits.
    pub fn bits(self) -> usize {
        Dtype::ALL[self as usize].2
    }

    /// Whether weights may be stored so: bf16, f16 or f32.
    pub fn is_weight(self) -> bool {
        matches!(self, Dtype::BF16 | Dtype::F16 | Dtype::F32)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor inside a file. Row-major; little endian; aligned to nothing.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// How its values are stored.
    pub dtype: Dtype,
    /// Its dimensions; empty for a scalar.
    pub shape: &'a [usize],
    /// Its values' bytes: the shape's product times the dtype's width, which was checked.
    pub bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows `rows` of the first dimension as a tensor of their own values; its shape is that of the whole.
    ///
    /// # Panics
    /// If the tensor is a scalar, its values are not whole bytes, or the rows exceed it.
    pub fn row_bytes(&self, rows: std::ops::Range<usize>) -> &'a [u8] {
        let width = self.row_len() * self.value_bytes();
        &self.bytes[rows.start * width..rows.end * width]
    }

    /// Number of values of a row: the product of all dimensions but the first.
    ///
    /// # Panics
    /// If the tensor is a scalar.
    pub fn row_len(&self) -> usize {
        let (_, rest) = self.shape.split_first().expect("a scalar has no rows");
        rest.iter().product()
    }

    /// Copies all values as bf16 bits. F32 and F16 values are rounded to nearest, ties to even, as a cast of the
    /// reference does.
    ///
    /// # Panics
    /// If `out` has another length, or the dtype is none of BF16, F16 and F32 (the load plan admits no other).
    pub fn copy_bf16_into(&self, out: &mut [u16]) {
        copy_bf16(self.dtype, self.bytes, out);
    }

    /// Copies all values as f32; exact from each of the three dtypes.
    ///
    /// # Panics
    /// As [`Tensor::copy_bf16_into`].
    pub fn copy_f32_into(&self, out: &mut [f32]) {
        copy_f32(self.dtype, self.bytes, out);
    }

    /// Copies rows of the first dimension as bf16 bits, as [`Tensor::copy_bf16_into`] does.
    ///
    /// # Panics
    /// As [`Tensor::row_bytes`] and [`Tensor::copy_bf16_into`].
    pub fn copy_rows_bf16_into(&self, rows: std::ops::Range<usize>, out: &mut [u16]) {
        copy_bf16(self.dtype, self.row_bytes(rows), out);
    }

    /// Copies rows of the first dimension as f32.
    ///
    /// # Panics
    /// As [`Tensor::row_bytes`] and [`Tensor::copy_f32_into`].
    pub fn copy_rows_f32_into(&self, rows: std::ops::Range<usize>, out: &mut [f32]) {
        copy_f32(self.dtype, self.row_bytes(rows), out);
    }

    /// All values as f32 in a new buffer.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if the buffer cannot be allocated.
    ///
    /// # Panics
    /// If the dtype is none of BF16, F16 and F32.
    pub fn to_f32(&self) -> Result<Vec<f32>, LoadError> {
        let mut values = self.zeros()?;
        self.copy_f32_into(&mut values);
        Ok(values)
    }

    /// All values as bf16 bits in a new buffer.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if the buffer cannot be allocated.
    ///
    /// # Panics
    /// If the dtype is none of BF16, F16 and F32.
    pub fn to_bf16(&self) -> Result<Vec<u16>, LoadError> {
        let mut values = self.zeros()?;
        self.copy_bf16_into(&mut values);
        Ok(values)
    }

    /// A buffer with a place for each value.
    fn zeros<T: Clone + Default>(&self) -> Result<Vec<T>, LoadError> {
        let mut values = Vec::new();
        values
            .try_reserve_exact(self.len())
            .map_err(|_| LoadError::Memory {
                what: self.name.to_owned(),
                bytes: self.len().saturating_mul(size_of::<T>()),
            })?;
        values.resize(self.len(), T::default());
        Ok(values)
    }

    /// Bytes of a value.
    fn value_bytes(&self) -> usize {
        assert!(
            self.dtype.bits().is_multiple_of(8),
            "{} values are not whole bytes",
            self.dtype
        );
        self.dtype.bits() / 8
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.dtype, self.shape)
    }
}

fn copy_bf16(dtype: Dtype, bytes: &[u8], out: &mut [u16]) {
    match dtype {
        Dtype::BF16 => fill(out, bytes, u16::from_le_bytes),
        Dtype::F16 => fill(out, bytes, |b| {
            bf16::from_f32(f16::from_le_bytes(b).to_f32()).to_bits()
        }),
        Dtype::F32 => fill(out, bytes, |b| {
            bf16::from_f32(f32::from_le_bytes(b)).to_bits()
        }),
        _ => panic!("{dtype} is no dtype of weights"),
    }
}

fn copy_f32(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::BF16 => fill(out, bytes, |b| {
            f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
        }),
        Dtype::F16 => fill(out, bytes, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::F32 => fill(out, bytes, f32::from_le_bytes),
        _ => panic!("{dtype} is no dtype of weights"),
    }
}

/// Fills `out` from groups of `N` bytes.
fn fill<T, const N: usize>(out: &mut [T], bytes: &[u8], value: impl Fn([u8; N]) -> T) {
    let (groups, rest) = bytes.as_chunks::<N>();
    assert!(
        rest.is_empty() && groups.len() == out.len(),
        "{} bytes for {} values",
        bytes.len(),
        out.len()
    );
    for (out, group) in out.iter_mut().zip(groups) {
        *out = value(*group);
    }
}
