//! The System One dialect: a JSON body becomes an encoded record, logits become a reply body.
//!
//! Nothing here knows of HTTP: the command line reads and writes with the same functions.

use std::sync::Arc;

use descant_decision::json::{self, to_json, to_json_pretty};
use descant_decision::{
    Answers, Budget, EncodeError, Encoded, Encoder, Fault, FaultKind, Limits, Logits, Profile,
    Record, Step, Tokenize, Value, answer,
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

/// How requests are read and replies are written.
#[derive(Debug)]
pub struct Desk {
    names: Names,
    encoder: Encoder,
    budget: Budget,
    limits: Limits,
    confidence: Confidence,
}

/// A request that can be decided.
#[derive(Debug)]
pub struct Asking {
    record: Record,
    encoded: Arc<Encoded>,
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
        }
    }

    /// The same desk with other limits to what a record may ask.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Desk {
        Desk { limits, ..self }
    }

    /// The names of the served model.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// How long a prompt may be.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Reads a body. Takes time in proportion to it: not for the threads that serve connections.
    ///
    /// # Errors
    /// [`Refused::Faults`] with all that is wrong with the body, [`Refused::UnknownModel`], or a prompt that does not
    /// fit.
    pub fn read(&self, body: &[u8]) -> Result<Asking, Refused> {
        let record = self.record(body)?;
        let asked = self
            .names
            .asked(record.model())
            .ok_or_else(|| Refused::UnknownModel {
                name: record.model().unwrap_or_default().to_owned(),
            })?;
        let encoded = self.encode(&record)?;
        let profile = match (self.confidence, &asked) {
            (Confidence::Fixed(profile), _) => profile,
            (Confidence::Auto, Asked::Jev) => Profile::TypeSafe,
            (Confidence::Auto, Asked::Clef(_) | Asked::Served) => Profile::Clef,
        };
        let model = match asked {
            Asked::Clef(name) => name,
            Asked::Jev | Asked::Served => self.names.served().to_owned(),
        };
        Ok(Asking {
            record,
            encoded: Arc::new(encoded),
            profile,
            model,
        })
    }

    /// Reads a body as far as its token ids, for a model of any name.
    ///
    /// # Errors
    /// As [`Desk::read`].
    pub fn read_encoded(&self, body: &[u8]) -> Result<Encoded, Refused> {
        self.encode(&self.record(body)?)
    }

    fn record(&self, body: &[u8]) -> Result<Record, Refused> {
        let value = json::parse(body).map_err(|error| Refused::Faults(vec![error.into()]))?;
        Record::from_value(&value, &self.limits).map_err(Refused::Faults)
    }

    fn encode(&self, record: &Record) -> Result<Encoded, Refused> {
        self.encoder
            .encode(record, &self.budget)
            .map_err(|error| match error {
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
            })
    }
}

impl Asking {
    /// The record as the model reads it.
    pub fn encoded(&self) -> Arc<Encoded> {
        Arc::clone(&self.encoded)
    }

    /// Tokens of the prompt.
    pub fn input_tokens(&self) -> usize {
        self.encoded.ids.len()
    }

    /// Tokens that were cut from the state's end.
    pub fn truncated_tokens(&self) -> usize {
        self.encoded.truncated
    }

    /// This request with unrounded numbers and logits beside the answers, whatever it says itself.
    #[must_use]
    pub fn with_raw(self) -> Asking {
        Asking {
            record: self.record.with_raw(true),
            ..self
        }
    }

    /// The reply, given the logits of [`Asking::encoded`].
    ///
    /// # Errors
    /// [`Refused::Defect`] if a logit is not finite.
    pub fn reply(&self, logits: &Logits) -> Result<Reply, Refused> {
        match answer(&self.record, &self.encoded, logits, self.profile) {
            Ok(answers) => Ok(Reply(self.value(&answers))),
            Err(error) => Err(Refused::Defect {
                message: error.to_string(),
            }),
        }
    }

    fn value(&self, answers: &Answers) -> Value {
        answers.to_value(&self.model)
    }
}

/// A reply body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(Value);

impl Reply {
    /// On one line, as it goes over the wire.
    pub fn compact(&self) -> String {
        to_json(&self.0)
    }

    /// Over several lines, for people.
    pub fn pretty(&self) -> String {
        to_json_pretty(&self.0)
    }
}
