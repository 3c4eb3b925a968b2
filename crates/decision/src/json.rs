//! JSON: values that keep what was sent, a strict parser and a writer.
//!
//! A number keeps its text, because the prompt spells it as Python would and a legend echoes it as it came. An
//! object keeps the order of its keys, because questions and options are answered in request order. Of a key that
//! is given twice, the last value stands at the first position, as in a Python dict.

use std::fmt;

mod builder;
mod parse;
mod walk;
mod write;

pub use parse::{NESTING_MAX, ParseError, ParseErrorKind, VALUES_MAX, parse, parse_str};
pub use write::{to_json, to_json_pretty};

use builder::rebuild;
pub(crate) use walk::{Keys, Walk};
pub(crate) use write::write_visit;

/// A JSON value. Reading, writing, cloning and comparing need no stack; dropping goes down level by level, of which a
/// parsed value has at most [`NESTING_MAX`].
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, with its text.
    Number(Number),
    /// A string, escapes resolved.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object, keys in order.
    Object(Object),
}

impl Value {
    /// A number from a finite double, spelled as Python's `repr` spells it (`0.95`, `1.0`, `1e-05`).
    ///
    /// # Panics
    /// If `x` is not finite: JSON has no spelling for it.
    pub fn float(x: f64) -> Value {
        Value::Number(Number::float(x))
    }

    /// The value under `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_object()?.get(key)
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The boolean, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The number, if this is one.
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Value::Number(n) => Some(n),
            _ => None,
        }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(a) => Some(a),
            _ => None,
        }
    }

    /// The object, if this is one.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(o) => Some(o),
            _ => None,
        }
    }

    /// What kind of value this is, with its article, for messages: `an array`, `null`.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        }
    }
}

impl Clone for Value {
    fn clone(&self) -> Value {
        rebuild(Walk::new(self, Keys::InOrder))
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        Walk::new(self, Keys::InOrder).eq(Walk::new(other, Keys::InOrder))
    }
}

impl Eq for Value {}

/// Writes compact JSON text, see [`to_json`].
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_json(self))
    }
}

/// The same as [`fmt::Display`]: a derived one would go down level by level with wide stack frames.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Value {
        Value::String(s.to_owned())
    }
}

impl From<String> for Value {
    fn from(s: String) -> Value {
        Value::String(s)
    }
}

impl From<Vec<Value>> for Value {
    fn from(elements: Vec<Value>) -> Value {
        Value::Array(elements)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Object(object)
    }
}

/// `null` where there is nothing.
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

macro_rules! value_from_integers {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Value {
            fn from(n: $integer) -> Value {
                Value::Number(Number { text: n.to_string().into_boxed_str() })
            }
        }
    )*};
}

value_from_integers!(i32 i64 u16 u32 u64 usize);

/// Collects into an array.
impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Value {
        Value::Array(elements.into_iter().map(Into::into).collect())
    }
}

/// A JSON number: its text as sent. Two numbers are equal if their texts are.
#[derive(Clone, PartialEq, Eq)]
pub struct Number {
    text: Box<str>,
}

impl Number {
    /// A number from a finite double, spelled as Python's `repr` spells it.
    ///
    /// # Panics
    /// If `x` is not finite.
    pub fn float(x: f64) -> Number {
        assert!(x.is_finite(), "JSON has no number for {x}");
        Number {
            text: crate::float::repr(x).into_boxed_str(),
        }
    }

    /// A number from text that the parser has checked against JSON's grammar.
    fn from_checked(text: &str) -> Number {
        Number { text: text.into() }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is written as an integer: no point, no exponent.
    pub fn is_integer(&self) -> bool {
        !self.text.contains(['.', 'e', 'E'])
    }

    /// The nearest double. A parsed float is finite; an integer of more than 308 digits gives infinity.
    pub fn as_f64(&self) -> f64 {
        self.text
            .parse()
            .expect("JSON's grammar of numbers is a part of f64's")
    }

    /// The value, if it is written as an integer and fits.
    pub fn as_u64(&self) -> Option<u64> {
        self.text.parse().ok()
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A JSON object: entries in order, each key once. Two objects are equal if their entries are, in the same order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Object {
    entries: Vec<(String, Value)>,
}

impl Object {
    /// An empty object.
    pub fn new() -> Object {
        Object::default()
    }

    /// This object with an entry more, for building replies in one expression. The same as [`insert`](Self::insert).
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Object {
        self.insert(key, value);
        self
    }

    /// Puts a value under a key: at the end, or in the place of the key's former value. Looks at every entry; to build
    /// an object of many entries, collect them.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.entries.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.entries.push((key, value)),
        }
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }
}

/// Of a key that comes twice, the last value stands at the first position.
impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Object {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Object {
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        keep_last_at_first(&mut entries);
        Object { entries }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Leaves each key once: with the last of its values, at the first of its positions. Sorts positions by key rather
/// than hashing keys, so that no choice of keys makes it quadratic.
fn keep_last_at_first(entries: &mut Vec<(String, Value)>) {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| entries[a].0.cmp(&entries[b].0)); // stable: equal keys stay in position order
    let mut dropped = vec![false; entries.len()];
    let mut first = 0;
    for position in order {
        if position != first && entries[position].0 == entries[first].0 {
            entries[first].1 = std::mem::replace(&mut entries[position].1, Value::Null);
            dropped[position] = true;
        } else {
            first = position;
        }
    }
    if dropped.contains(&true) {
        let mut dropped = dropped.into_iter();
        entries.retain(|_| !dropped.next().expect("as many marks as entries"));
    }
}
