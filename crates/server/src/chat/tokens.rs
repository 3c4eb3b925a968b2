//! `/tokenize` and `/detokenize`, in the dialects of vLLM, SGLang and llama.cpp at once.

use descant_decision::json::Object;
use descant_decision::{FaultKind, Value};

use crate::chat::desk::{self, ChatDesk, fault};
use crate::chat::fields::{self, Fields};
use crate::chat::order::{self, Prompt};
use crate::chat::text::Characters;
use crate::chat::{messages, template::Conversation};
use crate::error::Refused;
use crate::names::Names;

/// The reply to a body of `/tokenize`: a conversation (`messages`), a text (`prompt`, or `content` as llama.cpp has it).
///
/// # Errors
/// All that is wrong with its fields, an unknown model, or a conversation that the template refuses.
pub(crate) fn tokenize(desk: &ChatDesk, names: &Names, body: &[u8]) -> Result<Value, Refused> {
    let object = fields::parse(body)?;
    let mut fields = Fields::new(&object);
    let model = fields.text("model");
    let pieces = fields.boolean("with_pieces").unwrap_or(false);
    let ids = if fields.value("messages").is_some() {
        let messages = messages::read(&mut fields);
        let variables = order::variables(&mut fields);
        let tools = order::tools(&mut fields);
        let opens_answer = fields.boolean("add_generation_prompt").unwrap_or(true);
        fields.done()?;
        desk.render(&Conversation {
            messages: &messages,
            tools: &tools,
            opens_answer,
            variables: &variables,
        })?
    } else {
        let content = fields.text("content").map(str::to_owned);
        let text = match content {
            Some(content) => Prompt::Text(content),
            None => Prompt::read(&mut fields),
        };
        if let Prompt::Ids(_) = text {
            fields.fault("prompt", FaultKind::StringType, "wanted a string");
        }
        fields.done()?;
        match text {
            Prompt::Text(text) => desk.encode(&text),
            Prompt::Ids(ids) => ids,
        }
    };
    desk::model(names, model)?;
    let tokens: Value = match pieces {
        true => ids.iter().map(|id| piece(desk, *id)).collect(),
        false => ids.iter().copied().collect(),
    };
    Ok(Object::new()
        .with("count", ids.len())
        .with("max_model_len", desk.length_max())
        .with("tokens", tokens)
        .into())
}

/// A token as llama.cpp shows it: its text, or its bytes where they are no text.
fn piece(desk: &ChatDesk, id: u32) -> Object {
    let bytes = desk.vocabulary().token_bytes(id).unwrap_or_default();
    let piece = match String::from_utf8(bytes) {
        Ok(text) => Value::String(text),
        Err(bytes) => bytes
            .as_bytes()
            .iter()
            .map(|byte| u16::from(*byte))
            .collect(),
    };
    Object::new().with("id", id).with("piece", piece)
}

/// The reply to a body of `/detokenize`: the text of `tokens`, special ones included.
///
/// # Errors
/// What is wrong with its fields, an unknown model, or an id that is no token.
pub(crate) fn detokenize(desk: &ChatDesk, names: &Names, body: &[u8]) -> Result<Value, Refused> {
    let object = fields::parse(body)?;
    let mut fields = Fields::new(&object);
    let model = fields.text("model");
    if fields.value("tokens").is_none() {
        fields.fault(
            "tokens",
            FaultKind::Missing,
            "an array of token ids is required",
        );
    }
    let tokens = fields.array("tokens").unwrap_or_default();
    fields.done()?;
    desk::model(names, model)?;
    let vocabulary = desk.vocabulary();
    let mut characters = Characters::default();
    let mut text = String::new();
    for (index, token) in tokens.iter().enumerate() {
        let bytes = order::token_id(token).and_then(|id| vocabulary.token_bytes(id));
        let bytes = bytes.ok_or_else(|| fault("tokens", format!("entry {index} is no token")))?;
        text.push_str(&characters.push(&bytes));
    }
    text.push_str(&characters.finish());
    Ok(["prompt", "text", "content"]
        .into_iter()
        .map(|name| (name, Value::from(text.as_str())))
        .collect::<Object>()
        .into())
}
