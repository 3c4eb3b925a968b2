//! A record becomes token ids and spans.
//!
//! The prompt is a sequence of pieces, each tokenised alone: prefix, state, schema, suffix. Where the whole does not
//! fit, the state is cut from its end; the schema never is.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::encoded::{Encoded, EncodedOption, EncodedQuestion};
use crate::fault::printable;
use crate::json::{Object, Value};
use crate::prompt;
use crate::record::{Options, Question, Record};
use crate::render::render;
use crate::tokenize::Tokenize;

/// How long a prompt may be, and what happens to a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of the whole prompt.
    pub max_length: usize,
    /// What happens to a record whose state does not fit.
    pub over_length: OverLength,
}

/// The release's own limit, refusing where the release would cut.
impl Default for Budget {
    fn default() -> Budget {
        Budget {
            max_length: 16_384,
            over_length: OverLength::Refuse,
        }
    }
}

/// State tokens that are counted past those that fit. A state of many megabytes would take a minute to count to its end,
/// for a number that helps nobody.
pub const COUNTED_MAX: usize = 1 << 18;

/// What happens to a record whose state does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLength {
    /// It is refused, with both counts.
    Refuse,
    /// The end of its state is cut, as the release does; [`Encoded::truncated`] tells how much, up to [`COUNTED_MAX`] and a
    /// little more.
    Truncate,
}

/// Why a record cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeError {
    /// A question's instructions or one of its options have no tokens, so that there is nothing to read them from.
    EmptySpan {
        /// The question's id.
        question: String,
    },
    /// The prompt does not fit even with its state cut away.
    SchemaTooLong {
        /// Tokens of the prompt without its state.
        needed: usize,
        /// Tokens allowed.
        allowed: usize,
    },
    /// The prompt does not fit.
    TooLong {
        /// Tokens of the whole prompt; of a state that is [`COUNTED_MAX`] tokens too long, at least so many.
        needed: usize,
        /// Tokens allowed.
        allowed: usize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::EmptySpan { question } => {
                let question = printable(question);
                write!(
                    f,
                    "question {question}: its instructions or an option have no tokens"
                )
            }
            EncodeError::SchemaTooLong { needed, allowed } => write!(
                f,
                "the questions need {needed} tokens without the state, {allowed} are allowed; ask fewer at a time"
            ),
            EncodeError::TooLong { needed, allowed } => {
                write!(
                    f,
                    "the prompt needs {needed} tokens, {allowed} are allowed; shorten the state"
                )
            }
        }
    }
}

impl Error for EncodeError {}

/// Encodes records with one tokenizer. Holds the ids of the fixed pieces, which every prompt repeats.
pub struct Encoder {
    tokenizer: Arc<dyn Tokenize>,
    prefix: Vec<u32>,
    schema: Vec<u32>,
    options: Vec<u32>,
    /// Openings of the first options; others are tokenised as they come.
    option_openings: Vec<Vec<u32>>,
    option_end: Vec<u32>,
    field_end: Vec<u32>,
    suffix: Vec<u32>,
}

/// Option openings that an [`Encoder`] keeps.
const OPTION_OPENINGS: usize = 16;

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder that uses `tokenizer`.
    pub fn new(tokenizer: Arc<dyn Tokenize>) -> Encoder {
        let opening = |index| tokenizer.encode(&prompt::option(index + 1));
        Encoder {
            prefix: tokenizer.encode(prompt::PREFIX),
            schema: tokenizer.encode(prompt::SCHEMA),
            options: tokenizer.encode(prompt::OPTIONS),
            option_openings: (0..OPTION_OPENINGS).map(opening).collect(),
            option_end: tokenizer.encode(prompt::OPTION_END),
            field_end: tokenizer.encode(prompt::FIELD_END),
            suffix: tokenizer.encode(prompt::SUFFIX),
            tokenizer,
        }
    }

    /// Encodes a record as the release does.
    ///
    /// # Errors
    /// If the prompt does not fit the budget, or a span is empty.
    pub fn encode(&self, record: &Record, budget: &Budget) -> Result<Encoded, EncodeError> {
        let (mut schema, mut questions) = self.encode_schema(record)?;
        let fixed = self.prefix.len() + schema.len() + self.suffix.len();
        let allowed = budget.max_length;
        let Some(room) = allowed.checked_sub(fixed) else {
            return Err(EncodeError::SchemaTooLong {
                needed: fixed,
                allowed,
            });
        };
        let state = self
            .tokenizer
            .encode_start(&render(record.state()), room + COUNTED_MAX);
        let kept = state.len().min(room);
        if kept < state.len() && budget.over_length == OverLength::Refuse {
            let needed = fixed + state.len();
            return Err(EncodeError::TooLong { needed, allowed });
        }
        let schema_start = self.prefix.len() + kept;
        questions
            .iter_mut()
            .for_each(|question| shift(question, schema_start));
        let mut ids = Vec::with_capacity(fixed + kept);
        ids.extend_from_slice(&self.prefix);
        ids.extend_from_slice(&state[..kept]);
        ids.append(&mut schema);
        ids.extend_from_slice(&self.suffix);
        Ok(Encoded {
            ids,
            questions,
            truncated: state.len() - kept,
            schema_start,
        })
    }

    /// Encodes the schema; spans count from its start.
    fn encode_schema(
        &self,
        record: &Record,
    ) -> Result<(Vec<u32>, Vec<EncodedQuestion>), EncodeError> {
        let mut ids = self.schema.clone();
        let mut questions = Vec::with_capacity(record.questions().len());
        for (index, question) in record.questions().iter().enumerate() {
            questions.push(self.encode_question(index + 1, question, &mut ids)?);
        }
        Ok((ids, questions))
    }

    fn encode_question(
        &self,
        number: usize,
        question: &Question,
        ids: &mut Vec<u32>,
    ) -> Result<EncodedQuestion, EncodeError> {
        let empty = || EncodeError::EmptySpan {
            question: question.id().to_owned(),
        };
        let opening = prompt::field(number, question.id(), question.kind().name());
        self.push(&opening, ids);
        let span = self.push(&instructions(question), ids).ok_or_else(empty)?;
        ids.extend_from_slice(&self.options);
        let mut options = Vec::new();
        for (index, (id, description)) in described_options(question).into_iter().enumerate() {
            match self.option_openings.get(index) {
                Some(opening) => ids.extend_from_slice(opening),
                None => drop(self.push(&prompt::option(index + 1), ids)),
            }
            let span = self
                .push(&option_json(&id, description), ids)
                .ok_or_else(empty)?;
            ids.extend_from_slice(&self.option_end);
            options.push(EncodedOption { id, span });
        }
        ids.extend_from_slice(&self.field_end);
        Ok(EncodedQuestion {
            id: question.id().to_owned(),
            kind: question.kind(),
            span,
            options,
        })
    }

    /// Puts a piece behind `ids` and gives the rows it takes, if it takes any.
    fn push(&self, text: &str, ids: &mut Vec<u32>) -> Option<Range<usize>> {
        let start = ids.len();
        ids.append(&mut self.tokenizer.encode(text));
        (ids.len() > start).then_some(start..ids.len())
    }
}

/// The text of a question's instructions: its id where they are absent, null or empty.
fn instructions(question: &Question) -> String {
    match question.instructions() {
        Value::Null => question.id().to_owned(),
        Value::String(text) if text.is_empty() => question.id().to_owned(),
        other => render(other),
    }
}

/// A question's options as the model reads them: ids and descriptions, the options of a choice sorted by code point.
fn described_options(question: &Question) -> Vec<(String, &Value)> {
    match question.options() {
        Options::Choice(options) => {
            let mut options: Vec<_> = options
                .iter()
                .map(|(name, text)| (name.clone(), text))
                .collect();
            options.sort_by(|a, b| a.0.cmp(&b.0));
            options
        }
        Options::Noul {
            when_true,
            when_false,
        } => {
            vec![
                ("true".to_owned(), when_true),
                ("false".to_owned(), when_false),
            ]
        }
        Options::Score(levels) => levels
            .iter()
            .enumerate()
            .map(|(index, text)| (index.to_string(), text))
            .collect(),
    }
}

fn option_json(id: &str, description: &Value) -> String {
    let mut option = Object::new().with("option_id", id);
    if !description.is_null() {
        option.insert("description", description.clone());
    }
    render(&option.into())
}

fn shift(question: &mut EncodedQuestion, rows: usize) {
    let spans = question.options.iter_mut().map(|option| &mut option.span);
    for span in spans.chain([&mut question.span]) {
        *span = span.start + rows..span.end + rows;
    }
}
