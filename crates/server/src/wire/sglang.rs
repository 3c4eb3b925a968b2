//! Decisions as SGLang's clients have them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A request in SGLang's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SgLangRequest {
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the questions are about.
    pub input: SgLangInput,
    /// The questions, all with ids of their own.
    #[schema(min_items = 1, max_items = 1024)]
    pub questions: Vec<SgLangQuestion>,
    /// Empty: a joint head has no template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = super::empty_object_schema)]
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Empty: this program reads text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 0)]
    pub images: Option<Vec<Value>>,
    /// 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1)]
    pub prompt_format_version: Option<u64>,
    /// False.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = super::false_schema)]
    pub return_prompt_token_ids: Option<bool>,
    /// 1: probabilities are the head's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1)]
    pub temperature: Option<f64>,
}

/// What questions are about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SgLangInput {
    /// A list.
    Array(Vec<Value>),
    /// An object.
    Object(BTreeMap<String, Value>),
    /// A text, not blank.
    Text(String),
}

/// A question in SGLang's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SgLangQuestion {
    /// One of several options.
    Choice {
        /// Its id.
        #[schema(min_length = 1)]
        id: String,
        /// What is asked.
        #[schema(min_length = 1)]
        question: String,
        /// The options, all with names of their own.
        #[schema(min_items = 1, max_items = 255)]
        options: Vec<SgLangOption>,
    },
    /// One of several ordered levels.
    Score {
        /// Its id.
        #[schema(min_length = 1)]
        id: String,
        /// What is asked.
        #[schema(min_length = 1)]
        question: String,
        /// The levels, lowest first, all different and none blank.
        #[schema(schema_with = super::levels_schema)]
        levels: Vec<String>,
    },
    /// Yes or no.
    YesNo {
        /// Its id.
        #[schema(min_length = 1)]
        id: String,
        /// What is asked.
        #[schema(min_length = 1)]
        question: String,
        /// What yes means.
        #[serde(skip_serializing_if = "Option::is_none")]
        yes: Option<String>,
        /// What no means.
        #[serde(skip_serializing_if = "Option::is_none")]
        no: Option<String>,
    },
}

/// An option of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SgLangOption {
    /// Its name.
    #[schema(min_length = 1)]
    pub name: String,
    /// What it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A reply in SGLang's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SgLangReply {
    /// Always `decisions`.
    pub object: String,
    /// Name of the model.
    pub model: String,
    /// Always 1.
    pub prompt_format_version: u64,
    /// An answer for each question, in request order.
    pub answers: BTreeMap<String, SgLangAnswer>,
    /// Tokens.
    pub usage: SgLangUsage,
}

/// An answer in SGLang's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SgLangAnswer {
    /// To a choice.
    Choice {
        /// The probability of each option.
        probabilities: BTreeMap<String, f64>,
        /// Always 1: nothing but the options can be answered.
        label_mass: f64,
        /// The most probable option.
        choice: String,
    },
    /// To a score.
    Score {
        /// The probability of each level.
        probabilities: BTreeMap<String, f64>,
        /// Always 1.
        label_mass: f64,
        /// The expected level, counted from 0.
        score: f64,
    },
    /// To a yes/no question.
    YesNo {
        /// The probabilities of `yes` and `no`.
        probabilities: BTreeMap<String, f64>,
        /// Always 1.
        label_mass: f64,
    },
}

/// Tokens of a request in SGLang's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SgLangUsage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Always 0.
    pub completion_tokens: u64,
    /// Both together.
    pub total_tokens: u64,
}

impl PartialSchema for SgLangInput {
    fn schema() -> RefOr<Schema> {
        super::schema(
            r#"{"oneOf": [{"type": "array"}, {"type": "object"}, {"type": "string", "pattern": "\\S"}]}"#,
        )
    }
}

impl ToSchema for SgLangInput {}
