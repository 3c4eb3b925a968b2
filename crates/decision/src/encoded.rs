//! An encoded record: token ids, the spans that the head reads, and the logits it gives back.

use std::ops::Range;

use crate::json::{Object, Value};

/// A half-open range of rows (token positions) of a prompt. Never empty.
pub type Span = Range<usize>;

/// The kind of a question. The discriminants index the head's type embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Yes or no: options `true`, `false`.
    Noul = 0,
    /// One of several named options.
    Choice = 1,
    /// One of several ordered levels.
    Score = 2,
}

impl Kind {
    /// The name on the wire and in the prompt.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Noul => "noul",
            Kind::Choice => "choice",
            Kind::Score => "score",
        }
    }
}

/// A record as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids of the whole prompt; one row of the model each.
    pub ids: Vec<u32>,
    /// The questions, in request order.
    pub questions: Vec<EncodedQuestion>,
    /// Number of state tokens cut from the state's end to fit the length limit; 0 when nothing was cut. Of a very long
    /// state it is a lower bound, see [`COUNTED_MAX`](crate::COUNTED_MAX).
    pub truncated: usize,
    /// Row at which the state ends and the schema begins: rows before it depend on the state alone.
    pub schema_start: usize,
}

/// One question of an [`Encoded`] record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedQuestion {
    /// The question's id as sent.
    pub id: String,
    /// Its kind.
    pub kind: Kind,
    /// Rows of the instruction text.
    pub span: Span,
    /// The options in the order the model reads them (choice options sorted by code point).
    pub options: Vec<EncodedOption>,
}

/// One option of an [`EncodedQuestion`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedOption {
    /// The option's id: `true`/`false`, the option's name, or the level's index in decimal.
    pub id: String,
    /// Rows of the option's JSON text.
    pub span: Span,
}

/// Logits of a record: one vector a question, in request order, one f32 an option, in encoder order.
pub type Logits = Vec<Vec<f32>>;

impl Encoded {
    /// The record as JSON: `input_ids`, and for each question its `id`, `type`, `question_span`, `option_spans` and
    /// `option_ids`.
    pub fn to_value(&self) -> Value {
        Object::new()
            .with("input_ids", self.ids.iter().copied().collect::<Value>())
            .with(
                "questions",
                self.questions
                    .iter()
                    .map(EncodedQuestion::to_value)
                    .collect::<Value>(),
            )
            .into()
    }
}

impl EncodedQuestion {
    fn to_value(&self) -> Value {
        let option_ids = self.options.iter().map(|option| option.id.as_str());
        Object::new()
            .with("id", self.id.as_str())
            .with("type", self.kind.name())
            .with("question_span", span_value(&self.span))
            .with(
                "option_spans",
                self.options
                    .iter()
                    .map(|option| span_value(&option.span))
                    .collect::<Value>(),
            )
            .with("option_ids", option_ids.collect::<Value>())
            .into()
    }
}

fn span_value(span: &Span) -> Value {
    [span.start, span.end].into_iter().collect()
}
