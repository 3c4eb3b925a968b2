//! Walks a value in the order of its text, without recursion.

use std::slice;

use super::{Number, Value};

/// In which order an object's entries are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// As they stand.
    InOrder,
    /// Sorted by code point, which is the order of their UTF-8 bytes.
    Sorted,
}

/// One step of a walk: what the text of the value has next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visit<'a> {
    Start { object: bool, empty: bool },
    End { object: bool, empty: bool },
    Comma,
    Key(&'a str),
    Null,
    Bool(bool),
    Number(&'a Number),
    String(&'a str),
}

/// The rest of an array or object that the walk is inside of.
enum Frame<'a> {
    Array(slice::Iter<'a, Value>),
    Object(slice::Iter<'a, (String, Value)>),
    Sorted(std::vec::IntoIter<&'a (String, Value)>),
}

impl<'a> Frame<'a> {
    fn next(&mut self) -> Option<(Option<&'a str>, &'a Value)> {
        let entry = match self {
            Frame::Array(elements) => return elements.next().map(|element| (None, element)),
            Frame::Object(entries) => entries.next()?,
            Frame::Sorted(entries) => entries.next()?,
        };
        Some((Some(&entry.0), &entry.1))
    }

    fn is_object(&self) -> bool {
        !matches!(self, Frame::Array(_))
    }
}

/// Calls `visit` for every step of `value`'s text.
pub(crate) fn walk<'a>(value: &'a Value, keys: Keys, mut visit: impl FnMut(Visit<'a>)) {
    let mut frames = Vec::new();
    enter(value, keys, &mut frames, &mut visit);
    while let Some((frame, started)) = frames.last_mut() {
        let Some((key, value)) = frame.next() else {
            visit(Visit::End {
                object: frame.is_object(),
                empty: !*started,
            });
            frames.pop();
            continue;
        };
        if *started {
            visit(Visit::Comma);
        }
        *started = true;
        if let Some(key) = key {
            visit(Visit::Key(key));
        }
        enter(value, keys, &mut frames, &mut visit);
    }
}

/// Visits a scalar, or the start of an array or object, whose entries come as the frame is taken up.
fn enter<'a>(
    value: &'a Value,
    keys: Keys,
    frames: &mut Vec<(Frame<'a>, bool)>,
    visit: &mut impl FnMut(Visit<'a>),
) {
    let frame = match value {
        Value::Null => return visit(Visit::Null),
        Value::Bool(b) => return visit(Visit::Bool(*b)),
        Value::Number(number) => return visit(Visit::Number(number)),
        Value::String(text) => return visit(Visit::String(text)),
        Value::Array(elements) => {
            visit(Visit::Start {
                object: false,
                empty: elements.is_empty(),
            });
            Frame::Array(elements.iter())
        }
        Value::Object(object) => {
            visit(Visit::Start {
                object: true,
                empty: object.is_empty(),
            });
            object_frame(&object.entries, keys)
        }
    };
    frames.push((frame, false));
}

fn object_frame(entries: &[(String, Value)], keys: Keys) -> Frame<'_> {
    match keys {
        Keys::InOrder => Frame::Object(entries.iter()),
        Keys::Sorted => {
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            Frame::Sorted(sorted.into_iter())
        }
    }
}
