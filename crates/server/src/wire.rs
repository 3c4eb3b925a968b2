//! What goes over the wire, as types: the OpenAPI document at `/openapi.json` is made from these, and the tests read every kind
//! of reply back into them, so that neither says what the other does not.
//!
//! The handlers themselves work on JSON values, which keep the spelling of numbers and the order of keys as they were sent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

mod chat;
mod sglang;

pub use chat::*;
pub use sglang::*;

/// A System One request. Unknown fields are passed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SystemOneRequest {
    /// Name of the model; whatever is served where it is absent, null or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the questions are about: a text, or any JSON.
    pub state: Value,
    /// The questions by their ids, none of them empty. At least one.
    #[schema(schema_with = questions_schema)]
    pub questions: BTreeMap<String, Question>,
    /// Whether unrounded numbers and logits are wanted with the answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<bool>,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Question {
    /// One of several named options.
    Choice {
        /// What is asked; the id where it is absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        instructions: Option<Value>,
        /// The options, each with its description or null. 1 to 255, no name empty.
        #[schema(schema_with = options_schema)]
        criteria: BTreeMap<String, Value>,
    },
    /// Yes or no.
    Noul {
        /// What is asked; the id where it is absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        instructions: Option<Value>,
        /// What the answers mean.
        #[serde(skip_serializing_if = "Option::is_none")]
        criteria: Option<NoulCriteria>,
    },
    /// One of several ordered levels.
    Score {
        /// What is asked; the id where it is absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        instructions: Option<Value>,
        /// The levels, lowest first. 1 to 10.
        #[schema(min_items = 1, max_items = 10)]
        criteria: Vec<Level>,
    },
}

/// What yes and no mean. A side that is absent has the format's default; one that is null has no description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NoulCriteria {
    /// What yes means.
    #[serde(rename = "true", skip_serializing_if = "Option::is_none")]
    pub when_true: Option<Value>,
    /// What no means.
    #[serde(rename = "false", skip_serializing_if = "Option::is_none")]
    pub when_false: Option<Value>,
}

/// A level of a score: a text, or structured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Level {
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(BTreeMap<String, Value>),
    /// A text.
    Text(String),
}

/// A System One reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemOneReply {
    /// Name of the model.
    pub model: String,
    /// An answer for each question, in request order.
    pub answers: BTreeMap<String, Answer>,
    /// Tokens.
    pub usage: Usage,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Answer {
    /// To a choice.
    Choice {
        /// The most probable option.
        choice: String,
        /// How sure, as the profile defines it.
        #[schema(minimum = 0, maximum = 1)]
        confidence: f64,
        /// The probability of each option, in request order.
        probabilities: BTreeMap<String, f64>,
        /// Unrounded numbers, where they were wanted.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Raw>,
    },
    /// To a yes/no question.
    Noul {
        /// The probability of yes.
        #[schema(minimum = 0, maximum = 1)]
        noul: f64,
        /// Unrounded numbers, where they were wanted.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Raw>,
    },
    /// To a score.
    Score {
        /// The expected level, counted from 0.
        score: f64,
        /// How sure, as the profile defines it.
        #[schema(minimum = 0, maximum = 1)]
        confidence: f64,
        /// The levels as sent, by their numbers.
        legend: BTreeMap<String, Level>,
        /// The probability of each level, by its number.
        probabilities: BTreeMap<String, f64>,
        /// Unrounded numbers, where they were wanted.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Raw>,
    },
}

/// A question's unrounded numbers, in the order in which the model reads the options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// Option ids.
    pub options: Vec<String>,
    /// Probabilities.
    pub probabilities: Vec<f64>,
    /// Logits.
    pub logits: Vec<f64>,
}

/// Tokens of a System One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Of the prompt.
    pub input_tokens: u64,
    /// Always 0: nothing is generated.
    pub output_tokens: u64,
}

/// A refusal on System One's routes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorReply {
    /// As TypeSafe's clients read it.
    pub detail: Detail,
    /// As OpenAI's clients read it.
    pub error: ErrorObject,
}

/// The faults of a body one by one, or what kind of refusal it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Detail {
    /// The faults of a body.
    Faults(Vec<FaultEntry>),
    /// Any other refusal.
    Kind {
        /// What kind.
        error_type: String,
        /// What is wrong, for a person.
        message: String,
    },
}

/// A fault of a body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultEntry {
    /// Where: `body`, then keys and indices.
    pub loc: Vec<Step>,
    /// What was wanted and found, for a person.
    pub msg: String,
    /// What kind of fault.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A step on the way to a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Step {
    /// Into an array, or the byte at which a body stops being JSON.
    Index(u64),
    /// Into an object.
    Key(String),
}

/// A refusal as OpenAI's clients read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorObject {
    /// What is wrong, for a person.
    pub message: String,
    /// Whose fault it is: `invalid_request_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// One word for it.
    pub code: Option<String>,
}

/// A refusal on OpenAI's routes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenAiErrorReply {
    /// What is wrong.
    pub error: ErrorObject,
}

/// A request for a decision, told apart by its shape: System One's where `questions` is an object, SGLang's where it is a
/// list of items with `id` and `question`, OpenAI's otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AnyDecisionsRequest {
    /// OpenAI's.
    OpenAi(DecisionsRequest),
    /// SGLang's.
    SgLang(SgLangRequest),
    /// System One's.
    SystemOne(SystemOneRequest),
}

/// A reply in the shape of its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AnyDecisionsReply {
    /// OpenAI's.
    OpenAi(DecisionsReply),
    /// SGLang's.
    SgLang(SgLangReply),
    /// System One's.
    SystemOne(SystemOneReply),
}

/// A refusal in the shape of its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AnyErrorReply {
    /// OpenAI's, and SGLang's.
    OpenAi(OpenAiErrorReply),
    /// System One's.
    SystemOne(ErrorReply),
}

/// A request in OpenAI's shape. Unknown fields are passed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionsRequest {
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A text, or a list of messages, calls and their outputs.
    pub input: Input,
    /// The questions. At least one.
    #[schema(min_items = 1, max_items = 400)]
    pub questions: Vec<OpenAiQuestion>,
}

/// What questions are about, in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    /// A text.
    Text(String),
    /// Messages, calls and their outputs.
    Items(Vec<InputItem>),
}

/// An item of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InputItem {
    /// A call or an output of one.
    Call(InputCall),
    /// A message.
    Message(InputMessage),
}

/// A message of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum InputMessage {
    /// What the model said.
    Assistant {
        /// The text, or parts `output_text` and `refusal`.
        content: PartsOf<SaidPart>,
    },
    /// What the model is told.
    Developer {
        /// The text, or its parts.
        content: PartsOf<InputText>,
    },
    /// The same.
    System {
        /// The text, or its parts.
        content: PartsOf<InputText>,
    },
    /// What its user said.
    User {
        /// The text, or texts and JSON data. Pictures are refused.
        content: PartsOf<InputPart>,
    },
}

/// A call, or the output of an earlier one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputCall {
    /// A call with a text.
    CustomToolCall {
        /// The call's own name.
        call_id: String,
        /// What was called.
        name: String,
        /// The text.
        input: String,
    },
    /// Its output.
    CustomToolCallOutput {
        /// The name of a call before it.
        call_id: String,
        /// The text, or its parts.
        output: PartsOf<InputText>,
    },
    /// A call with arguments.
    FunctionCall {
        /// The call's own name.
        call_id: String,
        /// What was called.
        name: String,
        /// The arguments, as text.
        arguments: String,
    },
    /// Its output.
    FunctionCallOutput {
        /// The name of a call before it.
        call_id: String,
        /// The text, or its parts.
        output: PartsOf<InputText>,
    },
}

/// A text, or its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PartsOf<T> {
    /// Whole.
    Text(String),
    /// In parts.
    Parts(Vec<T>),
}

/// A text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputText {
    /// A text.
    InputText {
        /// The text.
        text: String,
    },
}

/// A text, or JSON data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputPart {
    /// JSON data.
    InputJson {
        /// An object, or a list of objects.
        data: JsonData,
    },
    /// A text.
    InputText {
        /// The text.
        text: String,
    },
}

/// An object, or a list of objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum JsonData {
    /// A list.
    List(Vec<BTreeMap<String, Value>>),
    /// An object.
    Object(BTreeMap<String, Value>),
}

/// A text of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SaidPart {
    /// A text.
    OutputText {
        /// The text.
        text: String,
    },
    /// Why there is none.
    Refusal {
        /// The text.
        refusal: String,
    },
}

/// A question in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OpenAiQuestion {
    /// One of several values.
    Choice {
        /// Its name in the reply.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1)]
        name: Option<String>,
        /// A text, or a list of text parts.
        instructions: PartsOf<InputText>,
        /// The values, all different.
        #[schema(min_items = 2, max_items = 255)]
        choices: Vec<ChoiceValue>,
    },
    /// Yes or no.
    Predicate {
        /// Its name in the reply.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1)]
        name: Option<String>,
        /// A text, or a list of text parts.
        instructions: PartsOf<InputText>,
    },
    /// One of several ordered levels.
    Score {
        /// Its name in the reply.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(min_length = 1)]
        name: Option<String>,
        /// A text, or a list of text parts.
        instructions: PartsOf<InputText>,
        /// The levels, lowest first.
        #[schema(min_items = 1, max_items = 10)]
        levels: Vec<LabelledLevel>,
    },
}

/// A value that can be chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChoiceValue {
    /// The value.
    pub value: TextOrBool,
    /// What it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A text or a boolean; `true` and `"true"` are two values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TextOrBool {
    /// A boolean.
    Bool(bool),
    /// A text, not empty.
    Text(String),
}

/// A level with a label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LabelledLevel {
    /// Its label.
    pub label: String,
    /// What it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A reply in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionsReply {
    /// Name of the model.
    pub model: String,
    /// An answer for each question, in request order.
    pub answers: Vec<OpenAiAnswer>,
    /// Tokens.
    pub usage: OpenAiUsage,
}

/// An answer in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum OpenAiAnswer {
    /// To a choice.
    Choice {
        /// The question's name.
        name: Option<String>,
        /// The most probable value.
        choice: TextOrBool,
        /// How sure.
        #[schema(minimum = 0, maximum = 1)]
        confidence: f64,
        /// Every value with its probability.
        probabilities: Vec<ValueProbability>,
    },
    /// To a predicate.
    Predicate {
        /// The question's name.
        name: Option<String>,
        /// The probability of yes.
        #[schema(minimum = 0, maximum = 1)]
        probability: f64,
    },
    /// To a score.
    Score {
        /// The question's name.
        name: Option<String>,
        /// The expected level, counted from 0.
        score: f64,
        /// How sure.
        #[schema(minimum = 0, maximum = 1)]
        confidence: f64,
        /// Every level with its probability.
        probabilities: Vec<LevelProbability>,
    },
}

/// A value and its probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ValueProbability {
    /// The value.
    pub value: TextOrBool,
    /// Its probability.
    pub probability: f64,
}

/// A level and its probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelProbability {
    /// Its number, counted from 0.
    pub value: u64,
    /// Its label.
    pub label: String,
    /// Its probability.
    pub probability: f64,
}

/// Tokens of a request in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenAiUsage {
    /// Of the prompt.
    pub input_tokens: u64,
    /// Which of them were spared.
    pub input_tokens_details: InputDetails,
    /// Always 0: nothing is generated.
    pub output_tokens: u64,
    /// Always 0.
    pub output_tokens_details: OutputDetails,
    /// Both together.
    pub total_tokens: u64,
}

/// Which tokens of a prompt were spared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputDetails {
    /// Tokens whose states were in the cache.
    pub cached_tokens: u64,
    /// Always 0: nothing is charged for them.
    pub cache_write_tokens: u64,
}

/// Tokens that were generated, by kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputDetails {
    /// Always 0.
    pub reasoning_tokens: u64,
}

/// A reply in Workers AI's envelope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The reply; null for a refusal.
    pub result: Option<SystemOneReply>,
    /// Whether there is a reply.
    pub success: bool,
    /// Why there is none.
    pub errors: Vec<NumberedError>,
    /// Always empty.
    pub messages: Vec<String>,
}

/// A refusal as Workers AI numbers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NumberedError {
    /// Its number.
    pub code: u32,
    /// What is wrong, for a person.
    pub message: String,
}

/// What is served, for both families of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelList {
    /// Always `list`.
    pub object: String,
    /// As OpenAI's clients read it.
    pub data: Vec<ModelEntry>,
    /// As TypeSafe's clients read it.
    pub models: Vec<NamedModel>,
}

/// A model as OpenAI's clients read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// Its name.
    pub id: String,
    /// Always `model`.
    pub object: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Always `descant`.
    pub owned_by: String,
    /// Most tokens of a prompt.
    pub max_model_len: u64,
    /// The limits that a client can run into.
    pub x_limits: ShownLimits,
    /// How questions are read.
    pub x_mode: String,
}

/// The limits that a client can run into.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShownLimits {
    /// Most tokens of a prompt.
    pub prompt_tokens_max: u64,
    /// What happens to a longer one: `refuse` or `truncate`.
    pub over_length: String,
    /// Most questions of a request.
    pub questions_max: u64,
    /// Most options of a choice.
    pub options_max: u64,
    /// Most levels of a score.
    pub levels_max: u64,
    /// Most pictures of a request.
    pub images_max: u64,
    /// Most bytes of a body.
    pub body_bytes_max: u64,
}

/// A model as TypeSafe's clients read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedModel {
    /// Its name.
    pub name: String,
    /// One sentence about it.
    pub description: String,
    /// When it was loaded, `YYYY-MM-DD`.
    pub release_date: String,
}

/// How the server is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthReply {
    /// `ok`, `loading`, `closing`, `failing` or `stopped`.
    pub status: String,
    /// Share of the model that is loaded, while it is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded: Option<f64>,
}

/// Schemas by hand where the derived ones cannot say all; they stand in for the variants one by one.
impl PartialSchema for TextOrBool {
    fn schema() -> RefOr<Schema> {
        schema(r#"{"oneOf": [{"type": "boolean"}, {"type": "string", "minLength": 1}]}"#)
    }
}

impl ToSchema for TextOrBool {}

impl PartialSchema for Input {
    fn schema() -> RefOr<Schema> {
        schema(
            r##"{"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/InputItem"}}]}"##,
        )
    }
}

impl ToSchema for Input {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((InputItem::name().into_owned(), InputItem::schema()));
        InputItem::schemas(schemas);
    }
}

/// A schema as JSON has it.
fn schema(text: &str) -> RefOr<Schema> {
    serde_json::from_str(text).expect("the schemas here are written by hand and tried by the tests")
}

fn questions_schema() -> RefOr<Schema> {
    schema(
        r##"{"type": "object", "minProperties": 1, "maxProperties": 1024, "propertyNames": {"type": "string", "minLength": 1},
            "additionalProperties": {"$ref": "#/components/schemas/Question"}}"##,
    )
}

fn options_schema() -> RefOr<Schema> {
    schema(
        r#"{"type": "object", "minProperties": 1, "maxProperties": 255, "propertyNames": {"type": "string", "minLength": 1},
            "additionalProperties": true}"#,
    )
}

fn levels_schema() -> RefOr<Schema> {
    schema(
        r#"{"type": "array", "minItems": 1, "maxItems": 10, "uniqueItems": true,
            "items": {"type": "string", "pattern": "\\S"}}"#,
    )
}

fn bias_schema() -> RefOr<Schema> {
    schema(
        r#"{"type": ["object", "null"], "maxProperties": 1024, "propertyNames": {"type": "string", "pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}"#,
    )
}

fn stop_schema() -> RefOr<Schema> {
    schema(
        r#"{"oneOf": [{"type": "null"}, {"type": "string", "minLength": 1, "maxLength": 256},
            {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 256}}]}"#,
    )
}

fn false_schema() -> RefOr<Schema> {
    schema(r#"{"type": ["boolean", "null"], "enum": [false, null]}"#)
}

fn empty_object_schema() -> RefOr<Schema> {
    schema(r#"{"type": ["object", "null"], "maxProperties": 0}"#)
}
