//! `POST /v1/decisions`: one path on which four kinds of clients send four kinds of bodies.
//!
//! | body | whose | reply |
//! |---|---|---|
//! | `questions` is an object | OpenRouter, Venice: System One | System One |
//! | `questions` is a list of items with `id` and `question`, or of type `yes_no` | SGLang | SGLang |
//! | anything else | OpenAI | OpenAI |
//!
//! A body tells by its shape whose it is, and its faults are then told in the shape that its sender reads.

mod openai;
mod sglang;

use descant_decision::{Answers, Fault, FaultKind, Part, Step, Value};

use crate::error::{Family, Refusal, Refused};
use crate::systemone::{Asking, Desk, Reply};

/// A request in one of the shapes.
#[derive(Debug)]
pub(crate) struct Deciding {
    /// What is decided.
    pub(crate) asking: Asking,
    shape: Shape,
}

/// What a reply needs to know of its request beside the record.
#[derive(Debug)]
enum Shape {
    OpenAi(openai::Form),
    SgLang,
    SystemOne,
}

/// Reads a body of any shape.
///
/// # Errors
/// As [`Desk::read`], for the family of clients whose shape the body has.
pub(crate) fn read(desk: &Desk, body: &Value, parts: &[Part<'_>]) -> Result<Deciding, Refusal> {
    let deciding = |asking, shape| Deciding { asking, shape };
    match shape_of(body) {
        ShapeName::SystemOne => desk
            .read_value(body, parts)
            .map(|asking| deciding(asking, Shape::SystemOne))
            .map_err(|refused| refused.told_to(Family::SystemOne)),
        ShapeName::SgLang => sglang::read(desk, body)
            .map(|asking| deciding(asking, Shape::SgLang))
            .map_err(|refused| refused.told_to(Family::OpenAi)),
        ShapeName::OpenAi => openai::read(desk, body)
            .map(|(asking, form)| deciding(asking, Shape::OpenAi(form)))
            .map_err(|refused| refused.told_to(Family::OpenAi)),
    }
}

impl Deciding {
    /// Who is told of a refusal.
    pub(crate) fn family(&self) -> Family {
        match self.shape {
            Shape::OpenAi(_) | Shape::SgLang => Family::OpenAi,
            Shape::SystemOne => Family::SystemOne,
        }
    }

    /// The reply.
    pub(crate) fn reply(&self, answers: &Answers, cached_tokens: usize) -> Reply {
        let model = self.asking.model();
        Reply::new(match &self.shape {
            Shape::OpenAi(form) => form.reply(model, answers, cached_tokens),
            Shape::SgLang => sglang::reply(model, answers),
            Shape::SystemOne => answers.to_value(model),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShapeName {
    OpenAi,
    SgLang,
    SystemOne,
}

fn shape_of(body: &Value) -> ShapeName {
    let sglang = |question: &Value| {
        let has = |key| question.get(key).is_some();
        let yes_no = question.get("type").and_then(Value::as_str) == Some("yes_no");
        (has("id") && has("question")) || yes_no
    };
    match body.get("questions") {
        Some(Value::Object(_)) if body.get("input").is_none() => ShapeName::SystemOne,
        Some(Value::Array(questions)) if questions.iter().any(sglang) => ShapeName::SgLang,
        _ => ShapeName::OpenAi,
    }
}

/// Notes faults on the way through a body.
#[derive(Debug, Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn note(&mut self, loc: &[Step], kind: FaultKind, msg: impl Into<String>) {
        if self.0.len() < descant_decision::FAULTS_MAX {
            let (loc, msg) = (loc.to_vec(), msg.into());
            self.0.push(Fault { loc, kind, msg });
        }
    }

    /// Notes that a value is of another kind than wanted.
    fn wanted(&mut self, loc: &[Step], what: &str, found: Option<&Value>) {
        match found {
            Some(found) => {
                let msg = format!("wanted {what}, found {}", found.kind());
                self.note(loc, FaultKind::ValueError, msg);
            }
            None => self.note(loc, FaultKind::Missing, format!("{what} is required")),
        }
    }

    /// The text that must be under a key.
    fn text<'v>(&mut self, loc: &[Step], within: &'v Value, key: &str) -> Option<&'v str> {
        let found = within.get(key);
        let text = found.and_then(Value::as_str);
        if text.is_none() {
            self.wanted(&under(loc, key), "a string", found);
        }
        text
    }

    /// The list that must be under a key, with at least `min` and at most `max` entries.
    fn list<'v>(
        &mut self,
        loc: &[Step],
        within: &'v Value,
        key: &str,
        (min, max): (usize, usize),
    ) -> Option<&'v [Value]> {
        let (found, loc) = (within.get(key), under(loc, key));
        let Some(list) = found.and_then(Value::as_array) else {
            self.wanted(&loc, "a list", found);
            return None;
        };
        if list.len() < min {
            let msg = format!("wanted at least {min} entries, found {}", list.len());
            self.note(&loc, FaultKind::TooShort, msg);
        }
        if list.len() > max {
            let msg = format!("wanted at most {max} entries, found {}", list.len());
            self.note(&loc, FaultKind::TooLong, msg);
            return None;
        }
        Some(list)
    }

    /// The model's name, if there is one.
    fn model(&mut self, body: &Value) -> Option<String> {
        let model = body.get("model").filter(|model| !model.is_null())?;
        if model.as_str().is_none() {
            self.wanted(&[Step::key("model")], "a string", Some(model));
        }
        model.as_str().map(str::to_owned)
    }

    /// What was read, unless there are faults.
    fn or<T>(self, read: Option<T>) -> Result<T, Refused> {
        match read {
            Some(read) if self.0.is_empty() => Ok(read),
            _ => Err(Refused::Faults(self.0)),
        }
    }
}

/// The path of a value under a key.
fn under(loc: &[Step], key: &str) -> Vec<Step> {
    [loc, &[Step::key(key)]].concat()
}

/// The path of an entry of a list.
fn entry(loc: &[Step], index: usize) -> Vec<Step> {
    [loc, &[Step::Index(index)]].concat()
}

/// A name that none of `taken` has, as near to `wanted` as can be.
fn free(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
    if !taken(wanted) {
        return wanted.to_owned();
    }
    let numbered = (2..).map(|number: u64| format!("{wanted} ({number})"));
    let mut free = numbered.filter(|name| !taken(name));
    free.next().expect("there are more numbers than names")
}

#[cfg(test)]
mod tests {
    use descant_decision::json::parse_str;

    use super::*;

    #[test]
    fn a_body_tells_by_its_shape_whose_it_is() {
        for (body, wanted) in [
            (r#"{"state":1,"questions":{"a":{}}}"#, ShapeName::SystemOne),
            (r#"{"questions":{}}"#, ShapeName::SystemOne),
            (r#"{"input":"x","questions":{}}"#, ShapeName::OpenAi),
            (
                r#"{"input":"x","questions":[{"id":"a","question":"y?","type":"choice"}]}"#,
                ShapeName::SgLang,
            ),
            (
                r#"{"input":"x","questions":[7,{"type":"yes_no"}]}"#,
                ShapeName::SgLang,
            ),
            (
                r#"{"input":"x","questions":[{"type":"predicate"}]}"#,
                ShapeName::OpenAi,
            ),
            (r#"{"input":"x","questions":[]}"#, ShapeName::OpenAi),
            ("{}", ShapeName::OpenAi),
            ("7", ShapeName::OpenAi),
        ] {
            assert_eq!(shape_of(&parse_str(body).unwrap()), wanted, "{body}");
        }
    }

    #[test]
    fn a_taken_name_gets_a_number() {
        let taken = |name: &str| matches!(name, "a" | "a (2)");
        assert_eq!(free("b", taken), "b");
        assert_eq!(free("a", taken), "a (3)");
    }
}
