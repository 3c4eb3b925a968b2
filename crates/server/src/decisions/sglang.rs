//! SGLang's Decisions: a list of questions with ids about an input of any JSON, which forbids keys it does not know.

use std::collections::BTreeSet;

use descant_decision::json::Object;
use descant_decision::{
    Answer, Answers, FaultKind, Kind, Options, Profile, Question, Record, Step, Value, Verdict,
};

use super::{Faults, entry, under};
use crate::error::Refused;
use crate::systemone::{Asking, Desk};

/// The version of the wire format, in requests and replies.
const FORMAT_VERSION: u32 = 1;

/// Reads a body.
///
/// # Errors
/// All its faults, an unknown model, or a prompt that does not fit.
pub(super) fn read(desk: &Desk, body: &Value) -> Result<Asking, Refused> {
    let mut faults = Faults::default();
    only(&mut faults, &[], body, BODY_KEYS);
    let model = faults.model(body);
    settings(&mut faults, body);
    let state = input(&mut faults, body);
    let questions = questions(&mut faults, body, desk);
    let (state, questions) = faults.or(state.zip(questions))?;
    desk.ask(Record::new(model, state, questions), Profile::TypeSafe)
}

const BODY_KEYS: &[&str] = &[
    "chat_template_kwargs",
    "images",
    "input",
    "model",
    "prompt_format_version",
    "questions",
    "return_prompt_token_ids",
    "temperature",
];

/// Refuses keys that are not known.
fn only(faults: &mut Faults, loc: &[Step], value: &Value, known: &[&str]) {
    let Some(object) = value.as_object() else {
        return;
    };
    for (key, _) in object.iter().filter(|(key, _)| !known.contains(key)) {
        faults.note(
            &under(loc, key),
            FaultKind::ExtraForbidden,
            "this key is not known",
        );
    }
}

/// Settings of a language model that scores options by their tokens: a joint head has none of them, so only what changes
/// nothing is taken.
fn settings(faults: &mut Faults, body: &Value) {
    let is = |key: &str, nothing: &dyn Fn(&Value) -> bool| body.get(key).is_none_or(nothing);
    let number = |value: &Value, wanted: f64| {
        let found = value
            .as_number()
            .map(descant_decision::json::Number::as_f64);
        found.is_some_and(|found| (found - wanted).abs() < f64::EPSILON)
    };
    let empty = |value: &Value| value.as_object().is_some_and(Object::is_empty);
    let none = |value: &Value| value.as_array().is_some_and(<[Value]>::is_empty);
    for (key, fits) in [
        (
            "chat_template_kwargs",
            is("chat_template_kwargs", &|v| v.is_null() || empty(v)),
        ),
        ("images", is("images", &|v| v.is_null() || none(v))),
        (
            "prompt_format_version",
            is("prompt_format_version", &|v| {
                v.is_null() || number(v, f64::from(FORMAT_VERSION))
            }),
        ),
        (
            "return_prompt_token_ids",
            is("return_prompt_token_ids", &|v| {
                v.is_null() || v.as_bool() == Some(false)
            }),
        ),
        (
            "temperature",
            is("temperature", &|v| v.is_null() || number(v, 1.0)),
        ),
    ] {
        if !fits {
            let msg = "this is not supported for a model with a joint head";
            faults.note(&[Step::key(key)], FaultKind::NotSupported, msg);
        }
    }
}

fn input(faults: &mut Faults, body: &Value) -> Option<Value> {
    let loc = [Step::key("input")];
    match body.get("input") {
        Some(Value::String(text)) if text.trim().is_empty() => {
            faults.note(&loc, FaultKind::StringTooShort, "input must not be blank");
            None
        }
        Some(input @ (Value::Array(_) | Value::Object(_) | Value::String(_))) => {
            Some(input.clone())
        }
        found => {
            faults.wanted(&loc, "a string, an object or an array", found);
            None
        }
    }
}

fn questions(faults: &mut Faults, body: &Value, desk: &Desk) -> Option<Vec<Question>> {
    let list = faults.list(&[], body, "questions", (1, desk.limits().questions_max))?;
    let (mut ids, mut read) = (BTreeSet::new(), Vec::with_capacity(list.len()));
    for (index, found) in list.iter().enumerate() {
        let loc = entry(&[Step::key("questions")], index);
        let question = question(faults, &loc, found, desk);
        if let Some(question) = &question
            && !ids.insert(question.id().to_owned())
        {
            faults.note(
                &under(&loc, "id"),
                FaultKind::ValueError,
                "two questions have this id",
            );
        }
        read.push(question);
    }
    let read: Vec<Question> = read.into_iter().collect::<Option<_>>()?;
    (!read.is_empty()).then_some(read)
}

fn question(faults: &mut Faults, loc: &[Step], question: &Value, desk: &Desk) -> Option<Question> {
    if question.as_object().is_none() {
        faults.wanted(loc, "an object", Some(question));
        return None;
    }
    let id = filled(faults, loc, question, "id");
    let asked = filled(faults, loc, question, "question");
    let read = match question.get("type").map(Value::as_str) {
        Some(Some("choice")) => choice(faults, loc, question, desk),
        Some(Some("score")) => score(faults, loc, question, desk),
        Some(Some("yes_no")) => yes_no(faults, loc, question),
        _ => {
            let msg = "a type must be choice, score or yes_no";
            faults.note(&under(loc, "type"), FaultKind::UnionTagInvalid, msg);
            None
        }
    };
    Some(Question::new(id?.to_owned(), asked?.into(), read?))
}

/// The text, not empty, that must be under a key.
fn filled<'v>(faults: &mut Faults, loc: &[Step], within: &'v Value, key: &str) -> Option<&'v str> {
    let text = faults.text(loc, within, key)?;
    if text.is_empty() {
        let msg = "this must not be empty";
        faults.note(&under(loc, key), FaultKind::StringTooShort, msg);
        return None;
    }
    Some(text)
}

fn choice(faults: &mut Faults, loc: &[Step], question: &Value, desk: &Desk) -> Option<Options> {
    only(
        faults,
        loc,
        question,
        &["id", "options", "question", "type"],
    );
    let list = faults.list(loc, question, "options", (1, desk.limits().options_max))?;
    let loc = under(loc, "options");
    let (mut names, mut read) = (BTreeSet::new(), Vec::with_capacity(list.len()));
    for (index, found) in list.iter().enumerate() {
        let loc = entry(&loc, index);
        only(faults, &loc, found, &["description", "name"]);
        let name = filled(faults, &loc, found, "name");
        if name.is_some_and(|name| !names.insert(name)) {
            faults.note(
                &under(&loc, "name"),
                FaultKind::ValueError,
                "two options have this name",
            );
        }
        let text = optional(faults, &loc, found, "description");
        read.push(name.map(|name| (name.to_owned(), text.unwrap_or(Value::Null))));
    }
    let read: Vec<(String, Value)> = read.into_iter().collect::<Option<_>>()?;
    (!read.is_empty()).then_some(Options::Choice(read))
}

fn score(faults: &mut Faults, loc: &[Step], question: &Value, desk: &Desk) -> Option<Options> {
    only(faults, loc, question, &["id", "levels", "question", "type"]);
    let list = faults.list(loc, question, "levels", (1, desk.limits().levels_max))?;
    let loc = under(loc, "levels");
    let mut seen = BTreeSet::new();
    for (index, level) in list.iter().enumerate() {
        let loc = entry(&loc, index);
        match level.as_str().filter(|text| !text.trim().is_empty()) {
            Some(text) if seen.insert(text) => {}
            Some(_) => faults.note(&loc, FaultKind::ValueError, "two levels have this text"),
            None => faults.wanted(&loc, "a text that is not blank", Some(level)),
        }
    }
    (!list.is_empty()).then_some(Options::Score(list.to_vec()))
}

fn yes_no(faults: &mut Faults, loc: &[Step], question: &Value) -> Option<Options> {
    only(
        faults,
        loc,
        question,
        &["id", "no", "question", "type", "yes"],
    );
    let yes = optional(faults, loc, question, "yes");
    let no = optional(faults, loc, question, "no");
    Some(Options::noul(yes, no))
}

/// A text that may be absent or null.
fn optional(faults: &mut Faults, loc: &[Step], within: &Value, key: &str) -> Option<Value> {
    let text = within.get(key).filter(|text| !text.is_null())?;
    if text.as_str().is_none() {
        faults.wanted(&under(loc, key), "a string", Some(text));
    }
    Some(text.clone())
}

/// The reply body. All of a question's probability is on its options, so that `label_mass` is 1.
pub(super) fn reply(model: &str, answers: &Answers) -> Value {
    let by_id: Object = answers
        .answers
        .iter()
        .map(|answer| (answer.id.as_str(), answer_value(answer)))
        .collect();
    let tokens = answers.input_tokens;
    Object::new()
        .with("object", "decisions")
        .with("model", model)
        .with("prompt_format_version", FORMAT_VERSION)
        .with("answers", by_id)
        .with(
            "usage",
            Object::new()
                .with("prompt_tokens", tokens)
                .with("completion_tokens", 0_u32)
                .with("total_tokens", tokens),
        )
        .into()
}

fn answer_value(answer: &Answer) -> Object {
    let head = |kind: &str, probabilities: Object| {
        Object::new()
            .with("type", kind)
            .with("probabilities", probabilities)
            .with("label_mass", Value::float(1.0))
    };
    match &answer.verdict {
        Verdict::Choice {
            choice,
            probabilities,
            ..
        } => {
            let named = probabilities
                .iter()
                .map(|(name, p)| (name.as_str(), Value::float(*p)));
            head(Kind::Choice.name(), named.collect()).with("choice", choice.as_str())
        }
        Verdict::Noul { noul } => head(
            "yes_no",
            Object::new()
                .with("yes", Value::float(*noul))
                .with("no", Value::float(1.0 - noul)),
        ),
        Verdict::Score {
            score,
            legend,
            probabilities,
            ..
        } => {
            let levels = legend.iter().zip(probabilities).enumerate();
            let named = levels.map(|(index, (level, p))| {
                let name = level
                    .as_str()
                    .map_or_else(|| index.to_string(), str::to_owned);
                (name, Value::float(*p))
            });
            head(Kind::Score.name(), named.collect()).with("score", Value::float(*score))
        }
    }
}
