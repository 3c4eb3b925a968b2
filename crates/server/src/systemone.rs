//! The System One dialect: a JSON body becomes an encoded record, logits become a reply body.
//!
//! Nothing here knows of HTTP: the command line reads and writes with the same functions.

use std::sync::Arc;

use descant_decision::json::{self, to_json, to_json_pretty};
use descant_decision::{
    Answers, Budget, EncodeError, Encoded, Encoder, Fault, FaultKind, Limits, Logits, Part,
    Profile, Record, Step, Tokenize, Value, answer,
};

use crate::error::Refused;
use crate::names::{Asked, Names};

/// Which [`Profile`] a reply has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confidence {
    /// TypeSafe's for requests that name one of its models, the release's own for all others: thresholds that were
    /// tuned on either keep their meaning.
    #[default]
    Auto,
    /// The same for every request.
    Fixed(Profile),
}

/// How the questions of a record are put to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Each question is read in a prompt of its own. Nothing that is asked beside it can move its answer; the state is
    /// read once for each.
    pub split: bool,
    /// The model reads `field_1` and so on in place of the questions' ids.
    pub neutral_ids: bool,
}

impl Reading {
    /// The name in headers and receipts. `joint` is how the release reads.
    pub fn name(self) -> &'static str {
        match (self.split, self.neutral_ids) {
            (false, false) => "joint",
            (false, true) => "neutral",
            (true, false) => "split",
            (true, true) => "split-neutral",
        }
    }

    /// The reading of a name.
    pub fn from_name(name: &str) -> Option<Reading> {
        let both = [false, true];
        both.into_iter()
            .flat_map(|split| both.map(|neutral_ids| Reading { split, neutral_ids }))
            .find(|reading| reading.name() == name)
    }
}

/// Which name of the model a reply carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelEcho {
    /// The request's, whatever it is; the served name where it has none.
    Always,
    /// The request's where it is a name of the model, as the release does; the served name for an alias of TypeSafe's,
    /// which stands for a dated version there too.
    #[default]
    Auto,
    /// The served name.
    Never,
}

/// How requests are read and replies are written.
#[derive(Debug)]
pub struct Desk {
    names: Names,
    encoder: Encoder,
    budget: Budget,
    limits: Limits,
    confidence: Confidence,
    reading: Reading,
    echo: ModelEcho,
}

/// A request that can be decided.
#[derive(Debug)]
pub struct Asking {
    record: Record,
    /// One prompt, or one for each question. Never empty.
    prompts: Vec<Arc<Encoded>>,
    profile: Profile,
    /// The `model` of the reply.
    model: String,
}

impl Desk {
    /// A desk for the model known by `names`, whose tokenizer is `tokenizer`.
    pub fn new(
        names: Names,
        tokenizer: Arc<dyn Tokenize>,
        budget: Budget,
        confidence: Confidence,
    ) -> Desk {
        let encoder = Encoder::new(tokenizer);
        Desk {
            names,
            encoder,
            budget,
            limits: Limits::default(),
            confidence,
            reading: Reading::default(),
            echo: ModelEcho::default(),
        }
    }

    /// The same desk with other limits to what a record may ask.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Desk {
        Desk { limits, ..self }
    }

    /// The same desk, putting questions to the model in another way.
    #[must_use]
    pub fn with_reading(self, reading: Reading) -> Desk {
        Desk {
            encoder: self.encoder.with_neutral_ids(reading.neutral_ids),
            reading,
            ..self
        }
    }

    /// The same desk with other names in its replies.
    #[must_use]
    pub fn with_echo(self, echo: ModelEcho) -> Desk {
        Desk { echo, ..self }
    }

    /// The names of the served model.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// How long a prompt may be.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// How much a record may ask.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How questions are put to the model.
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// Reads a body. Takes time in proportion to it: not for the threads that serve connections.
    ///
    /// # Errors
    /// [`Refused::Faults`] with all that is wrong with the body, [`Refused::UnknownModel`], or a prompt that does not
    /// fit.
    pub fn read(&self, body: &[u8]) -> Result<Asking, Refused> {
        self.read_value(&parse(body)?, &[])
    }

    /// Reads a body that came with further parts.
    ///
    /// # Errors
    /// As [`Desk::read`].
    pub(crate) fn read_value(&self, body: &Value, parts: &[Part<'_>]) -> Result<Asking, Refused> {
        let record = Record::from_form(body, parts, &self.limits).map_err(Refused::Faults)?;
        self.ask(record, Profile::Clef)
    }

    /// Takes up a record. Its numbers have the profile that `--confidence` says, or else that of TypeSafe for one of its
    /// names and `otherwise` for all others.
    ///
    /// # Errors
    /// [`Refused::UnknownModel`], or a prompt that does not fit.
    pub(crate) fn ask(&self, record: Record, otherwise: Profile) -> Result<Asking, Refused> {
        let asked = self
            .names
            .asked(record.model())
            .ok_or_else(|| Refused::UnknownModel {
                name: record.model().unwrap_or_default().to_owned(),
            })?;
        let prompts = self.prompts(&record)?;
        let profile = match (self.confidence, &asked) {
            (Confidence::Fixed(profile), _) => profile,
            (Confidence::Auto, Asked::Jev) => Profile::TypeSafe,
            (Confidence::Auto, Asked::Clef(_) | Asked::Served) => otherwise,
        };
        let own = record.model().filter(|name| !name.is_empty());
        let echoed = match (self.echo, &asked) {
            (ModelEcho::Always, _) | (ModelEcho::Auto, Asked::Clef(_)) => own,
            (ModelEcho::Auto | ModelEcho::Never, _) => None,
        };
        let model = echoed.unwrap_or(self.names.served()).to_owned();
        Ok(Asking {
            record,
            prompts,
            profile,
            model,
        })
    }

    /// Reads a body as far as its token ids, for a model of any name.
    ///
    /// # Errors
    /// As [`Desk::read`].
    pub fn read_encoded(&self, body: &[u8]) -> Result<Encoded, Refused> {
        let record = Record::from_value(&parse(body)?, &self.limits).map_err(Refused::Faults)?;
        self.encoder.encode(&record, &self.budget).map_err(refused)
    }

    fn prompts(&self, record: &Record) -> Result<Vec<Arc<Encoded>>, Refused> {
        let prompts = match self.reading.split {
            true => self.encoder.encode_each(record, &self.budget),
            false => self
                .encoder
                .encode(record, &self.budget)
                .map(|prompt| vec![prompt]),
        };
        Ok(prompts
            .map_err(refused)?
            .into_iter()
            .map(Arc::new)
            .collect())
    }
}

/// Reads JSON text.
pub(crate) fn parse(body: &[u8]) -> Result<Value, Refused> {
    json::parse(body).map_err(|error| Refused::Faults(vec![error.into()]))
}

fn refused(error: EncodeError) -> Refused {
    match error {
        EncodeError::EmptySpan { ref question } => Refused::Faults(vec![Fault {
            loc: vec![Step::key("questions"), Step::key(question)],
            kind: FaultKind::StringTooShort,
            msg: error.to_string(),
        }]),
        EncodeError::SchemaTooLong { needed, allowed } => {
            Refused::SchemaTooLong { needed, allowed }
        }
        EncodeError::TooLong { needed, allowed } => Refused::TooLong { needed, allowed },
        other => Refused::Defect {
            message: other.to_string(),
        },
    }
}

impl Asking {
    /// The record as the model reads it: one prompt, or one for each question.
    pub fn prompts(&self) -> &[Arc<Encoded>] {
        &self.prompts
    }

    /// The record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The model's name in the reply.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Tokens of the prompts.
    pub fn input_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).sum()
    }

    /// Tokens that were cut from the state's end; where there are several prompts, from the one that lost most.
    pub fn truncated_tokens(&self) -> usize {
        let cut = self.prompts.iter().map(|prompt| prompt.truncated);
        cut.max().unwrap_or(0)
    }

    /// This request with unrounded numbers and logits beside the answers, whatever it says itself.
    #[must_use]
    pub fn with_raw(self) -> Asking {
        Asking {
            record: self.record.with_raw(true),
            ..self
        }
    }

    /// The reply, given the logits of each of [`Asking::prompts`].
    ///
    /// # Errors
    /// [`Refused::Defect`] if a logit is not finite.
    pub fn reply(&self, logits: &[Logits]) -> Result<Reply, Refused> {
        Ok(Reply::new(self.answers(logits)?.to_value(&self.model)))
    }

    /// The answers, given the logits of each of [`Asking::prompts`].
    ///
    /// # Errors
    /// [`Refused::Defect`] if a logit is not finite.
    pub(crate) fn answers(&self, logits: &[Logits]) -> Result<Answers, Refused> {
        let answers = match (self.prompts.as_slice(), logits) {
            ([prompt], [logits]) => answer(&self.record, prompt, logits, self.profile),
            _ => answer(
                &self.record,
                &joined(&self.prompts),
                &logits.concat(),
                self.profile,
            ),
        };
        let mut answers = answers.map_err(|error| Refused::Defect {
            message: error.to_string(),
        })?;
        answers.input_tokens = self.input_tokens();
        Ok(answers)
    }
}

/// The questions of several prompts, in their order, as if of one.
fn joined(prompts: &[Arc<Encoded>]) -> Encoded {
    let questions = prompts.iter().flat_map(|prompt| prompt.questions.iter());
    Encoded {
        ids: Vec::new(),
        questions: questions.cloned().collect(),
        truncated: 0,
        schema_start: 0,
    }
}

/// A reply body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(Value);

impl Reply {
    pub(crate) fn new(body: Value) -> Reply {
        Reply(body)
    }

    pub(crate) fn into_value(self) -> Value {
        self.0
    }

    /// On one line, as it goes over the wire.
    pub fn compact(&self) -> String {
        to_json(&self.0)
    }

    /// Over several lines, for people.
    pub fn pretty(&self) -> String {
        to_json_pretty(&self.0)
    }
}
