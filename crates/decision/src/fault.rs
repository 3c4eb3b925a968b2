//! What is wrong with a request, and where.

use std::fmt::{self, Write};

use crate::json::{ParseError, ParseErrorKind, Value};

/// One thing that is wrong with a request body. All of a body's faults are reported together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, from the body's root.
    pub loc: Vec<Step>,
    /// What kind of fault.
    pub kind: FaultKind,
    /// What was found and what was wanted, for a person. It never repeats long text of the request, and control
    /// characters in it are escaped.
    pub msg: String,
}

/// One step of the way to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Into an object, by key. Long keys are shortened by [`Step::key`].
    Key(String),
    /// Into an array, by index; or the byte offset at which a body stops being JSON.
    Index(usize),
}

impl Step {
    /// A step by key; a key of more than [`STEP_CHARS_MAX`] characters is cut and ends in an ellipsis.
    pub fn key(key: &str) -> Step {
        match key.char_indices().nth(STEP_CHARS_MAX) {
            Some((end, _)) => Step::Key(format!("{}…", &key[..end])),
            None => Step::Key(key.to_owned()),
        }
    }
}

impl From<&Step> for Value {
    fn from(step: &Step) -> Value {
        match step {
            Step::Key(key) => key.as_str().into(),
            Step::Index(index) => (*index).into(),
        }
    }
}

/// Characters of a key that a [`Step`] keeps.
pub const STEP_CHARS_MAX: usize = 200;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Wanted a boolean.
    BoolType,
    /// Wanted an object.
    DictType,
    /// A key that must not be there.
    ExtraForbidden,
    /// A number too large for a double.
    FiniteNumber,
    /// Not a picture.
    ImageInvalid,
    /// A picture that lies elsewhere; nothing is fetched.
    ImageUrlNotAllowed,
    /// An integer of more digits than Python reads.
    IntParsingSize,
    /// Not JSON.
    JsonInvalid,
    /// Wanted an array.
    ListType,
    /// Something required is absent.
    Missing,
    /// This server cannot use it, and will not answer as if it had.
    NotSupported,
    /// Wanted text.
    StringTooShort,
    /// Wanted a string.
    StringType,
    /// Too many entries.
    TooLong,
    /// Too few entries.
    TooShort,
    /// A value of a kind that is not allowed here.
    UnionType,
    /// The type of a question is not known.
    UnionTagInvalid,
    /// The type of a question is absent.
    UnionTagNotFound,
    /// A value that means nothing here.
    ValueError,
}

impl FaultKind {
    /// The name on the wire (`type` in a `detail` entry).
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::BoolType => "bool_type",
            FaultKind::DictType => "dict_type",
            FaultKind::ExtraForbidden => "extra_forbidden",
            FaultKind::FiniteNumber => "finite_number",
            FaultKind::ImageInvalid => "image_invalid",
            FaultKind::ImageUrlNotAllowed => "image_url_not_allowed",
            FaultKind::IntParsingSize => "int_parsing_size",
            FaultKind::JsonInvalid => "json_invalid",
            FaultKind::ListType => "list_type",
            FaultKind::Missing => "missing",
            FaultKind::NotSupported => "not_supported",
            FaultKind::StringTooShort => "string_too_short",
            FaultKind::StringType => "string_type",
            FaultKind::TooLong => "too_long",
            FaultKind::TooShort => "too_short",
            FaultKind::UnionType => "union_type",
            FaultKind::UnionTagInvalid => "union_tag_invalid",
            FaultKind::UnionTagNotFound => "union_tag_not_found",
            FaultKind::ValueError => "value_error",
        }
    }
}

/// `questions.team.choice.criteria: wanted an object, found an array`
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.loc.iter().enumerate() {
            match step {
                Step::Key(key) => {
                    let dot = if position > 0 { "." } else { "" };
                    write!(f, "{dot}{}", printable(key))?;
                }
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        let colon = if self.loc.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.msg)
    }
}

impl std::error::Error for Fault {}

/// A body that is not JSON has one fault: at a byte offset, or for a number that cannot be used, at its path.
impl From<ParseError> for Fault {
    fn from(error: ParseError) -> Fault {
        let msg = error.to_string();
        match error.kind {
            ParseErrorKind::NumberTooLarge => Fault {
                loc: error.path,
                kind: FaultKind::FiniteNumber,
                msg,
            },
            ParseErrorKind::IntegerTooLong { .. } => Fault {
                loc: error.path,
                kind: FaultKind::IntParsingSize,
                msg,
            },
            _ => Fault {
                loc: vec![Step::Index(error.offset)],
                kind: FaultKind::JsonInvalid,
                msg,
            },
        }
    }
}

/// Text of a client fit for a terminal and a log line: control and formatting characters escaped, cut at
/// [`STEP_CHARS_MAX`] characters.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4 * STEP_CHARS_MAX));
    for (count, c) in text.chars().enumerate() {
        if count == STEP_CHARS_MAX {
            out.push('…');
            break;
        }
        if c.is_control() || is_format_control(c) {
            write!(out, "\\u{{{:x}}}", u32::from(c)).expect("a String takes all text");
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that no terminal shows but that turn or hide the text around them: line and paragraph separators,
/// zero-width and bidirectional controls, the byte order mark.
fn is_format_control(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_escape_in_an_id_is_spelled_out() {
        let fault = Fault {
            loc: vec![
                Step::key("questions"),
                Step::key("a\u{1b}[31m\u{202e}"),
                Step::Index(3),
            ],
            kind: FaultKind::UnionType,
            msg: "wanted text".to_owned(),
        };
        assert_eq!(
            fault.to_string(),
            "questions.a\\u{1b}[31m\\u{202e}[3]: wanted text"
        );
    }

    #[test]
    fn long_keys_are_cut_at_a_character() {
        let key = "ü".repeat(STEP_CHARS_MAX + 1);
        assert_eq!(
            Step::key(&key),
            Step::Key(format!("{}…", "ü".repeat(STEP_CHARS_MAX)))
        );
        assert_eq!(printable(&key), format!("{}…", "ü".repeat(STEP_CHARS_MAX)));
        let fits = "ü".repeat(STEP_CHARS_MAX);
        assert_eq!(Step::key(&fits), Step::Key(fits.clone()));
        assert_eq!(printable(&fits), fits);
    }
}
