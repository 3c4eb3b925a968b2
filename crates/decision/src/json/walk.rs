//! Walks a value in the order of its text, without recursion.

use std::slice;

use super::{Number, Object, Value};

/// In which order an object's entries are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// As they stand.
    InOrder,
    /// Sorted by code point, which is the order of their UTF-8 bytes.
    Sorted,
}

/// One step of a walk: what the text of the value has next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit<'a> {
    Bool(bool),
    Comma,
    End { object: bool, empty: bool },
    Key(&'a str),
    Null,
    Number(&'a Number),
    Start { object: bool, empty: bool },
    String(&'a str),
}

/// The steps of a value's text.
pub(crate) struct Walk<'a> {
    keys: Keys,
    open: Vec<Level<'a>>,
    next: Next<'a>,
}

/// An array or object that the walk is inside of.
struct Level<'a> {
    rest: Rest<'a>,
    started: bool,
}

/// The entries of a level that are still to come.
enum Rest<'a> {
    Array(slice::Iter<'a, Value>),
    Object(slice::Iter<'a, (String, Value)>),
    Sorted(std::vec::IntoIter<&'a (String, Value)>),
}

/// What the walk visits next.
enum Next<'a> {
    /// The next entry of the innermost level, or its end.
    Entry,
    /// A key, then its value.
    Key(&'a str, &'a Value),
    /// A value.
    Value(&'a Value),
}

impl<'a> Walk<'a> {
    pub(crate) fn new(value: &'a Value, keys: Keys) -> Walk<'a> {
        Walk {
            keys,
            open: Vec::new(),
            next: Next::Value(value),
        }
    }

    /// Visits a scalar, or the start of a level.
    fn enter(&mut self, value: &'a Value) -> Visit<'a> {
        let (rest, object, empty) = match value {
            Value::Null => return Visit::Null,
            Value::Bool(b) => return Visit::Bool(*b),
            Value::Number(number) => return Visit::Number(number),
            Value::String(text) => return Visit::String(text),
            Value::Array(elements) => (Rest::Array(elements.iter()), false, elements.is_empty()),
            Value::Object(object) => (self.entries(object), true, object.is_empty()),
        };
        self.open.push(Level {
            rest,
            started: false,
        });
        Visit::Start { object, empty }
    }

    fn entries(&self, object: &'a Object) -> Rest<'a> {
        match self.keys {
            Keys::InOrder => Rest::Object(object.entries.iter()),
            Keys::Sorted => {
                let mut sorted: Vec<_> = object.entries.iter().collect();
                sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                Rest::Sorted(sorted.into_iter())
            }
        }
    }

    /// Goes on to the innermost level's next entry: gives the comma before it, or the end of the level. Before the first
    /// entry there is nothing.
    fn advance(&mut self) -> Option<Visit<'a>> {
        let level = self.open.last_mut()?;
        let Some((key, value)) = level.rest.next() else {
            let end = level.end();
            self.open.pop();
            return Some(end);
        };
        self.next = key.map_or(Next::Value(value), |key| Next::Key(key, value));
        let comma = std::mem::replace(&mut level.started, true);
        comma.then_some(Visit::Comma)
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Visit<'a>;

    fn next(&mut self) -> Option<Visit<'a>> {
        if let Next::Entry = self.next {
            let visit = self.advance();
            if visit.is_some() {
                return visit;
            }
        }
        match std::mem::replace(&mut self.next, Next::Entry) {
            Next::Entry => None,
            Next::Key(key, value) => {
                self.next = Next::Value(value);
                Some(Visit::Key(key))
            }
            Next::Value(value) => Some(self.enter(value)),
        }
    }
}

impl Level<'_> {
    fn end(&self) -> Visit<'static> {
        Visit::End {
            object: !matches!(self.rest, Rest::Array(_)),
            empty: !self.started,
        }
    }
}

impl<'a> Rest<'a> {
    fn next(&mut self) -> Option<(Option<&'a str>, &'a Value)> {
        let entry = match self {
            Rest::Array(elements) => return elements.next().map(|element| (None, element)),
            Rest::Object(entries) => entries.next()?,
            Rest::Sorted(entries) => entries.next()?,
        };
        Some((Some(&entry.0), &entry.1))
    }
}
