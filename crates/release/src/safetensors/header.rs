//! The header of a safetensors file: parsed by a parser of this one form, then checked against the file's length.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::ops::Deref;

use super::tensor::Dtype;

/// Greatest length of a header in bytes. A release of 64 layers needs 150 KB.
pub(crate) const HEADER_BYTES_MAX: u64 = 8 << 20;
/// Greatest number of tensors of a file.
pub(crate) const TENSORS_MAX: usize = 100_000;
/// Greatest number of dimensions of a tensor.
pub(crate) const DIMS_MAX: usize = 8;

/// A rule of the format, or a bound of this reader, that a file breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the fields are named after what they hold; offsets and sizes are in bytes"
)]
pub enum FormatFault {
    /// Two tensors have one name, or one object has a key twice.
    DuplicateName { name: String },
    /// A tensor has no name.
    EmptyName,
    /// The header is no object of tensors.
    Header {
        at: usize,
        found: String,
        wanted: &'static str,
    },
    /// The header is filled up with NUL bytes; the format fills with blanks.
    HeaderNulPadded,
    /// The header would end after the file.
    HeaderPastEnd { header: u64, file: usize },
    /// The header is longer than `HEADER_BYTES_MAX`.
    HeaderTooLong { header: u64 },
    /// The header is not UTF-8.
    HeaderNotUtf8 { at: usize },
    /// Bytes between two tensors belong to none.
    Hole {
        before: String,
        start: usize,
        end: usize,
    },
    /// No memory for the list of tensors.
    Memory { bytes: usize },
    /// A tensor's end lies before its start.
    OffsetsReversed { name: String, start: u64, end: u64 },
    /// Two tensors share bytes.
    Overlap { first: String, second: String },
    /// A tensor ends after the file.
    PastEnd { name: String, end: u64, data: usize },
    /// The shape's product or its size in bytes does not fit a machine word.
    SizeOverflow { name: String },
    /// The extent is not the size that dtype and shape give.
    SizeWrong {
        name: String,
        extent: usize,
        wanted: usize,
    },
    /// The file is too short for a header.
    TooShort { file: usize },
    /// A tensor has more than `DIMS_MAX` dimensions.
    TooManyDims { name: String },
    /// The file has more than `TENSORS_MAX` tensors.
    TooManyTensors,
    /// Bytes after the last tensor belong to none.
    Trailing { bytes: usize },
    /// The dtype is none of the format's.
    UnknownDtype { name: String, dtype: String },
    /// A tensor is described by a key that the format does not have.
    UnknownKey { name: String, key: String },
    /// The values do not fill whole bytes.
    UnevenBits { name: String, dtype: Dtype },
}

impl fmt::Display for FormatFault {
    #[expect(clippy::too_many_lines, reason = "one arm a variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatFault::DuplicateName { name } => {
                write!(f, "the name {name:?} stands twice in the header")
            }
            FormatFault::EmptyName => f.write_str("a tensor has an empty name"),
            FormatFault::Header { at, found, wanted } => {
                write!(f, "byte {at} of the header is {found}, wanted {wanted}")
            }
            FormatFault::HeaderNulPadded => {
                f.write_str("the header is filled up with NUL bytes, wanted blanks")
            }
            FormatFault::HeaderNotUtf8 { at } => write!(f, "byte {at} of the header is not UTF-8"),
            FormatFault::HeaderPastEnd { header, file } => write!(
                f,
                "the header should have {header} bytes, but the file has {file} in all; it is cut or no safetensors file"
            ),
            FormatFault::HeaderTooLong { header } => write!(
                f,
                "the header should have {header} bytes, {HEADER_BYTES_MAX} are read at most; this may be no safetensors file"
            ),
            FormatFault::Hole { before, start, end } => {
                write!(
                    f,
                    "bytes {start}..{end} of the data, before {before}, belong to no tensor"
                )
            }
            FormatFault::Memory { bytes } => {
                write!(f, "no memory for its list of tensors ({bytes} bytes)")
            }
            FormatFault::OffsetsReversed { name, start, end } => {
                write!(
                    f,
                    "{name} starts at byte {start} of the data and ends before, at {end}"
                )
            }
            FormatFault::Overlap { first, second } => write!(f, "{first} and {second} share bytes"),
            FormatFault::PastEnd { name, end, data } => write!(
                f,
                "{name} ends at byte {end} of the data, but there are {data}; the file is cut or damaged"
            ),
            FormatFault::SizeOverflow { name } => {
                write!(f, "the size of {name} does not fit 64 bits")
            }
            FormatFault::SizeWrong {
                name,
                extent,
                wanted,
            } => {
                write!(
                    f,
                    "{name} takes {extent} bytes, its dtype and shape give {wanted}"
                )
            }
            FormatFault::TooManyDims { name } => {
                write!(f, "{name} has more than {DIMS_MAX} dimensions")
            }
            FormatFault::TooManyTensors => write!(f, "there are more than {TENSORS_MAX} tensors"),
            FormatFault::TooShort { file } => {
                write!(
                    f,
                    "the file has {file} bytes, a safetensors file has 10 or more"
                )
            }
            FormatFault::Trailing { bytes } => {
                write!(f, "{bytes} bytes after the last tensor belong to none")
            }
            FormatFault::UnevenBits { name, dtype } => {
                write!(f, "the {dtype} values of {name} do not fill whole bytes")
            }
            FormatFault::UnknownDtype { name, dtype } => {
                write!(f, "{name} has the unknown dtype {dtype:?}")
            }
            FormatFault::UnknownKey { name, key } => {
                write!(f, "{name} has the unknown key {key:?}")
            }
        }
    }
}

impl Error for FormatFault {}

/// A checked header.
pub(crate) struct Header {
    /// The tensors, sorted by name.
    pub(crate) entries: Vec<Entry>,
    /// Offset of the data in the file.
    pub(crate) data_start: usize,
}

/// A tensor as the header describes it; the extent lies inside the data.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Up to `DIMS_MAX` dimensions, without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    dims: [usize; DIMS_MAX],
    rank: usize,
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
}

impl Header {
    /// Parses and checks the header of a whole file.
    pub(crate) fn parse(file: &[u8]) -> Result<Header, FormatFault> {
        let (text, data) = split(file)?;
        let data_start = file.len() - data.len();
        let mut entries = Parser {
            text,
            at: 0,
            data: data.len(),
        }
        .header()?;
        check_cover(&mut entries, data.len())?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        match entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            Some(pair) => Err(FormatFault::DuplicateName {
                name: pair[0].name.clone(),
            }),
            None => Ok(Header {
                entries,
                data_start,
            }),
        }
    }
}

/// The header's text and the data.
fn split(file: &[u8]) -> Result<(&str, &[u8]), FormatFault> {
    let too_short = FormatFault::TooShort { file: file.len() };
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(too_short);
    };
    let header = u64::from_le_bytes(*length);
    if header > HEADER_BYTES_MAX {
        return Err(FormatFault::HeaderTooLong { header });
    }
    let Some((text, data)) = rest.split_at_checked(header as usize) else {
        return Err(FormatFault::HeaderPastEnd {
            header,
            file: file.len(),
        });
    };
    if text.len() < 2 {
        return Err(too_short);
    }
    if text.ends_with(&[0]) {
        return Err(FormatFault::HeaderNulPadded);
    }
    match std::str::from_utf8(text) {
        Ok(text) => Ok((text, data)),
        Err(error) => Err(FormatFault::HeaderNotUtf8 {
            at: error.valid_up_to(),
        }),
    }
}

/// Checks that the extents follow one another from 0 to the data's end. Leaves the entries in that order.
fn check_cover(entries: &mut [Entry], data: usize) -> Result<(), FormatFault> {
    entries.sort_unstable_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    let mut covered = 0;
    for (index, entry) in entries.iter().enumerate() {
        if entry.start > covered {
            return Err(FormatFault::Hole {
                before: entry.name.clone(),
                start: covered,
                end: entry.start,
            });
        }
        if entry.start < covered {
            // The first entry starts at 0, so there is one before.
            let first = entries[index - 1].name.clone();
            return Err(match first == entry.name {
                true => FormatFault::DuplicateName { name: first },
                false => FormatFault::Overlap {
                    first,
                    second: entry.name.clone(),
                },
            });
        }
        covered = entry.end;
    }
    match data - covered {
        0 => Ok(()),
        bytes => Err(FormatFault::Trailing { bytes }),
    }
}

/// Reads the header's one form. Every loop consumes text, and nothing recurses.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Length of the data, which no extent exceeds.
    data: usize,
}

impl<'a> Parser<'a> {
    fn header(mut self) -> Result<Vec<Entry>, FormatFault> {
        let mut entries = Vec::new();
        let mut metadata_seen = false;
        // The format wants the object to start at once.
        if !self.text.starts_with('{') {
            return Err(self.fault("an object, `{`"));
        }
        self.object(|parser, name| {
            if name == METADATA {
                if std::mem::replace(&mut metadata_seen, true) {
                    return Err(FormatFault::DuplicateName {
                        name: name.into_owned(),
                    });
                }
                return parser.metadata();
            }
            let entry = parser.entry(name.into_owned())?;
            if entries.len() == TENSORS_MAX {
                return Err(FormatFault::TooManyTensors);
            }
            entries.try_reserve(1).map_err(|_| FormatFault::Memory {
                bytes: (entries.len() + 1) * size_of::<Entry>(),
            })?;
            entries.push(entry);
            Ok(())
        })?;
        self.skip_blanks();
        match self.at == self.text.len() {
            true => Ok(entries),
            false => Err(self.fault("the header's end")),
        }
    }

    /// `{"format": "pt", …}`: strings by name, which say nothing about the tensors.
    fn metadata(&mut self) -> Result<(), FormatFault> {
        self.object(|parser, _| parser.string().map(drop))
    }

    /// `{"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}`, keys in any order.
    fn entry(&mut self, name: String) -> Result<Entry, FormatFault> {
        if name.is_empty() {
            return Err(FormatFault::EmptyName);
        }
        let start = self.at;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        self.object(|parser, key| {
            let seen = match &*key {
                "data_offsets" => offsets.replace(parser.offsets()?).is_some(),
                "dtype" => dtype.replace(parser.dtype(&name)?).is_some(),
                "shape" => shape.replace(parser.shape(&name)?).is_some(),
                _ => {
                    return Err(FormatFault::UnknownKey {
                        name: name.clone(),
                        key: key.into_owned(),
                    });
                }
            };
            match seen {
                true => Err(FormatFault::DuplicateName {
                    name: key.into_owned(),
                }),
                false => Ok(()),
            }
        })?;
        let (Some(dtype), Some(shape), Some(offsets)) = (dtype, shape, offsets) else {
            self.at = start;
            return Err(self.fault("an object with dtype, shape and data_offsets"));
        };
        self.checked_entry(name, dtype, shape, offsets)
    }

    /// Checks an entry's extent against the data and against dtype and shape.
    fn checked_entry(
        &self,
        name: String,
        dtype: Dtype,
        shape: Shape,
        [start, end]: [u64; 2],
    ) -> Result<Entry, FormatFault> {
        if end < start {
            return Err(FormatFault::OffsetsReversed { name, start, end });
        }
        if end > self.data as u64 {
            return Err(FormatFault::PastEnd {
                name,
                end,
                data: self.data,
            });
        }
        let bits = shape
            .iter()
            .try_fold(1_usize, |product, dim| product.checked_mul(*dim))
            .and_then(|product| product.checked_mul(dtype.bits()));
        let Some(bits) = bits else {
            return Err(FormatFault::SizeOverflow { name });
        };
        if !bits.is_multiple_of(8) {
            return Err(FormatFault::UnevenBits { name, dtype });
        }
        // Both are at most the data's length, which is a usize.
        let (start, end) = (start as usize, end as usize);
        let (extent, wanted) = (end - start, bits / 8);
        match extent == wanted {
            true => Ok(Entry {
                name,
                dtype,
                shape,
                start,
                end,
            }),
            false => Err(FormatFault::SizeWrong {
                name,
                extent,
                wanted,
            }),
        }
    }

    fn dtype(&mut self, tensor: &str) -> Result<Dtype, FormatFault> {
        let name = self.string()?;
        Dtype::from_name(&name).ok_or_else(|| FormatFault::UnknownDtype {
            name: tensor.to_owned(),
            dtype: name.into_owned(),
        })
    }

    fn shape(&mut self, tensor: &str) -> Result<Shape, FormatFault> {
        let mut shape = Shape::default();
        self.array(|parser| {
            let dim = parser.integer()?;
            if shape.rank == DIMS_MAX {
                return Err(FormatFault::TooManyDims {
                    name: tensor.to_owned(),
                });
            }
            shape.dims[shape.rank] =
                usize::try_from(dim).map_err(|_| FormatFault::SizeOverflow {
                    name: tensor.to_owned(),
                })?;
            shape.rank += 1;
            Ok(())
        })?;
        Ok(shape)
    }

    fn offsets(&mut self) -> Result<[u64; 2], FormatFault> {
        let start = self.at;
        let mut offsets = [0; 2];
        let mut count = 0;
        self.array(|parser| {
            let offset = parser.integer()?;
            if let Some(place) = offsets.get_mut(count) {
                *place = offset;
            }
            count += 1;
            Ok(())
        })?;
        if count != 2 {
            self.at = start;
            return Err(self.fault("two data_offsets"));
        }
        Ok(offsets)
    }

    /// `{"key": value, …}`, with `member` reading each value.
    fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), FormatFault>,
    ) -> Result<(), FormatFault> {
        self.sequence((b'{', "an object, `{`"), (b'}', "`,` or `}`"), |parser| {
            let key = parser.string()?;
            parser.token(b':', "`:`")?;
            member(parser, key)
        })
    }

    /// `[value, …]`, with `element` reading each value.
    fn array(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<(), FormatFault>,
    ) -> Result<(), FormatFault> {
        self.sequence((b'[', "an array, `[`"), (b']', "`,` or `]`"), element)
    }

    fn sequence(
        &mut self,
        open: (u8, &'static str),
        close: (u8, &'static str),
        mut element: impl FnMut(&mut Self) -> Result<(), FormatFault>,
    ) -> Result<(), FormatFault> {
        self.token(open.0, open.1)?;
        if self.taken(close.0) {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.taken(b',') {
                return self.token(close.0, close.1);
            }
        }
    }

    /// A string. One without escapes is borrowed; serde_json reads the others.
    fn string(&mut self) -> Result<Cow<'a, str>, FormatFault> {
        const WANTED: &str = "a string";
        self.skip_blanks();
        let start = self.at;
        self.token(b'"', WANTED)?;
        let body = &self.text.as_bytes()[self.at..];
        let mut plain = true;
        let mut length = 0;
        let closed = loop {
            match body.get(length) {
                Some(b'"') => break true,
                Some(b'\\') => {
                    plain = false;
                    length += 2;
                }
                Some(byte) => {
                    plain &= *byte >= 0x20;
                    length += 1;
                }
                None => break false,
            }
        };
        if !closed {
            self.at = start;
            return Err(self.fault("a string that ends"));
        }
        // Quotes are ASCII, so the cuts lie between characters.
        let inside = &self.text[self.at..self.at + length];
        self.at += length + 1;
        if plain {
            return Ok(Cow::Borrowed(inside));
        }
        match serde_json::from_str::<String>(&self.text[start..self.at]) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(_) => {
                self.at = start;
                Err(self.fault("a string of valid JSON"))
            }
        }
    }

    /// A whole number without sign, fraction, exponent or leading zeros.
    fn integer(&mut self) -> Result<u64, FormatFault> {
        const WANTED: &str = "a whole number below 2^64";
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let whole =
            !after.starts_with(['.', 'e', 'E']) && (digits == 1 || !number.starts_with('0'));
        match number.parse() {
            Ok(value) if whole => {
                self.at += digits;
                Ok(value)
            }
            _ => Err(self.fault(WANTED)),
        }
    }

    fn token(&mut self, byte: u8, wanted: &'static str) -> Result<(), FormatFault> {
        match self.taken(byte) {
            true => Ok(()),
            false => Err(self.fault(wanted)),
        }
    }

    /// Takes the byte if it comes next, after blanks.
    fn taken(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let found = self.text.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn skip_blanks(&mut self) {
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.text.as_bytes()[self.at..]
            .iter()
            .take_while(|byte| blank(byte))
            .count();
    }

    /// The fault at the place reached, showing a little of what stands there.
    fn fault(&self, wanted: &'static str) -> FormatFault {
        let found: String = self.text[self.at..].chars().take(SHOWN_CHARS).collect();
        let found = if found.is_empty() {
            "the end".to_owned()
        } else {
            format!("{found:?}")
        };
        FormatFault::Header {
            at: self.at,
            found,
            wanted,
        }
    }
}

/// The one key of the header that is no tensor.
const METADATA: &str = "__metadata__";
/// Characters of a faulty header that a message shows.
const SHOWN_CHARS: usize = 16;
