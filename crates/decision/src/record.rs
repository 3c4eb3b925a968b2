//! A checked request: a state and its typed questions.

use std::fmt;

use crate::encoded::Kind;
use crate::fault::{Fault, FaultKind, Step};
use crate::json::{Object, Value};
use crate::prompt::{NOUL_FALSE, NOUL_TRUE};

/// How much a record may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Levels of a score.
    pub levels_max: usize,
    /// Options of a choice.
    pub options_max: usize,
    /// Questions of a record.
    pub questions_max: usize,
}

/// 10 levels and 255 options, as the documents of this family of servers say. They set no limit to questions; a
/// thousand are more than fit into the release's 16,384 tokens.
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            levels_max: 10,
            options_max: 255,
            questions_max: 1024,
        }
    }
}

/// Faults of a body that are reported; a body with more is reported with its first.
pub const FAULTS_MAX: usize = 256;

/// A request that has been checked: every question can be asked and answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    model: Option<String>,
    raw: bool,
    state: Value,
    questions: Vec<Question>,
}

/// A question of a [`Record`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    id: String,
    instructions: Value,
    options: Options,
}

/// What a question can be answered with, in request order, each with its description; a description of null is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Options {
    /// Names and descriptions. One or more.
    Choice(Vec<(String, Value)>),
    /// Descriptions of yes and no, the format's default where the request has none.
    Noul {
        /// What `true` means.
        when_true: Value,
        /// What `false` means.
        when_false: Value,
    },
    /// Levels, lowest first. One or more; each a string, an array or an object.
    Score(Vec<Value>),
}

impl Record {
    /// Checks a System One body.
    ///
    /// Taken besides what the API documents: a state or instructions of any JSON type, an absent or null `model`,
    /// unknown fields. Refused besides what the release refuses: whatever it answers by accident (an object or a string
    /// as score levels, noul criteria other than `true` and `false`) or that its clients cannot read back (a level that
    /// is null, a number or a boolean), empty ids and option names, and pictures and videos, which this program does
    /// not see.
    ///
    /// # Errors
    /// All faults at once, the first [`FAULTS_MAX`] of them.
    pub fn from_value(body: &Value, limits: &Limits) -> Result<Record, Vec<Fault>> {
        let mut faults = Faults::default();
        let record = read_body(body, limits, &mut faults);
        match record {
            Some(record) if faults.list.is_empty() => Ok(record),
            _ => Err(faults.list),
        }
    }

    /// The model's name as sent.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether unrounded numbers and logits are wanted with the answers.
    pub fn raw(&self) -> bool {
        self.raw
    }

    /// This record with unrounded numbers and logits wanted or not.
    #[must_use]
    pub fn with_raw(self, raw: bool) -> Record {
        Record { raw, ..self }
    }

    /// The state.
    pub fn state(&self) -> &Value {
        &self.state
    }

    /// The questions in request order. One or more.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }
}

impl Question {
    /// The id. Never empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The instructions as sent; null where absent.
    pub fn instructions(&self) -> &Value {
        &self.instructions
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        match self.options {
            Options::Choice(_) => Kind::Choice,
            Options::Noul { .. } => Kind::Noul,
            Options::Score(_) => Kind::Score,
        }
    }
}

/// The faults found so far.
#[derive(Default)]
struct Faults {
    list: Vec<Fault>,
}

impl Faults {
    fn add(&mut self, loc: &[Step], kind: FaultKind, msg: impl fmt::Display) {
        if self.list.len() < FAULTS_MAX {
            self.list.push(Fault {
                loc: loc.to_vec(),
                kind,
                msg: msg.to_string(),
            });
        }
    }

    /// The object that must be here.
    fn object<'a>(&mut self, loc: &[Step], value: &'a Value) -> Option<&'a Object> {
        let object = value.as_object();
        if object.is_none() {
            self.add(loc, FaultKind::DictType, wanted("an object", value));
        }
        object
    }

    /// The criteria that must be here.
    fn required<'a>(&mut self, loc: &[Step], criteria: Option<&'a Value>) -> Option<&'a Value> {
        if criteria.is_none() {
            self.add(loc, FaultKind::Missing, "criteria are required");
        }
        criteria
    }

    /// Checks that something has at least one entry and at most `max`.
    fn count(&mut self, loc: &[Step], what: &str, found: usize, max: usize) {
        if found == 0 {
            self.add(
                loc,
                FaultKind::TooShort,
                format!("wanted at least one of the {what}"),
            );
        } else if found > max {
            let msg = format!("wanted at most {max} {what}, found {found}");
            self.add(loc, FaultKind::TooLong, msg);
        }
    }
}

fn wanted(what: &str, found: &Value) -> String {
    format!("wanted {what}, found {}", found.kind())
}

/// The value under `key`, if there is one other than null.
fn present<'a>(object: &'a Object, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn read_body(body: &Value, limits: &Limits, faults: &mut Faults) -> Option<Record> {
    let body = faults.object(&[], body)?;
    let model = read_model(body, faults);
    let raw = read_raw(body, faults);
    let state = body.get("state");
    if state.is_none() {
        faults.add(
            &[Step::key("state")],
            FaultKind::Missing,
            "a state is required",
        );
    }
    refuse_media(body, faults);
    let questions = read_questions(body, limits, faults);
    Some(Record {
        model,
        raw,
        state: state?.clone(),
        questions: questions?,
    })
}

fn read_model(body: &Object, faults: &mut Faults) -> Option<String> {
    let model = present(body, "model")?;
    let name = model.as_str();
    if name.is_none() {
        let loc = [Step::key("model")];
        faults.add(&loc, FaultKind::StringType, wanted("a string", model));
    }
    name.map(str::to_owned)
}

fn read_raw(body: &Object, faults: &mut Faults) -> bool {
    let Some(raw) = present(body, "raw") else {
        return false;
    };
    raw.as_bool().unwrap_or_else(|| {
        faults.add(
            &[Step::key("raw")],
            FaultKind::BoolType,
            wanted("a boolean", raw),
        );
        false
    })
}

/// Refuses pictures and videos: an answer given without them would look like one given with them.
fn refuse_media(body: &Object, faults: &mut Faults) {
    for field in ["images", "files", "videos"] {
        let Some(media) = present(body, field) else {
            continue;
        };
        let loc = [Step::key(field)];
        match media.as_array() {
            None => faults.add(&loc, FaultKind::ListType, wanted("an array", media)),
            Some([]) => {}
            Some(_) => faults.add(
                &loc,
                FaultKind::NotSupported,
                format!("{field} are not supported here"),
            ),
        }
    }
    if let Some(assets) = present(body, "assets") {
        let loc = [Step::key("assets")];
        if faults
            .object(&loc, assets)
            .is_some_and(|assets| !assets.is_empty())
        {
            faults.add(
                &loc,
                FaultKind::NotSupported,
                "assets are not supported here",
            );
        }
    }
}

fn read_questions(body: &Object, limits: &Limits, faults: &mut Faults) -> Option<Vec<Question>> {
    let loc = [Step::key("questions")];
    let Some(questions) = body.get("questions") else {
        faults.add(&loc, FaultKind::Missing, "questions are required");
        return None;
    };
    let questions = faults.object(&loc, questions)?;
    faults.count(&loc, "questions", questions.len(), limits.questions_max);
    if questions.len() > limits.questions_max {
        return None;
    }
    let read: Vec<_> = questions
        .iter()
        .map(|(id, question)| read_question(id, question, limits, faults))
        .collect();
    read.into_iter().collect()
}

fn read_question(
    id: &str,
    question: &Value,
    limits: &Limits,
    faults: &mut Faults,
) -> Option<Question> {
    let loc = [Step::key("questions"), Step::key(id)];
    if id.is_empty() {
        faults.add(
            &loc,
            FaultKind::StringTooShort,
            "a question's id must not be empty",
        );
    }
    let question = faults.object(&loc, question)?;
    let kind = read_kind(question, &loc, faults)?;
    let [questions, id_step] = loc;
    let loc = [
        questions,
        id_step,
        Step::key(kind.name()),
        Step::key("criteria"),
    ];
    let criteria = question.get("criteria");
    let options = match kind {
        Kind::Choice => read_choice(criteria, &loc, limits, faults),
        Kind::Noul => read_noul(criteria, &loc, faults),
        Kind::Score => read_score(criteria, &loc, limits, faults),
    };
    Some(Question {
        id: id.to_owned(),
        instructions: question.get("instructions").cloned().unwrap_or(Value::Null),
        options: options?,
    })
}

fn read_kind(question: &Object, loc: &[Step], faults: &mut Faults) -> Option<Kind> {
    let Some(name) = question.get("type") else {
        faults.add(
            loc,
            FaultKind::UnionTagNotFound,
            "a question's type is required: noul, choice or score",
        );
        return None;
    };
    let kind = match name.as_str() {
        Some("choice") => Some(Kind::Choice),
        Some("noul") => Some(Kind::Noul),
        Some("score") => Some(Kind::Score),
        _ => None,
    };
    if kind.is_none() {
        faults.add(
            loc,
            FaultKind::UnionTagInvalid,
            "a question's type must be noul, choice or score",
        );
    }
    kind
}

fn read_choice(
    criteria: Option<&Value>,
    loc: &[Step],
    limits: &Limits,
    faults: &mut Faults,
) -> Option<Options> {
    let criteria = faults.required(loc, criteria)?;
    let criteria = faults.object(loc, criteria)?;
    faults.count(loc, "options", criteria.len(), limits.options_max);
    if criteria.get("").is_some() {
        let loc = [loc, &[Step::key("")]].concat();
        faults.add(
            &loc,
            FaultKind::StringTooShort,
            "an option's name must not be empty",
        );
    }
    if criteria.len() > limits.options_max {
        return None;
    }
    Some(Options::Choice(
        criteria
            .iter()
            .map(|(name, text)| (name.to_owned(), text.clone()))
            .collect(),
    ))
}

fn read_noul(criteria: Option<&Value>, loc: &[Step], faults: &mut Faults) -> Option<Options> {
    let none = Object::new();
    let criteria = match criteria {
        None | Some(Value::Null) => &none,
        Some(criteria) => faults.object(loc, criteria)?,
    };
    for (key, _) in criteria
        .iter()
        .filter(|(key, _)| !matches!(*key, "true" | "false"))
    {
        let loc = [loc, &[Step::key(key)]].concat();
        faults.add(
            &loc,
            FaultKind::ExtraForbidden,
            "the criteria of a noul are true and false",
        );
    }
    let described =
        |key, default: &str| criteria.get(key).cloned().unwrap_or_else(|| default.into());
    Some(Options::Noul {
        when_true: described("true", NOUL_TRUE),
        when_false: described("false", NOUL_FALSE),
    })
}

fn read_score(
    criteria: Option<&Value>,
    loc: &[Step],
    limits: &Limits,
    faults: &mut Faults,
) -> Option<Options> {
    let criteria = faults.required(loc, criteria)?;
    let Some(levels) = criteria.as_array() else {
        faults.add(
            loc,
            FaultKind::ListType,
            wanted("an array of levels", criteria),
        );
        return None;
    };
    faults.count(loc, "levels", levels.len(), limits.levels_max);
    if levels.len() > limits.levels_max {
        return None;
    }
    for (index, level) in levels.iter().enumerate() {
        if let Value::Null | Value::Bool(_) | Value::Number(_) = level {
            let loc = [loc, &[Step::Index(index)]].concat();
            faults.add(
                &loc,
                FaultKind::UnionType,
                wanted("a string, an array or an object", level),
            );
        }
    }
    Some(Options::Score(levels.to_vec()))
}
