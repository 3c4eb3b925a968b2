//! OpenAI's Decisions: a list of questions about an input of messages.
//!
//! | OpenAI | record |
//! |---|---|
//! | predicate | noul |
//! | choice with values | choice; `true` and `false` by these names, the typed value in the reply |
//! | score with levels | score; a level with a description is an object of both |
//! | `name`, or `question_1` and so on | id |
//! | a text, or one user message of text alone | the state as text |
//! | other inputs | a list of messages and calls, texts joined, JSON in its place |

use std::collections::BTreeSet;

use descant_decision::json::Object;
use descant_decision::{
    Answer, Answers, FaultKind, Options, Profile, Question, Record, Step, Value, Verdict,
};

use super::{Faults, entry, free, under};
use crate::error::Refused;
use crate::systemone::{Asking, Desk};

/// Most questions of a request.
const QUESTIONS_MAX: usize = 400;

/// What a reply needs of its request: a line for each question.
#[derive(Debug)]
pub(super) struct Form(Vec<Line>);

#[derive(Debug)]
struct Line {
    /// The name as sent.
    name: Option<String>,
    kind: LineKind,
}

#[derive(Debug)]
enum LineKind {
    /// The values as sent, strings or booleans.
    Choice(Vec<Value>),
    Predicate,
    /// The labels as sent.
    Score(Vec<String>),
}

/// Reads a body.
///
/// # Errors
/// All its faults, an unknown model, or a prompt that does not fit.
pub(super) fn read(desk: &Desk, body: &Value) -> Result<(Asking, Form), Refused> {
    let mut faults = Faults::default();
    let model = faults.model(body);
    let state = input(&mut faults, body);
    let questions = questions(&mut faults, body, desk);
    let (state, (questions, form)) = faults.or(state.zip(questions))?;
    let record = Record::new(model, state, questions);
    Ok((desk.ask(record, Profile::TypeSafe)?, form))
}

// The input.

/// The state that an input is.
fn input(faults: &mut Faults, body: &Value) -> Option<Value> {
    let loc = [Step::key("input")];
    match body.get("input") {
        Some(Value::String(text)) => Some(text.as_str().into()),
        Some(Value::Array(items)) if !items.is_empty() => messages(faults, &loc, items),
        Some(Value::Array(_)) => {
            faults.note(&loc, FaultKind::TooShort, "input must not be empty");
            None
        }
        found => {
            faults.wanted(&loc, "a string or a list of messages", found);
            None
        }
    }
}

fn messages(faults: &mut Faults, loc: &[Step], items: &[Value]) -> Option<Value> {
    let mut calls = BTreeSet::new();
    let mut states = Vec::with_capacity(items.len());
    for (index, found) in items.iter().enumerate() {
        states.push(item(faults, &entry(loc, index), found, &mut calls));
    }
    let states: Vec<Object> = states.into_iter().collect::<Option<_>>()?;
    if let [only] = states.as_slice()
        && only.get("role").and_then(Value::as_str) == Some("user")
        && let Some(text @ Value::String(_)) = only.get("content")
    {
        return Some(text.clone());
    }
    Some(states.into_iter().collect())
}

/// One item of the input: a message, a call, or the output of a call.
fn item<'v>(
    faults: &mut Faults,
    loc: &[Step],
    item: &'v Value,
    calls: &mut BTreeSet<&'v str>,
) -> Option<Object> {
    if item.as_object().is_none() {
        faults.wanted(loc, "an object", Some(item));
        return None;
    }
    let kind = match item.get("type") {
        None => "message",
        Some(kind) => match kind.as_str() {
            Some(kind) => kind,
            None => {
                faults.wanted(&under(loc, "type"), "a string", Some(kind));
                return None;
            }
        },
    };
    match kind {
        "message" => message(faults, loc, item),
        "function_call" => call(faults, loc, item, "arguments", calls),
        "custom_tool_call" => call(faults, loc, item, "input", calls),
        "function_call_output" | "custom_tool_call_output" => output(faults, loc, item, calls),
        _ => {
            let msg = "a type must be message, function_call, function_call_output, custom_tool_call or \
                       custom_tool_call_output";
            faults.note(&under(loc, "type"), FaultKind::UnionTagInvalid, msg);
            None
        }
    }
}

fn message(faults: &mut Faults, loc: &[Step], item: &Value) -> Option<Object> {
    let role = faults.text(loc, item, "role")?;
    let parts: &[&str] = match role {
        "assistant" => &["output_text", "refusal"],
        "developer" | "system" => &["input_text"],
        "user" => &["input_text", "input_image", "input_json"],
        _ => {
            let msg = "a role must be user, developer, system or assistant";
            faults.note(&under(loc, "role"), FaultKind::ValueError, msg);
            return None;
        }
    };
    let content = content(faults, &under(loc, "content"), item.get("content"), parts)?;
    Some(Object::new().with("role", role).with("content", content))
}

fn call<'v>(
    faults: &mut Faults,
    loc: &[Step],
    item: &'v Value,
    what: &str,
    calls: &mut BTreeSet<&'v str>,
) -> Option<Object> {
    let name = faults.text(loc, item, "name");
    let given = faults.text(loc, item, what);
    let id = faults.text(loc, item, "call_id")?;
    calls.insert(id);
    Some(
        Object::new()
            .with("call", name?)
            .with("call_id", id)
            .with(what, given?),
    )
}

fn output(
    faults: &mut Faults,
    loc: &[Step],
    item: &Value,
    calls: &BTreeSet<&str>,
) -> Option<Object> {
    let id = faults.text(loc, item, "call_id")?;
    if !calls.contains(id) {
        let msg = "no call before it has this id";
        faults.note(&under(loc, "call_id"), FaultKind::ValueError, msg);
    }
    let parts = ["input_text", "input_image"];
    let output = content(faults, &under(loc, "output"), item.get("output"), &parts)?;
    Some(Object::new().with("output_of", id).with("output", output))
}

/// A text or a list of parts of the allowed types: texts alone become one text, one part of JSON its data, and a mixture a
/// list.
fn content(
    faults: &mut Faults,
    loc: &[Step],
    content: Option<&Value>,
    allowed: &[&str],
) -> Option<Value> {
    let parts = match content {
        Some(Value::String(text)) => return Some(text.as_str().into()),
        Some(Value::Array(parts)) if !parts.is_empty() => parts,
        Some(Value::Array(_)) => {
            faults.note(loc, FaultKind::TooShort, "content must not be empty");
            return None;
        }
        found => {
            faults.wanted(loc, "a string or a list of parts", found);
            return None;
        }
    };
    let read: Vec<Option<Value>> = parts
        .iter()
        .enumerate()
        .map(|(index, found)| part(faults, &entry(loc, index), found, allowed))
        .collect();
    let mut read: Vec<Value> = read.into_iter().collect::<Option<_>>()?;
    let texts: Option<Vec<&str>> = read.iter().map(Value::as_str).collect();
    if let Some(texts) = texts {
        return Some(texts.join("\n").into());
    }
    match read.len() {
        1 => read.pop(),
        _ => Some(Value::Array(read)),
    }
}

fn part(faults: &mut Faults, loc: &[Step], part: &Value, allowed: &[&str]) -> Option<Value> {
    let kind = part.get("type").and_then(Value::as_str);
    let Some(kind) = kind.filter(|kind| allowed.contains(kind)) else {
        let msg = format!("a type must be {}", allowed.join(" or "));
        faults.note(&under(loc, "type"), FaultKind::UnionTagInvalid, msg);
        return None;
    };
    match kind {
        "input_json" => data(faults, &under(loc, "data"), part.get("data")),
        "input_image" => {
            let msg = "pictures are not supported: this program reads text only";
            faults.note(loc, FaultKind::NotSupported, msg);
            None
        }
        "refusal" => faults.text(loc, part, "refusal").map(Value::from),
        _ => faults.text(loc, part, "text").map(Value::from),
    }
}

/// An object, or a list of them.
fn data(faults: &mut Faults, loc: &[Step], data: Option<&Value>) -> Option<Value> {
    let is_object = |value: &Value| value.as_object().is_some();
    match data {
        Some(Value::Object(_)) => data.cloned(),
        Some(Value::Array(items)) if items.iter().all(is_object) => data.cloned(),
        found => {
            faults.wanted(loc, "an object or a list of objects", found);
            None
        }
    }
}

// The questions.

fn questions(faults: &mut Faults, body: &Value, desk: &Desk) -> Option<(Vec<Question>, Form)> {
    let max = QUESTIONS_MAX.min(desk.limits().questions_max);
    let list = faults.list(&[], body, "questions", (1, max))?;
    let mut ids = BTreeSet::new();
    let mut read = Vec::with_capacity(list.len());
    for (index, found) in list.iter().enumerate() {
        let loc = [Step::key("questions"), Step::Index(index)];
        read.push(
            question(faults, &loc, found, desk).map(|(instructions, options, line)| {
                let wanted = match &line.name {
                    Some(name) => name.clone(),
                    None => format!("question_{}", index + 1),
                };
                let id = free(&wanted, |name| ids.contains(name));
                ids.insert(id.clone());
                (Question::new(id, instructions, options), line)
            }),
        );
    }
    let read: Vec<(Question, Line)> = read.into_iter().collect::<Option<_>>()?;
    let (questions, lines): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    (!questions.is_empty()).then_some((questions, Form(lines)))
}

fn question(
    faults: &mut Faults,
    loc: &[Step],
    question: &Value,
    desk: &Desk,
) -> Option<(Value, Options, Line)> {
    if question.as_object().is_none() {
        faults.wanted(loc, "an object", Some(question));
        return None;
    }
    let name = name(faults, loc, question);
    let instructions = content(
        faults,
        &under(loc, "instructions"),
        question.get("instructions"),
        &["input_text"],
    );
    let read = match question.get("type").map(Value::as_str) {
        Some(Some("predicate")) => Some((Options::noul(None, None), LineKind::Predicate)),
        Some(Some("choice")) => choice(faults, loc, question, desk),
        Some(Some("score")) => score(faults, loc, question, desk),
        found => {
            let kind = match found {
                Some(_) => FaultKind::UnionTagInvalid,
                None => FaultKind::UnionTagNotFound,
            };
            let msg = "a type must be predicate, choice or score";
            faults.note(&under(loc, "type"), kind, msg);
            None
        }
    };
    let (options, kind) = read?;
    Some((instructions?, options, Line { name, kind }))
}

fn name(faults: &mut Faults, loc: &[Step], question: &Value) -> Option<String> {
    let name = question.get("name").filter(|name| !name.is_null())?;
    match name.as_str() {
        Some(text) if !text.is_empty() => Some(text.to_owned()),
        Some(_) => {
            let msg = "a name must not be empty";
            faults.note(&under(loc, "name"), FaultKind::StringTooShort, msg);
            None
        }
        None => {
            faults.wanted(&under(loc, "name"), "a string", Some(name));
            None
        }
    }
}

fn choice(
    faults: &mut Faults,
    loc: &[Step],
    question: &Value,
    desk: &Desk,
) -> Option<(Options, LineKind)> {
    let max = desk.limits().options_max;
    let list = faults.list(loc, question, "choices", (2, max))?;
    let loc = under(loc, "choices");
    let mut values: Vec<Option<(Value, Value)>> = Vec::with_capacity(list.len());
    let mut seen = BTreeSet::new();
    for (index, found) in list.iter().enumerate() {
        let loc = entry(&loc, index);
        let read = value(faults, &loc, found);
        if let Some(read) = &read
            && !seen.insert((read.as_bool(), read.as_str().map(str::to_owned)))
        {
            let msg = "two choices have this value";
            faults.note(&under(&loc, "value"), FaultKind::ValueError, msg);
        }
        let text = description(faults, &loc, found);
        values.push(read.map(|value| (value, text)));
    }
    let values: Vec<(Value, Value)> = values.into_iter().collect::<Option<_>>()?;
    let texts: BTreeSet<&str> = values
        .iter()
        .filter_map(|(value, _)| value.as_str())
        .collect();
    // A string keeps its name; a boolean has its own unless a string has it.
    let named = |value: &Value| match (value.as_str(), value.as_bool()) {
        (Some(text), _) => text.to_owned(),
        (None, flag) => free(&flag.unwrap_or(false).to_string(), |name| {
            texts.contains(name)
        }),
    };
    let options: Vec<(String, Value)> = values
        .iter()
        .map(|(value, text)| (named(value), text.clone()))
        .collect();
    let values = values.into_iter().map(|(value, _)| value).collect();
    (!options.is_empty()).then_some((Options::Choice(options), LineKind::Choice(values)))
}

/// A choice's value: a string or a boolean.
fn value(faults: &mut Faults, loc: &[Step], choice: &Value) -> Option<Value> {
    let loc = under(loc, "value");
    match choice.get("value") {
        Some(Value::String(text)) if text.is_empty() => {
            let msg = "a value must not be empty";
            faults.note(&loc, FaultKind::StringTooShort, msg);
            None
        }
        Some(value @ (Value::Bool(_) | Value::String(_))) => Some(value.clone()),
        found => {
            faults.wanted(&loc, "a string or a boolean", found);
            None
        }
    }
}

/// A description; null where there is none.
fn description(faults: &mut Faults, loc: &[Step], of: &Value) -> Value {
    match of.get("description") {
        None => Value::Null,
        Some(text @ (Value::Null | Value::String(_))) => text.clone(),
        found => {
            faults.wanted(&under(loc, "description"), "a string", found);
            Value::Null
        }
    }
}

fn score(
    faults: &mut Faults,
    loc: &[Step],
    question: &Value,
    desk: &Desk,
) -> Option<(Options, LineKind)> {
    let max = desk.limits().levels_max;
    let list = faults.list(loc, question, "levels", (1, max))?;
    let loc = under(loc, "levels");
    let mut read = Vec::with_capacity(list.len());
    for (index, found) in list.iter().enumerate() {
        let loc = entry(&loc, index);
        let label = faults.text(&loc, found, "label");
        let text = description(faults, &loc, found);
        read.push(label.map(|label| (level(label, text), label.to_owned())));
    }
    let read: Vec<(Value, String)> = read.into_iter().collect::<Option<_>>()?;
    let (levels, labels): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    (!levels.is_empty()).then_some((Options::Score(levels), LineKind::Score(labels)))
}

/// A level as the model reads it.
fn level(label: &str, description: Value) -> Value {
    match description {
        Value::Null => label.into(),
        text => Object::new()
            .with("label", label)
            .with("description", text)
            .into(),
    }
}

// The reply.

impl Form {
    /// The reply body.
    pub(super) fn reply(&self, model: &str, answers: &Answers, cached_tokens: usize) -> Value {
        let lines = self.0.iter().zip(&answers.answers);
        let tokens = answers.input_tokens;
        let usage = Object::new()
            .with("input_tokens", tokens)
            .with(
                "input_tokens_details",
                Object::new()
                    .with("cached_tokens", cached_tokens)
                    .with("cache_write_tokens", 0_u32),
            )
            .with("output_tokens", 0_u32)
            .with(
                "output_tokens_details",
                Object::new().with("reasoning_tokens", 0_u32),
            )
            .with("total_tokens", tokens);
        Object::new()
            .with("model", model)
            .with(
                "answers",
                lines
                    .map(|(line, answer)| line.reply(answer))
                    .collect::<Value>(),
            )
            .with("usage", usage)
            .into()
    }
}

impl Line {
    fn reply(&self, answer: &Answer) -> Object {
        let head = |kind: &str| {
            Object::new()
                .with("type", kind)
                .with("name", self.name.clone())
        };
        match (&self.kind, &answer.verdict) {
            (LineKind::Predicate, Verdict::Noul { noul }) => {
                head("predicate").with("probability", Value::float(*noul))
            }
            (
                LineKind::Choice(values),
                Verdict::Choice {
                    choice,
                    confidence,
                    probabilities,
                },
            ) => {
                let chosen = probabilities.iter().position(|(name, _)| name == choice);
                let chosen = chosen.expect("the choice is one of the options");
                let probabilities = values.iter().zip(probabilities).map(|(value, (_, p))| {
                    Object::new()
                        .with("value", value.clone())
                        .with("probability", Value::float(*p))
                });
                head("choice")
                    .with("choice", values[chosen].clone())
                    .with("confidence", Value::float(*confidence))
                    .with("probabilities", probabilities.collect::<Value>())
            }
            (
                LineKind::Score(labels),
                Verdict::Score {
                    score,
                    confidence,
                    probabilities,
                    ..
                },
            ) => {
                let levels = labels.iter().zip(probabilities).enumerate();
                let probabilities = levels.map(|(index, (label, p))| {
                    Object::new()
                        .with("value", index)
                        .with("label", label.as_str())
                        .with("probability", Value::float(*p))
                });
                head("score")
                    .with("score", Value::float(*score))
                    .with("confidence", Value::float(*confidence))
                    .with("probabilities", probabilities.collect::<Value>())
            }
            _ => unreachable!("a question is answered as what it is"),
        }
    }
}
