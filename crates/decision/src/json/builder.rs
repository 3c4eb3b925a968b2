//! Builds a value in the order of its text, without recursion.

use super::walk::{Visit, Walk};
use super::{Object, Value};

/// Builds a value from its outside in.
#[derive(Default)]
pub(crate) struct Builder {
    open: Vec<Frame>,
    root: Option<Value>,
}

/// An array or object that is not complete.
pub(crate) enum Frame {
    Array(Vec<Value>),
    Object {
        entries: Vec<(String, Value)>,
        /// The key of the value to come.
        key: String,
    },
}

impl Builder {
    /// The levels that are open, outermost first.
    pub(crate) fn open(&self) -> &[Frame] {
        &self.open
    }

    /// The innermost level that is open.
    pub(crate) fn innermost(&mut self) -> Option<&mut Frame> {
        self.open.last_mut()
    }

    /// Opens a level inside the innermost.
    pub(crate) fn start(&mut self, object: bool) {
        self.open.push(match object {
            false => Frame::Array(Vec::new()),
            true => Frame::Object {
                entries: Vec::new(),
                key: String::new(),
            },
        });
    }

    /// Sets the key of the value to come.
    pub(crate) fn key(&mut self, next: String) {
        if let Some(Frame::Object { key, .. }) = self.open.last_mut() {
            *key = next;
        }
    }

    /// Puts a value at the end of the innermost level.
    pub(crate) fn put(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Frame::Array(elements)) => elements.push(value),
            Some(Frame::Object { entries, key }) => entries.push((std::mem::take(key), value)),
        }
    }

    /// Completes the innermost level.
    pub(crate) fn end(&mut self) {
        match self.open.pop() {
            None => {}
            Some(Frame::Array(elements)) => self.put(Value::Array(elements)),
            Some(Frame::Object { entries, .. }) => self.put(Value::Object(Object { entries })),
        }
    }

    /// The value, once every level is complete.
    pub(crate) fn take(&mut self) -> Option<Value> {
        self.root.take()
    }
}

/// The value that a walk goes through.
pub(crate) fn rebuild(walk: Walk<'_>) -> Value {
    let mut builder = Builder::default();
    for visit in walk {
        match visit {
            Visit::Bool(b) => builder.put(Value::Bool(b)),
            Visit::Comma => {}
            Visit::End { .. } => builder.end(),
            Visit::Key(key) => builder.key(key.to_owned()),
            Visit::Null => builder.put(Value::Null),
            Visit::Number(number) => builder.put(Value::Number(number.clone())),
            Visit::Start { object, .. } => builder.start(object),
            Visit::String(text) => builder.put(Value::String(text.to_owned())),
        }
    }
    builder.take().expect("a walk goes through a whole value")
}
