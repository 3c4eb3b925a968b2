//! A checked request: a state and its typed questions.

use crate::encoded::Kind;
use crate::fault::{Fault, FaultKind, Step};
use crate::json::{Object, Value};
use crate::media::{self, IMAGES_MAX, Part};
use crate::prompt::{NOUL_FALSE, NOUL_TRUE};

/// How much a record may ask, and in which forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Forms that are taken.
    pub forms: Forms,
    /// Levels of a score.
    pub levels_max: usize,
    /// Options of a choice.
    pub options_max: usize,
    /// Questions of a record.
    pub questions_max: usize,
}

/// Which forms of a question are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    /// Those that clients can read back and that say nothing that would be dropped silently: no score level that is
    /// null, a number or a boolean, no noul criteria besides `true` and `false`, no empty id or option name.
    Documented,
    /// All that the release answers deliberately, the above included. For comparing with it.
    Release,
}

/// 10 levels and 255 options, as the documents of this family of servers say. They set no limit to questions; a
/// thousand are more than fit into the release's 16,384 tokens.
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            forms: Forms::Documented,
            levels_max: 10,
            options_max: 255,
            questions_max: 1024,
        }
    }
}

impl Limits {
    /// No limits and all forms, as the release has it.
    pub fn release() -> Limits {
        Limits {
            forms: Forms::Release,
            levels_max: usize::MAX,
            options_max: usize::MAX,
            questions_max: usize::MAX,
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
    /// unknown fields. Refused besides what the release refuses: what it answers by accident (an object or a string as
    /// score levels), what [`Forms::Documented`] leaves out, and pictures and videos, which this program does not see.
    ///
    /// # Errors
    /// All faults at once, the first [`FAULTS_MAX`] of them.
    pub fn from_value(body: &Value, limits: &Limits) -> Result<Record, Vec<Fault>> {
        Record::from_form(body, &[], limits)
    }

    /// Checks a System One body that came with further parts, as in a multipart form; its assets may name them.
    ///
    /// # Errors
    /// As [`Record::from_value`].
    pub fn from_form(
        body: &Value,
        parts: &[Part<'_>],
        limits: &Limits,
    ) -> Result<Record, Vec<Fault>> {
        let mut reader = Reader {
            limits,
            parts,
            faults: Vec::new(),
        };
        match reader.body(body) {
            Some(record) if reader.faults.is_empty() => Ok(record),
            _ => Err(reader.faults),
        }
    }

    /// A record that another dialect's reader has checked.
    ///
    /// # Panics
    /// If there is no question.
    pub fn new(model: Option<String>, state: Value, questions: Vec<Question>) -> Record {
        assert!(!questions.is_empty(), "a record has a question");
        Record {
            model,
            raw: false,
            state,
            questions,
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

impl Options {
    /// Yes or no, with the format's default where a side is not described; a side described by null has no description.
    pub fn noul(when_true: Option<Value>, when_false: Option<Value>) -> Options {
        Options::Noul {
            when_true: when_true.unwrap_or_else(|| NOUL_TRUE.into()),
            when_false: when_false.unwrap_or_else(|| NOUL_FALSE.into()),
        }
    }
}

impl Question {
    /// A question that another dialect's reader has checked.
    ///
    /// # Panics
    /// If there is no option.
    pub fn new(id: String, instructions: Value, options: Options) -> Question {
        let is_empty = match &options {
            Options::Choice(options) => options.is_empty(),
            Options::Noul { .. } => false,
            Options::Score(levels) => levels.is_empty(),
        };
        assert!(!is_empty, "a question has an option");
        Question {
            id,
            instructions,
            options,
        }
    }

    /// The id. Empty only in [`Forms::Release`].
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

/// Reads a body, noting its faults.
struct Reader<'a> {
    limits: &'a Limits,
    /// What came beside the body.
    parts: &'a [Part<'a>],
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn body(&mut self, body: &Value) -> Option<Record> {
        let body = self.object(&[], body)?;
        let model = self.model(body);
        let raw = self.raw(body);
        let state = body.get("state");
        if state.is_none() {
            self.fault(
                &[Step::key("state")],
                FaultKind::Missing,
                "a state is required",
            );
        }
        self.refuse_media(body);
        let questions = self.questions(body);
        Some(Record {
            model,
            raw,
            state: state?.clone(),
            questions: questions?,
        })
    }

    fn model(&mut self, body: &Object) -> Option<String> {
        let model = present(body, "model")?;
        if model.as_str().is_none() {
            let msg = wanted("a string", model);
            self.fault(&[Step::key("model")], FaultKind::StringType, msg);
        }
        model.as_str().map(str::to_owned)
    }

    fn raw(&mut self, body: &Object) -> bool {
        let Some(raw) = present(body, "raw") else {
            return false;
        };
        if raw.as_bool().is_none() {
            let msg = wanted("a boolean", raw);
            self.fault(&[Step::key("raw")], FaultKind::BoolType, msg);
        }
        raw.as_bool().unwrap_or(false)
    }

    /// Refuses pictures and videos: an answer given without them would look like one given with them. What is wrong
    /// with a picture itself is told as well.
    fn refuse_media(&mut self, body: &Object) {
        for field in ["images", "files", "videos"] {
            let Some(media) = present(body, field) else {
                continue;
            };
            let loc = [Step::key(field)];
            match media.as_array() {
                None => self.fault(&loc, FaultKind::ListType, wanted("an array", media)),
                Some([]) => {}
                Some(entries) => {
                    self.not_supported(&loc, field);
                    if field != "videos" {
                        self.images(&loc, entries);
                    }
                }
            }
        }
        let loc = [Step::key("assets")];
        let assets = present(body, "assets").and_then(|assets| self.object(&loc, assets));
        if let Some(assets) = assets.filter(|assets| !assets.is_empty()) {
            self.not_supported(&loc, "assets");
            self.assets(&loc, assets);
        }
    }

    fn images(&mut self, loc: &[Step], entries: &[Value]) {
        if self
            .count(loc, "pictures", entries.len(), IMAGES_MAX)
            .is_none()
        {
            return;
        }
        for (index, entry) in entries.iter().enumerate() {
            if let Err(flaw) = media::check_image(entry) {
                let loc = [loc, &[Step::Index(index)]].concat();
                self.fault(&loc, flaw.kind, flaw.msg);
            }
        }
    }

    fn assets(&mut self, loc: &[Step], assets: &Object) {
        if self
            .count(loc, "assets", assets.len(), IMAGES_MAX)
            .is_none()
        {
            return;
        }
        for (placeholder, asset) in assets.iter() {
            let loc = [loc, &[Step::key(placeholder)]].concat();
            let Some(asset) = self.object(&loc, asset) else {
                continue;
            };
            if let Err(flaw) = media::check_asset(asset, self.parts) {
                self.fault(&loc, flaw.kind, flaw.msg);
            }
        }
    }

    fn not_supported(&mut self, loc: &[Step], field: &str) {
        let msg = format!("{field} are not supported: this program reads text only");
        self.fault(loc, FaultKind::NotSupported, msg);
    }

    fn questions(&mut self, body: &Object) -> Option<Vec<Question>> {
        let loc = [Step::key("questions")];
        let Some(questions) = body.get("questions") else {
            self.fault(&loc, FaultKind::Missing, "questions are required");
            return None;
        };
        let questions = self.object(&loc, questions)?;
        self.count(
            &loc,
            "questions",
            questions.len(),
            self.limits.questions_max,
        )?;
        let entries = questions.iter();
        let read: Vec<_> = entries
            .map(|(id, question)| self.question(id, question))
            .collect();
        read.into_iter().collect()
    }

    fn question(&mut self, id: &str, question: &Value) -> Option<Question> {
        let loc = [Step::key("questions"), Step::key(id)];
        if id.is_empty() && self.only_documented() {
            self.fault(
                &loc,
                FaultKind::StringTooShort,
                "a question's id must not be empty",
            );
        }
        let question = self.object(&loc, question)?;
        let kind = self.kind(question, &loc)?;
        let loc = [&loc[..], &[Step::key(kind.name()), Step::key("criteria")]].concat();
        let criteria = question.get("criteria");
        let options = match kind {
            Kind::Choice => self.choice(criteria, &loc),
            Kind::Noul => self.noul(criteria, &loc),
            Kind::Score => self.score(criteria, &loc),
        };
        Some(Question {
            id: id.to_owned(),
            instructions: question.get("instructions").cloned().unwrap_or(Value::Null),
            options: options?,
        })
    }

    fn kind(&mut self, question: &Object, loc: &[Step]) -> Option<Kind> {
        let (fault, msg) = match question.get("type").map(Value::as_str) {
            Some(Some("choice")) => return Some(Kind::Choice),
            Some(Some("noul")) => return Some(Kind::Noul),
            Some(Some("score")) => return Some(Kind::Score),
            Some(_) => (
                FaultKind::UnionTagInvalid,
                "a type must be noul, choice or score",
            ),
            None => (
                FaultKind::UnionTagNotFound,
                "a type is required: noul, choice or score",
            ),
        };
        self.fault(loc, fault, msg);
        None
    }

    fn choice(&mut self, criteria: Option<&Value>, loc: &[Step]) -> Option<Options> {
        let criteria = self.required(loc, criteria)?;
        let criteria = self.object(loc, criteria)?;
        if criteria.get("").is_some() && self.only_documented() {
            let loc = [loc, &[Step::key("")]].concat();
            self.fault(
                &loc,
                FaultKind::StringTooShort,
                "an option's name must not be empty",
            );
        }
        self.count(loc, "options", criteria.len(), self.limits.options_max)?;
        let options = criteria.iter();
        Some(Options::Choice(
            options
                .map(|(name, text)| (name.to_owned(), text.clone()))
                .collect(),
        ))
    }

    fn noul(&mut self, criteria: Option<&Value>, loc: &[Step]) -> Option<Options> {
        let none = Object::new();
        let criteria = match criteria {
            None | Some(Value::Null) => &none,
            Some(criteria) => self.object(loc, criteria)?,
        };
        if self.only_documented() {
            self.refuse_other_keys(criteria, loc);
        }
        let side = |key| criteria.get(key).cloned();
        Some(Options::noul(side("true"), side("false")))
    }

    fn refuse_other_keys(&mut self, criteria: &Object, loc: &[Step]) {
        for (key, _) in criteria.iter() {
            if !matches!(key, "true" | "false") {
                let loc = [loc, &[Step::key(key)]].concat();
                let msg = "the criteria of a noul are true and false";
                self.fault(&loc, FaultKind::ExtraForbidden, msg);
            }
        }
    }

    fn score(&mut self, criteria: Option<&Value>, loc: &[Step]) -> Option<Options> {
        let criteria = self.required(loc, criteria)?;
        let Some(levels) = criteria.as_array() else {
            self.fault(
                loc,
                FaultKind::ListType,
                wanted("an array of levels", criteria),
            );
            return None;
        };
        self.count(loc, "levels", levels.len(), self.limits.levels_max)?;
        if self.only_documented() {
            self.refuse_bare_levels(levels, loc);
        }
        Some(Options::Score(levels.to_vec()))
    }

    fn refuse_bare_levels(&mut self, levels: &[Value], loc: &[Step]) {
        for (index, level) in levels.iter().enumerate() {
            if let Value::Null | Value::Bool(_) | Value::Number(_) = level {
                let loc = [loc, &[Step::Index(index)]].concat();
                let msg = wanted("a string, an array or an object", level);
                self.fault(&loc, FaultKind::UnionType, msg);
            }
        }
    }

    fn only_documented(&self) -> bool {
        self.limits.forms == Forms::Documented
    }

    /// The object that must be here.
    fn object<'v>(&mut self, loc: &[Step], value: &'v Value) -> Option<&'v Object> {
        let object = value.as_object();
        if object.is_none() {
            self.fault(loc, FaultKind::DictType, wanted("an object", value));
        }
        object
    }

    /// The criteria that must be here.
    fn required<'v>(&mut self, loc: &[Step], criteria: Option<&'v Value>) -> Option<&'v Value> {
        if criteria.is_none() {
            self.fault(loc, FaultKind::Missing, "criteria are required");
        }
        criteria
    }

    /// Checks that there is at least one of something, and at most `max`. Gives nothing where there are too many to look
    /// at each.
    fn count(&mut self, loc: &[Step], what: &str, found: usize, max: usize) -> Option<()> {
        if found == 0 {
            self.fault(
                loc,
                FaultKind::TooShort,
                format!("{what} must not be empty"),
            );
        }
        if found > max {
            let msg = format!("wanted at most {max} {what}, found {found}");
            self.fault(loc, FaultKind::TooLong, msg);
            return None;
        }
        Some(())
    }

    fn fault(&mut self, loc: &[Step], kind: FaultKind, msg: impl Into<String>) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(Fault {
                loc: loc.to_vec(),
                kind,
                msg: msg.into(),
            });
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
