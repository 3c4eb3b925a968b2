//! From a body to a prompt: the model's name, the template, the tokenizer.

use std::fmt;
use std::sync::Arc;

use descant_decision::{COUNTED_MAX, Detokenize, Fault, FaultKind, Step, Tokenize};
use descant_engine::{Constraint, EngineError, GenerateOptions, JobOptions};

use crate::chat::fields::{self, Fields};
use crate::chat::form::Form;
use crate::chat::grammar::Grammars;
use crate::chat::order::{ChatOrder, CompletionOrder, Prompt, Terms};
use crate::chat::template::{ChatTemplate, Conversation};
use crate::error::Refused;
use crate::names::{Asked, Names};

/// A tokenizer in both directions.
pub trait Vocabulary: Tokenize + Detokenize {}

impl<T: Tokenize + Detokenize> Vocabulary for T {}

/// How conversations and texts are read, and tokens become text again.
pub struct ChatDesk {
    vocabulary: Arc<dyn Vocabulary>,
    /// Or why there is none.
    template: Result<ChatTemplate, String>,
    /// Tokens that end a turn.
    turn_ends: Vec<u32>,
    grammars: Grammars,
    /// Most tokens of a prompt.
    length_max: usize,
}

/// A text to be continued, read as far as its tokens.
pub(crate) struct Reading {
    pub(crate) form: Form,
    /// The `model` of the reply.
    pub(crate) model: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) terms: Terms,
    /// What binds the text to a schema.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
}

impl ChatDesk {
    /// A desk for a tokenizer, a template or why there is none, the tokens that end a turn, the number of the model's
    /// tokens, and the most tokens of a prompt.
    pub fn new(
        vocabulary: Arc<dyn Vocabulary>,
        template: Result<ChatTemplate, String>,
        turn_ends: Vec<u32>,
        vocab: usize,
        length_max: usize,
    ) -> ChatDesk {
        let shared = Arc::clone(&vocabulary);
        ChatDesk {
            grammars: Grammars::new(shared, vocab, turn_ends.clone()),
            vocabulary,
            template,
            turn_ends,
            length_max,
        }
    }

    /// Reads a body of `/v1/chat/completions`. Takes time in proportion to it: not for the threads that serve
    /// connections.
    ///
    /// # Errors
    /// All that is wrong with its fields, an unknown model, a conversation that the template refuses, or a prompt that
    /// does not fit.
    pub(crate) fn read_chat(&self, names: &Names, body: &[u8]) -> Result<Reading, Refused> {
        let object = fields::parse(body)?;
        let mut fields = Fields::new(&object);
        let order = ChatOrder::read(&mut fields);
        fields.done()?;
        let conversation = Conversation {
            messages: &order.messages,
            tools: &order.tools,
            opens_answer: true,
            variables: &order.variables,
        };
        Ok(Reading {
            form: Form::Chat,
            model: model(names, order.terms.model.as_deref())?,
            prompt: self.fitting(self.render(&conversation)?)?,
            constraint: self.bind(&order.terms)?,
            terms: order.terms,
        })
    }

    /// Reads a body of `/v1/completions`, likewise.
    ///
    /// # Errors
    /// As [`ChatDesk::read_chat`].
    pub(crate) fn read_completion(&self, names: &Names, body: &[u8]) -> Result<Reading, Refused> {
        let object = fields::parse(body)?;
        let mut fields = Fields::new(&object);
        let order = CompletionOrder::read(&mut fields);
        fields.done()?;
        let prompt = match order.prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => self.encode(&text),
        };
        Ok(Reading {
            form: Form::Completion,
            model: model(names, order.terms.model.as_deref())?,
            prompt: self.fitting(prompt)?,
            constraint: self.bind(&order.terms)?,
            terms: order.terms,
        })
    }

    /// The tokens of a conversation, however many.
    ///
    /// # Errors
    /// [`Refused::NoChat`] without a template, [`Refused::Faults`] if it knows no tools or refuses the conversation.
    pub(crate) fn render(&self, conversation: &Conversation<'_>) -> Result<Vec<u32>, Refused> {
        let template = self.template.as_ref().map_err(|missing| Refused::NoChat {
            missing: missing.clone(),
        })?;
        if !conversation.tools.is_empty() && !template.knows_tools() {
            let msg = "the release's chat template knows no tools";
            return Err(fault("tools", msg.to_owned()));
        }
        let rendered = template.render(conversation);
        let text = rendered.map_err(|error| fault("messages", error.to_string()))?;
        Ok(self.encode(&text))
    }

    /// The tokens of a text, up to many more than can be used.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        self.vocabulary
            .encode_start(text, self.length_max + COUNTED_MAX)
    }

    /// Tokens into text.
    pub(crate) fn vocabulary(&self) -> Arc<dyn Detokenize> {
        Arc::clone(&self.vocabulary) as Arc<dyn Detokenize>
    }

    /// Most tokens of a prompt.
    pub(crate) fn length_max(&self) -> usize {
        self.length_max
    }

    /// What the engine is told about a text.
    pub(crate) fn options(
        &self,
        terms: &Terms,
        constraint: Option<Box<dyn Constraint>>,
        job: JobOptions,
    ) -> GenerateOptions {
        let mut stop_ids = terms.stop_ids.clone();
        if !terms.ignores_turn_end {
            stop_ids.extend(&self.turn_ends);
        }
        GenerateOptions {
            sampling: terms.sampling.clone(),
            tokens_max: terms.tokens_max,
            stop_ids,
            constraint,
            job,
        }
    }

    fn bind(&self, terms: &Terms) -> Result<Option<Box<dyn Constraint>>, Refused> {
        let bind = |schema| {
            let bound = self.grammars.bind(schema);
            bound.map_err(|why| fault("response_format", format!("it cannot be followed: {why}")))
        };
        terms.schema.as_ref().map(bind).transpose()
    }

    fn fitting(&self, prompt: Vec<u32>) -> Result<Vec<u32>, Refused> {
        let (needed, allowed) = (prompt.len(), self.length_max);
        match needed <= allowed {
            true => Ok(prompt),
            false => Err(Refused::TooLong { needed, allowed }),
        }
    }
}

/// The `model` of a reply, as System One's replies have it.
///
/// # Errors
/// [`Refused::UnknownModel`].
pub(crate) fn model(names: &Names, asked: Option<&str>) -> Result<String, Refused> {
    match names.asked(asked) {
        Some(Asked::Clef(name)) => Ok(name),
        Some(Asked::Jev | Asked::Served) => Ok(names.served().to_owned()),
        None => Err(Refused::UnknownModel {
            name: asked.unwrap_or_default().to_owned(),
        }),
    }
}

/// What the engine says about a text, as a refusal. What a client can bring about is the client's to mend.
pub(crate) fn refused(error: EngineError) -> Refused {
    match error {
        EngineError::EmptyPrompt => fault("prompt", error.to_string()),
        EngineError::Sampling { name, .. } => fault(name, error.to_string()),
        EngineError::TokenId { index, .. } => Refused::Faults(vec![Fault {
            loc: vec![Step::key("prompt"), Step::Index(index)],
            kind: FaultKind::UnionType,
            msg: error.to_string(),
        }]),
        other => other.into(),
    }
}

pub(crate) fn fault(field: &str, msg: String) -> Refused {
    Refused::Faults(vec![Fault {
        loc: vec![Step::key(field)],
        kind: FaultKind::UnionType,
        msg,
    }])
}

impl fmt::Debug for ChatDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatDesk")
            .field("template", &self.template)
            .field("turn_ends", &self.turn_ends)
            .field("length_max", &self.length_max)
            .finish_non_exhaustive()
    }
}
