//! The fields of a body of OpenAI's family, read one by one: each is as wanted, absent, or a fault that names it.
//!
//! `null` counts as absent, as OpenAI's own clients send it for what is not set. Fields that nobody asks for are ignored.

use std::ops::RangeInclusive;

use descant_decision::json::{self, Object};
use descant_decision::{Fault, FaultKind, Step, Value};

use crate::error::Refused;

/// A body, or an object inside one, and what is wrong with it.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    object: &'a Object,
    /// Where the object stands in the body.
    place: Vec<Step>,
    faults: Vec<Fault>,
}

/// Parses a body.
///
/// # Errors
/// [`Refused::Faults`] if it is no JSON object.
pub(crate) fn parse(body: &[u8]) -> Result<Object, Refused> {
    match json::parse(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Refused::Faults(vec![Fault {
            loc: Vec::new(),
            kind: FaultKind::DictType,
            msg: format!("wanted an object, found {}", other.kind()),
        }])),
        Err(error) => Err(Refused::Faults(vec![error.into()])),
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Object) -> Fields<'a> {
        Fields {
            object,
            place: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// # Errors
    /// [`Refused::Faults`] if anything was wrong.
    pub(crate) fn done(self) -> Result<(), Refused> {
        match self.faults.is_empty() {
            true => Ok(()),
            false => Err(Refused::Faults(self.faults)),
        }
    }

    /// A field that is there and not null.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Notes that a field is wrong.
    pub(crate) fn fault(&mut self, name: &str, kind: FaultKind, msg: impl Into<String>) {
        self.fault_at(vec![Step::key(name)], kind, msg);
    }

    /// Notes that something inside a field is wrong.
    pub(crate) fn fault_at(&mut self, loc: Vec<Step>, kind: FaultKind, msg: impl Into<String>) {
        let loc = self.place.iter().cloned().chain(loc).collect();
        self.faults.push(Fault {
            loc,
            kind,
            msg: msg.into(),
        });
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Option<bool> {
        self.read(name, FaultKind::BoolType, "a boolean", Value::as_bool)
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<&'a str> {
        self.read(name, FaultKind::StringType, "a string", Value::as_str)
    }

    /// A whole number in a range; written without a point or an exponent.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let wanted = match *range.end() {
            i64::MAX => format!("a whole number from {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        self.read(name, FaultKind::UnionType, &wanted, |value| {
            let number = value.as_number()?.text().parse().ok()?;
            range.contains(&number).then_some(number)
        })
    }

    /// A number in a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Option<f64> {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, FaultKind::UnionType, &wanted, |value| {
            let number = value.as_number()?.as_f64();
            range.contains(&number).then_some(number)
        })
    }

    pub(crate) fn array(&mut self, name: &str) -> Option<&'a [Value]> {
        self.read(name, FaultKind::ListType, "an array", Value::as_array)
    }

    pub(crate) fn object(&mut self, name: &str) -> Option<&'a Object> {
        self.read(name, FaultKind::DictType, "an object", Value::as_object)
    }

    /// Refuses a field that would change the answer if it were heeded, unless it asks for what is done anyway.
    pub(crate) fn unsupported(
        &mut self,
        name: &str,
        is_default: impl Fn(&Value) -> bool,
        why: &str,
    ) {
        if self.value(name).is_some_and(|value| !is_default(value)) {
            self.fault(name, FaultKind::NotSupported, why);
        }
    }

    /// Reads an object inside this one.
    pub(crate) fn inside<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Fields<'a>) -> T,
    ) -> Option<T> {
        let object = self.object(name)?;
        let mut inner = Fields {
            object,
            place: self
                .place
                .iter()
                .cloned()
                .chain([Step::key(name)])
                .collect(),
            faults: std::mem::take(&mut self.faults),
        };
        let value = read(&mut inner);
        self.faults = inner.faults;
        Some(value)
    }

    fn read<T>(
        &mut self,
        name: &str,
        kind: FaultKind,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name)?;
        let found = read(value);
        if found.is_none() {
            self.fault(
                name,
                kind,
                format!("wanted {wanted}, found {}", shown(value)),
            );
        }
        found
    }
}

/// A value as a message shows it: numbers as they are, for the rest its kind.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) if number.text().len() <= 24 => number.text().to_owned(),
        other => other.kind().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(body: &str, read: impl FnOnce(&mut Fields<'_>)) -> Vec<String> {
        let object = parse(body.as_bytes()).unwrap();
        let mut fields = Fields::new(&object);
        read(&mut fields);
        match fields.done() {
            Ok(()) => Vec::new(),
            Err(Refused::Faults(faults)) => faults.iter().map(ToString::to_string).collect(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn null_is_absent() {
        let found = faults(r#"{"a": null}"#, |fields| {
            assert_eq!(fields.boolean("a"), None);
            assert_eq!(fields.integer("b", 0..=1), None);
            fields.unsupported("a", |_| false, "no");
        });
        assert!(found.is_empty());
    }

    #[test]
    fn all_faults_are_reported_with_their_place() {
        let body = r#"{"b": 1, "i": 1.0, "n": 3, "t": [], "o": {"deep": "x"}, "tools": [1]}"#;
        let found = faults(body, |fields| {
            assert_eq!(fields.boolean("b"), None);
            assert_eq!(fields.integer("i", 1..=i64::MAX), None);
            assert_eq!(fields.number("n", 0.0..=2.0), None);
            assert_eq!(fields.text("t"), None);
            fields.inside("o", |inner| assert_eq!(inner.boolean("deep"), None));
            fields.unsupported("tools", |value| value.as_array() == Some(&[]), "not here");
        });
        assert_eq!(
            found,
            [
                "b: wanted a boolean, found 1",
                "i: wanted a whole number from 1, found 1.0",
                "n: wanted a number from 0 to 2, found 3",
                "t: wanted a string, found an array",
                "o.deep: wanted a boolean, found a string",
                "tools: not here",
            ]
        );
    }

    #[test]
    fn a_body_is_an_object() {
        for (body, message) in [("[]", "wanted an object, found an array"), ("{", "[1]: ")] {
            let refused = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
    }
}
