//! The parser: strict JSON into a [`Value`], without recursion.
//!
//! It takes what Python's `json.loads` takes, less what no prompt or reply can carry: `NaN` and `Infinity`, numbers
//! that overflow a double, lone surrogates. Memory is bounded by [`VALUES_MAX`] and the text's own length.

use std::error::Error;
use std::fmt;

use super::builder::{Builder, Frame};
use super::{Number, Value, keep_last_at_first};
use crate::fault::Step;

/// Levels of arrays and objects that a text may nest; Python's own limit is a little below.
pub const NESTING_MAX: usize = 1000;

/// Values that a text may hold. A value takes 32 bytes and more where its text may take two, so that a text of empty
/// arrays grows sixteenfold; no model reads a state of so many values.
pub const VALUES_MAX: usize = 1 << 20;

/// Digits that Python reads in an integer (`sys.int_info.default_max_str_digits`).
const INTEGER_DIGITS_MAX: usize = 4300;

/// Parses JSON text in UTF-8.
///
/// # Errors
/// The first place where the text is not UTF-8, not JSON, or holds a number that cannot be used.
pub fn parse(text: &[u8]) -> Result<Value, ParseError> {
    match std::str::from_utf8(text) {
        Ok(text) => parse_str(text),
        Err(error) => Err(ParseError {
            offset: error.valid_up_to(),
            kind: ParseErrorKind::NotUtf8,
            path: Vec::new(),
        }),
    }
}

/// Parses JSON text.
///
/// # Errors
/// As [`parse`].
pub fn parse_str(text: &str) -> Result<Value, ParseError> {
    let mut parser = Parser {
        text,
        at: 0,
        values: 0,
        builder: Builder::default(),
    };
    parser.document().map_err(|(offset, kind)| ParseError {
        offset,
        kind,
        path: path(parser.builder.open()),
    })
}

/// Why and where a text is not a JSON value that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Byte offset from the start of the text.
    pub offset: usize,
    /// What is wrong there.
    pub kind: ParseErrorKind,
    /// The way to the value that was being read.
    pub path: Vec<Step>,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// The text opens with a byte order mark.
    ByteOrderMark,
    /// A control character stands in a string unescaped.
    ControlCharacter {
        /// The character.
        found: char,
    },
    /// A backslash is followed by something that is no escape.
    Escape,
    /// Something else was wanted.
    Expected {
        /// What was wanted, in words.
        wanted: &'static str,
        /// What was found; nothing at the end of the text.
        found: Option<char>,
    },
    /// An integer has more digits than Python reads.
    IntegerTooLong {
        /// Its number of digits.
        digits: usize,
    },
    /// Half a surrogate pair is escaped, which is no character.
    LoneSurrogate,
    /// Arrays and objects are nested too deep.
    NestingTooDeep,
    /// `NaN`, `Infinity` or `-Infinity`, which Python writes and JSON does not have.
    NonFinite,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// A number is not spelled as JSON spells numbers.
    Number,
    /// A number overflows a double.
    NumberTooLarge,
    /// The text holds too many values.
    TooManyValues,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ParseErrorKind::ByteOrderMark => {
                f.write_str("the text opens with a byte order mark")?
            }
            ParseErrorKind::ControlCharacter { found } => {
                write!(f, "a string holds U+{:04X} unescaped", u32::from(*found))?;
            }
            ParseErrorKind::Escape => {
                f.write_str("a backslash is not followed by an escape that JSON knows")?
            }
            ParseErrorKind::Expected {
                wanted,
                found: Some(found),
            } => {
                write!(f, "wanted {wanted}, found {found:?}")?;
            }
            ParseErrorKind::Expected {
                wanted,
                found: None,
            } => write!(f, "wanted {wanted}, found the end")?,
            ParseErrorKind::IntegerTooLong { digits } => {
                write!(
                    f,
                    "an integer has {digits} digits, at most {INTEGER_DIGITS_MAX} are read"
                )?;
            }
            ParseErrorKind::LoneSurrogate => {
                f.write_str("half a surrogate pair is escaped, which is no character")?
            }
            ParseErrorKind::NestingTooDeep => {
                write!(f, "more than {NESTING_MAX} levels of nesting")?
            }
            ParseErrorKind::NonFinite => f.write_str("NaN and Infinity are not JSON")?,
            ParseErrorKind::NotUtf8 => f.write_str("the text is not UTF-8")?,
            ParseErrorKind::Number => {
                f.write_str("a number is not spelled as JSON spells numbers")?
            }
            ParseErrorKind::NumberTooLarge => f.write_str("a number is too large for a double")?,
            ParseErrorKind::TooManyValues => write!(f, "more than {VALUES_MAX} values")?,
        }
        write!(f, " (byte {})", self.offset)
    }
}

impl Error for ParseError {}

type Stop = (usize, ParseErrorKind);

/// The way to the value being read: the key or index at every open level.
fn path(frames: &[Frame]) -> Vec<Step> {
    let step = |frame: &Frame| match frame {
        Frame::Array(elements) => Step::Index(elements.len()),
        Frame::Object { key, .. } => Step::key(key),
    };
    frames.iter().map(step).collect()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    values: usize,
    builder: Builder,
}

impl<'a> Parser<'a> {
    fn document(&mut self) -> Result<Value, Stop> {
        if self.text.starts_with('\u{feff}') {
            return self.stop(ParseErrorKind::ByteOrderMark);
        }
        let value = self.value()?;
        self.skip_blank();
        if self.at < self.text.len() {
            return self.expected("the end of the text");
        }
        Ok(value)
    }

    /// Reads a value with all that is inside of it. Each turn reads a scalar or opens a level, then closes what ends.
    fn value(&mut self) -> Result<Value, Stop> {
        loop {
            self.skip_blank();
            if !self.scalar_or_start()? {
                continue;
            }
            while !self.next_entry()? {
                if let Some(value) = self.builder.take() {
                    return Ok(value);
                }
            }
        }
    }

    /// Reads a scalar, or the start of a level up to where its first value or its end stands. Gives whether a value or
    /// a level's end is behind us, so that a comma or another end follows.
    fn scalar_or_start(&mut self) -> Result<bool, Stop> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return self.stop(ParseErrorKind::TooManyValues);
        }
        let value = match self.peek() {
            Some(b'[') => return self.start(false, "]"),
            Some(b'{') => return self.start(true, "}"),
            Some(b'"') => Value::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => Value::Number(self.number()?),
            _ if self.take("null") => Value::Null,
            _ if self.take("true") => Value::Bool(true),
            _ if self.take("false") => Value::Bool(false),
            _ if self.rest().starts_with("NaN") || self.rest().starts_with("Infinity") => {
                return self.stop(ParseErrorKind::NonFinite);
            }
            _ => return self.expected("a value"),
        };
        self.builder.put(value);
        Ok(true)
    }

    /// Reads the start of an array or object, with its end if it is empty, with its first key if it has one.
    fn start(&mut self, object: bool, end: &str) -> Result<bool, Stop> {
        if self.builder.open().len() == NESTING_MAX {
            return self.stop(ParseErrorKind::NestingTooDeep);
        }
        self.at += 1;
        self.skip_blank();
        self.builder.start(object);
        if self.take(end) {
            self.builder.end();
            return Ok(true);
        }
        if object {
            self.key("a key or '}'")?;
        }
        Ok(false)
    }

    /// Reads on from the end of a value: a comma up to where the next value starts, and gives true; or the end of the
    /// level; or nothing, if no level is open.
    fn next_entry(&mut self) -> Result<bool, Stop> {
        let object = match self.builder.open().last() {
            None => return Ok(false),
            Some(frame) => matches!(frame, Frame::Object { .. }),
        };
        self.skip_blank();
        if self.take(",") {
            self.skip_blank();
            if object {
                self.key("a key")?;
            }
            return Ok(true);
        }
        if !self.take(if object { "}" } else { "]" }) {
            return self.expected(if object { "',' or '}'" } else { "',' or ']'" });
        }
        if let Some(Frame::Object { entries, .. }) = self.builder.innermost() {
            keep_last_at_first(entries);
        }
        self.builder.end();
        Ok(false)
    }

    /// Reads the key of the value to come, and its colon.
    fn key(&mut self, wanted: &'static str) -> Result<(), Stop> {
        if self.peek() != Some(b'"') {
            return self.expected(wanted);
        }
        let key = self.string()?;
        self.skip_blank();
        if !self.take(":") {
            return self.expected("':'");
        }
        self.builder.key(key);
        Ok(())
    }

    /// Reads a string from its opening quote on.
    fn string(&mut self) -> Result<String, Stop> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let plain = self
                .rest()
                .bytes()
                .take_while(|&b| b >= 0x20 && b != b'"' && b != b'\\')
                .count();
            out.push_str(&self.rest()[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                Some(control) => {
                    return self.stop(ParseErrorKind::ControlCharacter {
                        found: char::from(control),
                    });
                }
                None => return self.expected("'\"'"),
            }
        }
    }

    /// Reads an escape from its backslash on.
    fn escape(&mut self) -> Result<char, Stop> {
        let start = self.at;
        let letter = self.text.as_bytes().get(start + 1).copied();
        let plain = match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err((start, ParseErrorKind::Escape)),
        };
        self.at = start + 2;
        Ok(plain)
    }

    /// Reads `\uXXXX`, or two of them that are a surrogate pair.
    fn unicode_escape(&mut self) -> Result<char, Stop> {
        let start = self.at;
        let first = self.code_unit().ok_or((start, ParseErrorKind::Escape))?;
        let mut units = vec![first];
        if (0xd800..0xdc00).contains(&first) {
            let second = self.at;
            match self.code_unit() {
                Some(unit) => units.push(unit),
                None if self.rest().starts_with("\\u") => {
                    return Err((second, ParseErrorKind::Escape));
                }
                None => {}
            }
        }
        let mut characters = char::decode_utf16(units);
        match characters.next() {
            Some(Ok(character)) => Ok(character),
            _ => Err((start, ParseErrorKind::LoneSurrogate)),
        }
    }

    /// Reads `\uXXXX`, if that stands here.
    fn code_unit(&mut self) -> Option<u16> {
        let digits = self.rest().strip_prefix("\\u")?.get(..4)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 6;
        Some(u16::from_str_radix(digits, 16).expect("four hexadecimal digits fit"))
    }

    fn number(&mut self) -> Result<Number, Stop> {
        let start = self.at;
        if self.rest().starts_with("-Infinity") {
            return self.stop(ParseErrorKind::NonFinite);
        }
        self.take("-");
        let digits = self.whole_digits()?;
        let mut integer = true;
        if self.take(".") {
            integer = false;
            self.digits()?;
        }
        if self.take("e") || self.take("E") {
            integer = false;
            let _sign = self.take("+") || self.take("-");
            self.digits()?;
        }
        let number = Number::from_checked(&self.text[start..self.at]);
        if integer && digits > INTEGER_DIGITS_MAX {
            return Err((start, ParseErrorKind::IntegerTooLong { digits }));
        }
        if !integer && number.as_f64().is_infinite() {
            return Err((start, ParseErrorKind::NumberTooLarge));
        }
        Ok(number)
    }

    /// Reads the digits before the point: a zero alone, or no leading zero. Gives their number.
    fn whole_digits(&mut self) -> Result<usize, Stop> {
        let start = self.at;
        let digits = self.digits()?;
        if digits > 1 && self.text.as_bytes()[start] == b'0' {
            return Err((start, ParseErrorKind::Number));
        }
        Ok(digits)
    }

    /// Reads one digit or more. Gives their number.
    fn digits(&mut self) -> Result<usize, Stop> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return self.stop(ParseErrorKind::Number);
        }
        self.at += digits;
        Ok(digits)
    }

    fn skip_blank(&mut self) {
        let blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.rest().bytes().take_while(blank).count();
    }

    fn take(&mut self, wanted: &str) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len();
        }
        found
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn stop<T>(&self, kind: ParseErrorKind) -> Result<T, Stop> {
        Err((self.at, kind))
    }

    fn expected<T>(&self, wanted: &'static str) -> Result<T, Stop> {
        self.stop(ParseErrorKind::Expected {
            wanted,
            found: self.rest().chars().next(),
        })
    }
}
