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

/// Tokens of all the prompts of one record together where its questions are read one by one: each prompt repeats the
/// state, and all of them are held until the last is answered.
pub const SPLIT_TOKENS_MAX: usize = 1 << 20;

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
    /// Whether the model reads `field_1` and so on in place of the questions' ids.
    neutral_ids: bool,
    prefix: Vec<u32>,
    schema: Vec<u32>,
    options: Vec<u32>,
    /// Openings of the first options; others are tokenised as they come.
    option_openings: Vec<Vec<u32>>,
    option_end: Vec<u32>,
    field_end: Vec<u32>,
    suffix: Vec<u32>,
}

/// The schema of a prompt before its place in it is known.
struct Schema {
    ids: Vec<u32>,
    /// Spans count from the schema's start.
    questions: Vec<EncodedQuestion>,
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
            neutral_ids: false,
            tokenizer,
        }
    }

    /// This encoder with ids that say nothing, `field_1` and so on, in the prompt, so that an id cannot move an answer. The
    /// id of a question without instructions stays in their place. The release does not read records so.
    #[must_use]
    pub fn with_neutral_ids(self, neutral_ids: bool) -> Encoder {
        Encoder {
            neutral_ids,
            ..self
        }
    }

    /// Encodes a record as the release does.
    ///
    /// # Errors
    /// If the prompt does not fit the budget, or a span is empty.
    pub fn encode(&self, record: &Record, budget: &Budget) -> Result<Encoded, EncodeError> {
        let schema = self.encode_schema(record.questions())?;
        let room = self.room(&schema, budget)?;
        let state = self.encode_state(record, room);
        self.assemble(schema, &state, room, budget)
    }

    /// Encodes each question of a record in a prompt of its own, as the first and only field: read so, no question moves
    /// another's answer. The release does not read records so.
    ///
    /// # Errors
    /// As [`Encoder::encode`]; and if the prompts together have more than [`SPLIT_TOKENS_MAX`] tokens.
    pub fn encode_each(
        &self,
        record: &Record,
        budget: &Budget,
    ) -> Result<Vec<Encoded>, EncodeError> {
        let questions = record.questions().chunks(1);
        let schemas = questions.map(|question| {
            let schema = self.encode_schema(question)?;
            Ok((self.room(&schema, budget)?, schema))
        });
        let schemas: Vec<(usize, Schema)> = schemas.collect::<Result<_, EncodeError>>()?;
        let room_max = schemas.iter().map(|(room, _)| *room).max();
        let state = self.encode_state(record, room_max.expect("a record has a question"));
        let fixed = |schema: &Schema| self.prefix.len() + schema.ids.len() + self.suffix.len();
        let tokens = schemas
            .iter()
            .map(|(room, schema)| fixed(schema) + state.len().min(*room));
        let needed: usize = tokens.sum();
        if needed > SPLIT_TOKENS_MAX {
            return Err(EncodeError::TooLong {
                needed,
                allowed: SPLIT_TOKENS_MAX,
            });
        }
        schemas
            .into_iter()
            .map(|(room, schema)| self.assemble(schema, &state, room, budget))
            .collect()
    }

    /// Tokens that a budget leaves to the state.
    fn room(&self, schema: &Schema, budget: &Budget) -> Result<usize, EncodeError> {
        let needed = self.prefix.len() + schema.ids.len() + self.suffix.len();
        let allowed = budget.max_length;
        allowed
            .checked_sub(needed)
            .ok_or(EncodeError::SchemaTooLong { needed, allowed })
    }

    /// The tokens of the state, counted as far as it helps.
    fn encode_state(&self, record: &Record, room: usize) -> Vec<u32> {
        self.tokenizer
            .encode_start(&render(record.state()), room + COUNTED_MAX)
    }

    fn assemble(
        &self,
        schema: Schema,
        state: &[u32],
        room: usize,
        budget: &Budget,
    ) -> Result<Encoded, EncodeError> {
        let Schema {
            ids: mut schema,
            mut questions,
        } = schema;
        let fixed = self.prefix.len() + schema.len() + self.suffix.len();
        let kept = state.len().min(room);
        if kept < state.len() && budget.over_length == OverLength::Refuse {
            return Err(EncodeError::TooLong {
                needed: fixed + state.len(),
                allowed: budget.max_length,
            });
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
    fn encode_schema(&self, asked: &[Question]) -> Result<Schema, EncodeError> {
        let mut ids = self.schema.clone();
        let mut questions = Vec::with_capacity(asked.len());
        for (index, question) in asked.iter().enumerate() {
            questions.push(self.encode_question(index + 1, question, &mut ids)?);
        }
        Ok(Schema { ids, questions })
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
        let neutral = format!("field_{number}");
        let id = match self.neutral_ids {
            true => neutral.as_str(),
            false => question.id(),
        };
        let opening = prompt::field(number, id, question.kind().name());
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
