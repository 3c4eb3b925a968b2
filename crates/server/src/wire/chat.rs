//! Chat, completions and tokens, as OpenAI's clients and those of vLLM, SGLang and llama.cpp have them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A conversation to be continued. Unknown fields are passed over; known ones that this server does not heed are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// The conversation.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// The tools that the model may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 128)]
    pub tools: Option<Vec<ToolDefinition>>,
    /// Whether they may be called: `auto` or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Most tokens of the text; goes before `max_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<i64>,
    /// Whether the log-probability of each token is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Most probable tokens told with each token, if `logprobs` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
    /// A variable of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_thinking: Option<bool>,
    /// A variable of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Further variables of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// How the text is to be continued.
    #[serde(flatten)]
    pub terms: TextTerms,
}

/// A text to be continued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// The text, or its token ids.
    pub prompt: PromptText,
    /// Most probable tokens told with each token; none are told where it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<i64>,
    /// How the text is to be continued.
    #[serde(flatten)]
    pub terms: TextTerms,
}

/// A text, or its token ids; either also as a list of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PromptText {
    /// A text.
    Text(String),
    /// Ids of tokens of the vocabulary.
    Ids(Vec<u32>),
    /// One text.
    Texts([String; 1]),
    /// Ids of one text.
    IdLists([Vec<u32>; 1]),
}

impl PartialSchema for PromptText {
    fn schema() -> RefOr<Schema> {
        super::schema(
            r#"{"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}},
                {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string"}},
                {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}}]}"#,
        )
    }
}

impl ToSchema for PromptText {}

/// How a text is to be continued, and how it is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextTerms {
    /// Name of the model; whatever is served where it is absent, null or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Most tokens of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_tokens: Option<i64>,
    /// Whether the reply comes as server-sent events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// What a stream tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Choices: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1)]
    pub n: Option<i64>,
    /// 0 takes the most probable token each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Share of the probability that tokens are drawn from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Tokens that are drawn from, the most probable ones; -1 and 0 for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Least probability of a token that is drawn, as a share of the most probable one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// What the draws depend on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// What a token loses that was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// The same, for each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// What is added to the logits of tokens, by their ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = super::bias_schema)]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// A text, or up to 16, before which the text ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = super::stop_schema)]
    pub stop: Option<Value>,
    /// Further tokens that end the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 64)]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Whether the tokens that end a turn are like any other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// What the text is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
}

/// What a stream tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether it ends with the counts of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_usage: Option<bool>,
}

/// What a text is bound to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// A JSON object.
    JsonObject,
    /// A JSON schema.
    JsonSchema {
        /// The schema, with a name that nobody needs.
        json_schema: NamedSchema,
    },
    /// Nothing.
    Text,
}

/// A JSON schema in its wrapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// The schema. One that cannot be followed is refused.
    pub schema: BTreeMap<String, Value>,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum ChatMessage {
    /// What the model said.
    Assistant {
        /// The text.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<MessageText>,
        /// The tools that it called.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_calls: Option<Vec<AskedCall>>,
        /// What it thought before, a text.
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Value>,
    },
    /// What the model is told by its user's program.
    Developer {
        /// The text.
        content: MessageText,
    },
    /// The same.
    System {
        /// The text.
        content: MessageText,
    },
    /// What a tool gave.
    Tool {
        /// The text.
        content: MessageText,
    },
    /// What its user said.
    User {
        /// The text.
        content: MessageText,
    },
}

/// A text, whole or in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum MessageText {
    /// Whole.
    Text(String),
    /// In parts, one after the other.
    Parts(Vec<TextPart>),
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TextPart {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
}

/// A call that is part of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AskedCall {
    /// What was called.
    pub function: AskedFunction,
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AskedFunction {
    /// The tool's name.
    pub name: String,
    /// A JSON object, or its text.
    pub arguments: Value,
}

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ToolDefinition {
    /// A function.
    Function {
        /// The function.
        function: FunctionDefinition,
    },
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDefinition {
    /// Its name.
    #[schema(min_length = 1)]
    pub name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Value>,
    /// A JSON schema of its parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
}

/// Whether tools may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoice {
    /// As the model likes.
    Auto,
    /// Not at all.
    None,
}

/// A continued conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatReply {
    /// The reply's own name.
    pub id: String,
    /// Always `chat.completion`.
    pub object: String,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// One.
    pub choices: Vec<ChatChoice>,
    /// Tokens.
    pub usage: TextUsage,
}

/// What the model said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatChoice {
    /// Always 0.
    pub index: u64,
    /// The message.
    pub message: SaidMessage,
    /// The log-probabilities of its tokens, where they were wanted.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the text ended: `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<String>,
}

/// A message of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaidMessage {
    /// Always `assistant`.
    pub role: String,
    /// The text; null where there are calls alone.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// The tools that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<SaidCall>>,
}

/// A call of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaidCall {
    /// The call's own name.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is called.
    pub function: SaidFunction,
}

/// What is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaidFunction {
    /// The tool's name.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// The log-probabilities of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatLogprobs {
    /// Its tokens.
    pub content: Vec<ChatToken>,
    /// Always null.
    pub refusal: Option<Value>,
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatToken {
    /// Its text, with replacement characters where it is none by itself.
    pub token: String,
    /// Its log-probability.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The most probable tokens in its place.
    pub top_logprobs: Vec<LikelyToken>,
}

/// A token that might have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LikelyToken {
    /// Its text, likewise.
    pub token: String,
    /// Its log-probability.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A continued text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionReply {
    /// The reply's own name.
    pub id: String,
    /// Always `text_completion`.
    pub object: String,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// One.
    pub choices: Vec<CompletionChoice>,
    /// Tokens.
    pub usage: TextUsage,
}

/// How the text goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionChoice {
    /// Always 0.
    pub index: u64,
    /// The text.
    pub text: String,
    /// The log-probabilities of its tokens, where they were wanted.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended: `stop` or `length`.
    pub finish_reason: Option<String>,
}

/// The log-probabilities of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionLogprobs {
    /// Its tokens.
    pub tokens: Vec<String>,
    /// Their log-probabilities.
    pub token_logprobs: Vec<f64>,
    /// The most probable tokens in place of each; null where none were wanted.
    pub top_logprobs: Option<Vec<BTreeMap<String, f64>>>,
    /// Where each begins in the text, in characters.
    pub text_offset: Vec<u64>,
}

/// Tokens of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextUsage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the text.
    pub completion_tokens: u64,
    /// Both together.
    pub total_tokens: u64,
    /// Which of the prompt's were spared.
    pub prompt_tokens_details: CachedTokens,
}

/// Which tokens of a prompt were spared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CachedTokens {
    /// Tokens whose states were in the cache.
    pub cached_tokens: u64,
}

/// What is to be made tokens of: a conversation, or a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeRequest {
    /// A conversation, as the chat template has it.
    Conversation {
        /// The conversation.
        #[schema(min_items = 1)]
        messages: Vec<ChatMessage>,
    },
    /// A text, as llama.cpp's clients send it.
    Content {
        /// The text.
        content: String,
    },
    /// A text, as vLLM's and SGLang's clients send it.
    Prompt {
        /// The text.
        prompt: String,
    },
}

/// Tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeReply {
    /// How many.
    pub count: u64,
    /// Most tokens of a prompt.
    pub max_model_len: u64,
    /// Their ids, each with its text if `with_pieces` is true.
    pub tokens: Vec<TokenEntry>,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TokenEntry {
    /// Its id.
    Id(u32),
    /// Its id and its text.
    Piece {
        /// Its id.
        id: u32,
        /// Its text, or its bytes where they are none.
        piece: Piece,
    },
}

/// A token's text, or its bytes where they are none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Piece {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// Its text.
    Text(String),
}

/// Tokens that are to be made a text of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Ids of tokens of the vocabulary.
    pub tokens: Vec<u32>,
}

/// A text, under the names that vLLM's, SGLang's and llama.cpp's clients look for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeReply {
    /// The text.
    pub prompt: String,
    /// The same.
    pub text: String,
    /// The same.
    pub content: String,
}
