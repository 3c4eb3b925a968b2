//! Reads the fields of a config file, and collects every fault instead of stopping at the first.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::error::LoadError;

/// One object of a config file.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Path of the object inside the file with a dot at its end; empty for the file itself.
    prefix: String,
    faults: &'a Faults,
}

/// The faults of one file.
pub(crate) struct Faults {
    file: PathBuf,
    list: RefCell<Vec<LoadError>>,
}

impl Faults {
    pub(crate) fn new(file: PathBuf) -> Faults {
        Faults {
            file,
            list: RefCell::default(),
        }
    }

    pub(crate) fn push(&self, fault: LoadError) {
        self.list.borrow_mut().push(fault);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    pub(crate) fn into_list(self) -> Vec<LoadError> {
        self.list.into_inner()
    }

    /// Parses the file's text into an object. What is no object is a fault.
    pub(crate) fn parse(&self, text: &str) -> Option<Map<String, Value>> {
        match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Some(object),
            Ok(other) => {
                self.push(LoadError::Field {
                    file: self.file.clone(),
                    field: "the file".to_owned(),
                    found: shown(Some(&other)),
                    wanted: "an object".to_owned(),
                });
                None
            }
            Err(source) => {
                self.push(LoadError::Json {
                    file: self.file.clone(),
                    source,
                });
                None
            }
        }
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>, faults: &'a Faults) -> Fields<'a> {
        Fields {
            object,
            prefix: String::new(),
            faults,
        }
    }

    /// The fields of an object inside this one; a fault if it is none.
    pub(crate) fn inner(&self, field: &str) -> Option<Fields<'a>> {
        let inner = self.inner_if_present(field);
        if inner.is_none() && self.value(field).is_none() {
            self.fault(field, "an object");
        }
        inner
    }

    /// The fields of an object inside this one, if it is there and not null; a fault if it is another kind of value.
    pub(crate) fn inner_if_present(&self, field: &str) -> Option<Fields<'a>> {
        match self.value(field)? {
            Value::Object(object) => Some(Fields {
                object,
                prefix: format!("{}{field}.", self.prefix),
                faults: self.faults,
            }),
            _ => {
                self.fault(field, "an object");
                None
            }
        }
    }

    /// The field's value; null counts as absent, as it does in the reference.
    pub(crate) fn value(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// Names of all fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.object.keys().map(String::as_str)
    }

    /// A size that must be there. A fault gives the range's start, so that reading goes on.
    pub(crate) fn size(&self, field: &str, range: RangeInclusive<usize>) -> usize {
        let value = self
            .value(field)
            .and_then(Value::as_u64)
            .and_then(|value| usize::try_from(value).ok());
        match value.filter(|value| range.contains(value)) {
            Some(value) => value,
            None => {
                self.fault(
                    field,
                    &format!("a whole number of {} to {}", range.start(), range.end()),
                );
                *range.start()
            }
        }
    }

    /// A number that must be there, inside an open range. A fault gives the greatest value.
    pub(crate) fn number(&self, field: &str, above: f64, to: f64) -> f64 {
        match self
            .value(field)
            .and_then(Value::as_f64)
            .filter(|value| *value > above && *value <= to)
        {
            Some(value) => value,
            None => {
                self.fault(field, &format!("a number above {above}, at most {to}"));
                to
            }
        }
    }

    /// A flag, if it is there; a fault if it is no flag.
    pub(crate) fn flag(&self, field: &str) -> Option<bool> {
        let value = self.value(field)?;
        if value.as_bool().is_none() {
            self.fault(field, "true or false");
        }
        value.as_bool()
    }

    /// Checks a field that may be absent but has one servable value.
    pub(crate) fn only(&self, field: &str, wanted: &Value) {
        if self.value(field).is_some_and(|value| value != wanted) {
            self.fault(field, &format!("{wanted}, the only value that is served"));
        }
    }

    /// Notes that a field is not what was wanted.
    pub(crate) fn fault(&self, field: &str, wanted: &str) {
        self.faults.push(LoadError::Field {
            file: self.faults.file.clone(),
            field: format!("{}{field}", self.prefix),
            found: shown(self.object.get(field)),
            wanted: wanted.to_owned(),
        });
    }
}

/// A value as a message shows it: its JSON, cut to a line.
fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "not there".to_owned();
    };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text,
        Some((cut, _)) => format!("{}…", &text[..cut]),
    }
}

/// Characters of a value that a message shows.
const SHOWN_CHARS: usize = 60;
