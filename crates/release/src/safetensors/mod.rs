//! The one reader of safetensors files: strict, bounded, and without a copy.
//!
//! ```text
//! ┌ 8 bytes ─────────┬ N bytes ────────────────────────────────────────────┬ data, to the end of the file ┐
//! │ N, little endian │ {"name": {"dtype", "shape", "data_offsets": [a, b]}} │ tensor, tensor, …            │
//! └──────────────────┴──────────────────────────────────────────────────────┴──────────────────────────────┘
//! ```
//!
//! Everything is checked before anything is sliced: the header's length, its JSON (by a parser that knows this one
//! form, so nothing can nest), names, dtypes, dimensions, and that the tensors' extents follow one another from the
//! first byte of the data to the last. What is refused is listed in [`FormatFault`].
//!
//! Nothing is assumed about alignment: values are read from bytes, two or four at a time.

mod header;
mod tensor;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use header::FormatFault;
pub use tensor::{Dtype, Tensor};

use crate::error::LoadError;
use crate::source::{Source, WeightBytes, map_file};
use header::Header;

/// A checked safetensors file.
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: WeightBytes,
    header: Header,
}

impl SafetensorsFile {
    /// Maps a file and checks it.
    ///
    /// # Errors
    /// [`LoadError::File`] and [`LoadError::Format`].
    pub fn open(path: &Path) -> Result<SafetensorsFile, LoadError> {
        SafetensorsFile::check(path.to_path_buf(), map_file(path)?)
    }

    /// Checks a file that is part of the program; `name` is for messages.
    ///
    /// # Errors
    /// [`LoadError::Format`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<SafetensorsFile, LoadError> {
        SafetensorsFile::check(PathBuf::from(name), WeightBytes::Static(bytes))
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn from_source(source: &Source, name: &str) -> Result<SafetensorsFile, LoadError> {
        SafetensorsFile::check(source.path(name), source.weights(name)?)
    }

    fn check(path: PathBuf, bytes: WeightBytes) -> Result<SafetensorsFile, LoadError> {
        match Header::parse(&bytes) {
            Ok(header) => Ok(SafetensorsFile {
                path,
                bytes,
                header,
            }),
            Err(fault) => Err(LoadError::Format { file: path, fault }),
        }
    }

    /// The file's path, or the name it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.header.entries.len()
    }

    /// Whether it holds no tensor.
    pub fn is_empty(&self) -> bool {
        self.header.entries.is_empty()
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let index = self
            .header
            .entries
            .binary_search_by(|entry| entry.name.as_str().cmp(name))
            .ok()?;
        Some(self.at(index))
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Gives the mapped pages back to the system until they are read again; after weights were copied to their place,
    /// the file need not take memory a second time.
    pub fn discard_pages(&self) {
        self.bytes.discard();
    }

    /// The tensor at an index below [`SafetensorsFile::len`], in name order.
    pub(crate) fn at(&self, index: usize) -> Tensor<'_> {
        let entry = &self.header.entries[index];
        let data = &self.bytes[self.header.data_start..];
        Tensor {
            name: &entry.name,
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: &data[entry.start..entry.end],
        }
    }
}

impl fmt::Debug for SafetensorsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetensorsFile")
            .field("path", &self.path)
            .field("tensors", &self.len())
            .finish_non_exhaustive()
    }
}

/// Writes a file with one f32 tensor.
///
/// # Errors
/// What the writer says.
///
/// # Panics
/// If the shape's product is not the number of values.
pub fn write_f32(
    out: &mut dyn Write,
    name: &str,
    shape: &[usize],
    values: &[f32],
) -> io::Result<()> {
    assert_eq!(
        shape.iter().product::<usize>(),
        values.len(),
        "shape {shape:?} has another product"
    );
    let bytes = size_of_val(values);
    let info =
        serde_json::json!({ name: { "dtype": "F32", "shape": shape, "data_offsets": [0, bytes] } });
    let mut header = info.to_string();
    // Writers pad the header with blanks so that the data starts at a multiple of 8.
    header.extend(std::iter::repeat_n(
        ' ',
        header.len().next_multiple_of(8) - header.len(),
    ));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut block = Vec::with_capacity(WRITE_BLOCK * size_of::<f32>());
    for values in values.chunks(WRITE_BLOCK) {
        block.clear();
        block.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        out.write_all(&block)?;
    }
    Ok(())
}

/// Values that are turned to bytes at a time.
const WRITE_BLOCK: usize = 4096;
