//! What a body of `/v1/chat/completions` or `/v1/completions` asks for.
//!
//! Fields that are not known are ignored, as OpenAI's clients expect of servers older than themselves. Known ones that
//! this server does not heed are refused unless they ask for what it does anyway: an answer must not look as if it had
//! followed them.

use descant_decision::json::Object;
use descant_decision::{FaultKind, Step, Value};
use descant_engine::Sampling;

use crate::chat::calls::Tool;
use crate::chat::fields::Fields;
use crate::chat::messages::{self, Message};

/// A conversation to be continued, with how.
#[derive(Debug)]
pub(crate) struct ChatOrder {
    pub(crate) messages: Vec<Message>,
    /// The tools that the model may call, as the client describes them.
    pub(crate) tools: Vec<Value>,
    /// Further variables of the template.
    pub(crate) variables: Vec<(String, Value)>,
    pub(crate) terms: Terms,
}

/// A text to be continued, with how.
#[derive(Debug)]
pub(crate) struct CompletionOrder {
    pub(crate) prompt: Prompt,
    pub(crate) terms: Terms,
}

/// A text to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Ids(Vec<u32>),
    Text(String),
}

/// How a text is to be continued, and how the client wants to hear of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    /// The model's name as the client has it.
    pub(crate) model: Option<String>,
    pub(crate) sampling: Sampling,
    pub(crate) tokens_max: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    /// Whether the tokens that end a turn are like any other.
    pub(crate) ignores_turn_end: bool,
    pub(crate) streams: bool,
    /// Whether a stream ends with the counts of tokens.
    pub(crate) tells_usage: bool,
    /// The tools whose calls are looked for in the text.
    pub(crate) tools: Vec<Tool>,
    /// The JSON schema that the text follows.
    pub(crate) schema: Option<Value>,
}

/// Tokens of a completion whose body does not say how many, as OpenAI has it.
const COMPLETION_TOKENS: usize = 16;
/// Stop strings of a request, and bytes of one.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
/// Further tokens that end a text.
const STOP_IDS_MAX: usize = 64;
/// Tools of a request.
const TOOLS_MAX: usize = 128;
/// Most probable tokens that can be asked for with each token.
const TOP_LOGPROBS_MAX: i64 = 20;
/// Biased tokens of a request.
const BIASES_MAX: usize = 1024;

impl ChatOrder {
    /// Reads a body; faults go to `fields`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> ChatOrder {
        let messages = messages::read(fields);
        let variables = variables(fields);
        let tools = tools(fields);
        let mut terms = Terms::read(fields);
        terms.tools = tools.iter().filter_map(Tool::from_value).collect();
        let completion = fields.integer("max_completion_tokens", 1..=i64::MAX);
        terms.tokens_max = completion.map(to_usize).or(terms.tokens_max);
        let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX);
        terms.sampling.logprobs = match (fields.boolean("logprobs").unwrap_or(false), top) {
            (true, top) => Some(top.map_or(0, to_usize)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let msg = "logprobs must be true for it";
                fields.fault("top_logprobs", FaultKind::NotSupported, msg);
                None
            }
        };
        ChatOrder {
            messages,
            tools,
            variables,
            terms,
        }
    }
}

impl CompletionOrder {
    /// Reads a body; faults go to `fields`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> CompletionOrder {
        let prompt = Prompt::read(fields);
        fields.unsupported("tools", is_empty, "tools are for /v1/chat/completions");
        let mut terms = Terms::read(fields);
        terms.tokens_max = terms.tokens_max.or(Some(COMPLETION_TOKENS));
        let logprobs = fields.integer("logprobs", 0..=TOP_LOGPROBS_MAX);
        terms.sampling.logprobs = logprobs.map(to_usize);
        CompletionOrder { prompt, terms }
    }
}

impl Prompt {
    /// A string or token ids, or a list of just one of them.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Prompt {
        let wanted = "a string or an array of token ids";
        let wrong = |fields: &mut Fields<'_>, kind, msg: String| {
            fields.fault("prompt", kind, msg);
            Prompt::Ids(Vec::new())
        };
        let mut value = match fields.value("prompt") {
            Some(value) => value,
            None => return wrong(fields, FaultKind::Missing, format!("{wanted} is required")),
        };
        if let Some([first, rest @ ..]) = value.as_array()
            && first.as_number().is_none()
        {
            if !rest.is_empty() {
                let msg = "one prompt a request is taken".to_owned();
                return wrong(fields, FaultKind::TooLong, msg);
            }
            value = first;
        }
        match value {
            Value::String(text) => Prompt::Text(text.clone()),
            Value::Array(ids) => match ids.iter().position(|id| token_id(id).is_none()) {
                None => Prompt::Ids(ids.iter().filter_map(token_id).collect()),
                Some(index) => {
                    let loc = vec![Step::key("prompt"), Step::Index(index)];
                    fields.fault_at(loc, FaultKind::UnionType, "wanted a token id");
                    Prompt::Ids(Vec::new())
                }
            },
            other => {
                let msg = format!("wanted {wanted}, found {}", other.kind());
                wrong(fields, FaultKind::UnionType, msg)
            }
        }
    }
}

impl Terms {
    /// What both routes have.
    fn read(fields: &mut Fields<'_>) -> Terms {
        for (name, is_default, why) in UNSUPPORTED {
            fields.unsupported(name, is_default, why);
        }
        let usage = fields.inside("stream_options", |options| options.boolean("include_usage"));
        Terms {
            model: fields.text("model").map(str::to_owned),
            tokens_max: fields.integer("max_tokens", 1..=i64::MAX).map(to_usize),
            stops: stops(fields),
            stop_ids: stop_ids(fields),
            ignores_turn_end: fields.boolean("ignore_eos").unwrap_or(false),
            streams: fields.boolean("stream").unwrap_or(false),
            tells_usage: usage.flatten().unwrap_or(false),
            tools: Vec::new(),
            schema: schema(fields),
            sampling: sampling(fields),
        }
    }
}

fn sampling(fields: &mut Fields<'_>) -> Sampling {
    let default = Sampling::default();
    let mut number = |name, range, default| {
        let number = fields.number(name, range);
        number.map_or(default, |number| number as f32)
    };
    let sampling = Sampling {
        temperature: number("temperature", 0.0..=100.0, default.temperature),
        top_p: number("top_p", 0.0..=1.0, default.top_p),
        min_p: number("min_p", 0.0..=1.0, default.min_p),
        presence_penalty: number("presence_penalty", -2.0..=2.0, default.presence_penalty),
        frequency_penalty: number("frequency_penalty", -2.0..=2.0, default.frequency_penalty),
        ..default
    };
    if sampling.top_p == 0.0 {
        fields.fault("top_p", FaultKind::UnionType, "wanted a number above 0");
    }
    // Other servers write "all tokens" as -1.
    let top_k = fields.integer("top_k", -1..=i64::MAX).unwrap_or(0);
    // Any whole number is a seed; there are as many of them as keys.
    let seed = fields.integer("seed", i64::MIN..=i64::MAX).unwrap_or(0);
    Sampling {
        top_k: to_usize(top_k.max(0)),
        seed: seed.cast_unsigned(),
        bias: bias(fields),
        ..sampling
    }
}

fn bias(fields: &mut Fields<'_>) -> Vec<(u32, f32)> {
    let Some(object) = fields.object("logit_bias") else {
        return Vec::new();
    };
    if object.len() > BIASES_MAX {
        let msg = format!("at most {BIASES_MAX} tokens are taken");
        fields.fault("logit_bias", FaultKind::TooLong, msg);
        return Vec::new();
    }
    let mut bias = Vec::with_capacity(object.len());
    for (id, value) in object.iter() {
        let number = value.as_number().map(|number| number.as_f64());
        let number = number.filter(|number| (-100.0..=100.0).contains(number));
        match (id.parse::<u32>(), number) {
            (Ok(id), Some(number)) => bias.push((id, number as f32)),
            _ => {
                let loc = vec![Step::key("logit_bias"), Step::key(id)];
                let msg = "wanted a token id as key, and a number from -100 to 100";
                fields.fault_at(loc, FaultKind::UnionType, msg);
            }
        }
    }
    bias
}

/// A string, or several.
fn stops(fields: &mut Fields<'_>) -> Vec<String> {
    let strings: Vec<&str> = match fields.value("stop") {
        None => return Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(stops)) if stops.iter().all(|stop| stop.as_str().is_some()) => {
            stops.iter().filter_map(Value::as_str).collect()
        }
        Some(_) => {
            let msg = "wanted a string or an array of strings";
            fields.fault("stop", FaultKind::UnionType, msg);
            return Vec::new();
        }
    };
    if strings.len() > STOPS_MAX {
        let msg = format!("at most {STOPS_MAX} strings are taken");
        fields.fault("stop", FaultKind::TooLong, msg);
    }
    if strings
        .iter()
        .any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX)
    {
        let msg = format!("a stop string has 1 to {STOP_BYTES_MAX} bytes");
        fields.fault("stop", FaultKind::StringTooShort, msg);
    }
    strings.into_iter().map(str::to_owned).collect()
}

fn stop_ids(fields: &mut Fields<'_>) -> Vec<u32> {
    let Some(ids) = fields.array("stop_token_ids") else {
        return Vec::new();
    };
    let found: Vec<u32> = ids.iter().filter_map(token_id).collect();
    if found.len() < ids.len() || ids.len() > STOP_IDS_MAX {
        let msg = format!("wanted at most {STOP_IDS_MAX} token ids");
        fields.fault("stop_token_ids", FaultKind::UnionType, msg);
    }
    found
}

/// The schema of `response_format`, as OpenAI's clients have it.
fn schema(fields: &mut Fields<'_>) -> Option<Value> {
    let format = fields.object("response_format")?;
    let wrong = |fields: &mut Fields<'_>, place: &[&str], msg: &str| {
        let loc = ["response_format"]
            .iter()
            .chain(place)
            .map(|key| Step::key(key));
        fields.fault_at(loc.collect(), FaultKind::UnionType, msg);
        None
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => None,
        Some("json_object") => Some(Object::new().with("type", "object").into()),
        Some("json_schema") => match format
            .get("json_schema")
            .and_then(|named| named.get("schema"))
        {
            Some(schema) if schema.as_object().is_some() => Some(schema.clone()),
            _ => wrong(
                fields,
                &["json_schema", "schema"],
                "a JSON schema, an object, is required",
            ),
        },
        _ => wrong(fields, &["type"], "wanted text, json_object or json_schema"),
    }
}

/// The tools that the model may call; none if it is told not to.
pub(crate) fn tools(fields: &mut Fields<'_>) -> Vec<Value> {
    let tools = fields.array("tools").unwrap_or_default();
    if tools.len() > TOOLS_MAX {
        let msg = format!("at most {TOOLS_MAX} tools are taken");
        fields.fault("tools", FaultKind::TooLong, msg);
    }
    if let Some(index) = tools
        .iter()
        .position(|tool| Tool::from_value(tool).is_none())
    {
        let msg = r#"wanted {"type": "function", "function": {"name", …}}"#;
        let loc = vec![Step::key("tools"), Step::Index(index)];
        fields.fault_at(loc, FaultKind::UnionType, msg);
    }
    match fields.value("tool_choice").and_then(Value::as_str) {
        Some("none") => Vec::new(),
        _ => tools.to_vec(),
    }
}

/// What a body adds to the template's variables: `chat_template_kwargs`, and two fields that other servers read as
/// such.
pub(crate) fn variables(fields: &mut Fields<'_>) -> Vec<(String, Value)> {
    let mut variables: Vec<(String, Value)> = Vec::new();
    if let Some(thinks) = fields.boolean("enable_thinking") {
        variables.push(("enable_thinking".to_owned(), thinks.into()));
    }
    if let Some(effort) = fields.text("reasoning_effort") {
        variables.push(("reasoning_effort".to_owned(), effort.into()));
    }
    let own = fields.object("chat_template_kwargs").map(Object::iter);
    for (name, value) in own.into_iter().flatten() {
        if RESERVED.contains(&name) {
            let loc = vec![Step::key("chat_template_kwargs"), Step::key(name)];
            fields.fault_at(
                loc,
                FaultKind::ExtraForbidden,
                "this is not for a request to set",
            );
        }
        variables.retain(|(other, _)| other != name);
        variables.push((name.to_owned(), value.clone()));
    }
    variables
}

/// Variables of a template that a request does not set.
const RESERVED: [&str; 6] = [
    "add_generation_prompt",
    "chat_template",
    "documents",
    "messages",
    "tokenize",
    "tools",
];

pub(crate) fn token_id(value: &Value) -> Option<u32> {
    value.as_number()?.text().parse().ok()
}

/// A number from 0; beyond what can be counted it is as good as no limit.
fn to_usize(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Known fields that are not heeded: name, whether a value asks for what is done anyway, and what to say otherwise.
type Unsupported = (&'static str, fn(&Value) -> bool, &'static str);

const UNSUPPORTED: &[Unsupported] = &[
    (
        "add_generation_prompt",
        |v| v.as_bool() == Some(true),
        NO_TEMPLATE,
    ),
    ("allowed_token_ids", never, NO_GRAMMAR),
    ("audio", never, NO_MEDIA),
    ("bad_words", is_empty, NO_GRAMMAR),
    ("best_of", is_one, ONE_CHOICE),
    ("chat_template", never, NO_TEMPLATE),
    ("continue_final_message", is_false, NO_TEMPLATE),
    ("documents", is_empty, NO_TEMPLATE),
    ("ebnf", never, NO_GRAMMAR),
    ("echo", is_false, "the prompt is not repeated"),
    ("function_call", is_no_call, NO_TOOLS),
    ("functions", is_empty, NO_TOOLS),
    ("grammar", never, NO_GRAMMAR),
    ("guided_choice", never, NO_GRAMMAR),
    ("guided_grammar", never, NO_GRAMMAR),
    ("guided_json", never, NO_GRAMMAR),
    ("guided_regex", never, NO_GRAMMAR),
    ("json_schema", never, NO_GRAMMAR),
    ("min_tokens", is_zero, "a text may end at any token"),
    ("modalities", is_text_only, NO_MEDIA),
    ("n", is_one, ONE_CHOICE),
    ("prediction", never, "predicted text is not used"),
    (
        "prompt_logprobs",
        never,
        "log-probabilities are told of new tokens only",
    ),
    ("regex", never, NO_GRAMMAR),
    (
        "repetition_penalty",
        is_one,
        "use presence_penalty or frequency_penalty",
    ),
    ("structured_outputs", never, NO_GRAMMAR),
    (
        "suffix",
        |v| v.as_str() == Some(""),
        "text is continued at its end only",
    ),
    ("tool_choice", is_no_call, NO_TOOLS),
    ("use_beam_search", is_false, ONE_CHOICE),
    ("web_search_options", never, NO_TOOLS),
];

const NO_GRAMMAR: &str = "text is bound by response_format, to a JSON schema, only";
const NO_MEDIA: &str = "this server reads and writes text only";
const NO_TEMPLATE: &str = "the release's own chat template is used as it is";
const NO_TOOLS: &str = "tools are described in tools; whether one is called is the model's choice";
const ONE_CHOICE: &str = "one choice a request is given";

fn never(_: &Value) -> bool {
    false
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(<[Value]>::is_empty)
}

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}

fn is_one(value: &Value) -> bool {
    is_number(value, 1.0)
}

fn is_zero(value: &Value) -> bool {
    is_number(value, 0.0)
}

fn is_number(value: &Value, wanted: f64) -> bool {
    let number = value.as_number().map(|number| number.as_f64());
    number.is_some_and(|number| number.total_cmp(&wanted).is_eq())
}

fn is_no_call(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "none"))
}

fn is_text_only(value: &Value) -> bool {
    let text = |value: &Value| value.as_str() == Some("text");
    value.as_array().is_some_and(|kinds| kinds.iter().all(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::fields::parse;
    use crate::error::Refused;

    fn read<T>(body: &str, read: impl FnOnce(&mut Fields<'_>) -> T) -> Result<T, Vec<String>> {
        let object = parse(body.as_bytes()).unwrap();
        let mut fields = Fields::new(&object);
        let order = read(&mut fields);
        match fields.done() {
            Ok(()) => Ok(order),
            Err(Refused::Faults(faults)) => Err(faults.iter().map(ToString::to_string).collect()),
            Err(other) => panic!("{other}"),
        }
    }

    fn chat(fields: &str) -> Result<ChatOrder, Vec<String>> {
        let messages = r#""messages": [{"role": "user", "content": "hi"}]"#;
        let comma = if fields.is_empty() { "" } else { "," };
        read(&format!("{{{messages}{comma} {fields}}}"), ChatOrder::read)
    }

    fn completion(fields: &str) -> Result<CompletionOrder, Vec<String>> {
        read(&format!("{{{fields}}}"), CompletionOrder::read)
    }

    #[test]
    fn what_is_not_said_is_as_openai_has_it() {
        let order = chat("").unwrap();
        assert_eq!(order.terms, Terms::default());
        assert!(order.variables.is_empty());
        let order = completion(r#""prompt": "x""#).unwrap();
        let wanted = Terms {
            tokens_max: Some(16),
            ..Terms::default()
        };
        assert_eq!(
            (order.prompt, order.terms),
            (Prompt::Text("x".into()), wanted)
        );
    }

    #[test]
    fn every_field_is_heeded() {
        let order = chat(
            r#""model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.25, "seed": -1,
               "presence_penalty": 1, "frequency_penalty": -1.5, "logit_bias": {"7": -100}, "max_tokens": 5,
               "max_completion_tokens": 6, "stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": true,
               "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2,
               "enable_thinking": true, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": false},
               "n": 1, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "x_unknown": {}"#,
        )
        .unwrap();
        let wanted = Terms {
            model: Some("m".into()),
            sampling: Sampling {
                temperature: 0.5,
                top_p: 0.9,
                top_k: 40,
                min_p: 0.25,
                presence_penalty: 1.0,
                frequency_penalty: -1.5,
                bias: vec![(7, -100.0)],
                seed: u64::MAX,
                logprobs: Some(2),
            },
            tokens_max: Some(6),
            stops: vec!["a".into(), "b".into()],
            stop_ids: vec![3],
            ignores_turn_end: true,
            streams: true,
            tells_usage: true,
            tools: Vec::new(),
            schema: None,
        };
        assert_eq!(order.terms, wanted);
        let variables = vec![
            ("reasoning_effort".to_owned(), "low".into()),
            ("enable_thinking".to_owned(), false.into()),
        ];
        assert_eq!(order.variables, variables);
        assert_eq!(
            chat(r#""top_k": -1, "stop": "x""#).unwrap().terms.stops,
            ["x"]
        );
    }

    #[test]
    fn tools_are_for_the_template_and_the_text() {
        let tools = r#""tools": [{"type": "function", "function": {"name": "f"}}]"#;
        let order = chat(tools).unwrap();
        assert_eq!(
            (order.tools.len(), order.terms.tools[0].name.as_str()),
            (1, "f")
        );
        let order = chat(&format!("{tools}, \"tool_choice\": \"none\"")).unwrap();
        assert!(order.tools.is_empty() && order.terms.tools.is_empty());
        let faults = completion(&format!("\"prompt\": \"x\", {tools}")).unwrap_err();
        assert!(faults[0].starts_with("tools: "), "{faults:?}");
    }

    #[test]
    fn a_form_is_a_schema() {
        let schema = |format: &str| {
            let order = chat(&format!("\"response_format\": {format}")).unwrap();
            order.terms.schema.map(|schema| schema.to_string())
        };
        assert_eq!(schema(r#"{"type": "text"}"#), None);
        assert_eq!(
            schema(r#"{"type": "json_object"}"#),
            Some(r#"{"type":"object"}"#.into())
        );
        let format = r#"{"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"const": 1}}}"#;
        assert_eq!(schema(format), Some(r#"{"const":1}"#.into()));
    }

    #[test]
    fn a_prompt_is_text_or_ids() {
        for (body, wanted) in [
            (r#""prompt": ["x"]"#, Prompt::Text("x".into())),
            (r#""prompt": [1, 2]"#, Prompt::Ids(vec![1, 2])),
            (r#""prompt": [[1, 2]]"#, Prompt::Ids(vec![1, 2])),
            (r#""prompt": """#, Prompt::Text(String::new())),
        ] {
            assert_eq!(completion(body).unwrap().prompt, wanted, "{body}");
        }
        for (body, wanted) in [
            (
                r#""prompt": null"#,
                "prompt: a string or an array of token ids is required",
            ),
            (
                r#""prompt": ["x", "y"]"#,
                "prompt: one prompt a request is taken",
            ),
            (
                r#""prompt": [[1], [2]]"#,
                "prompt: one prompt a request is taken",
            ),
            (r#""prompt": [1, -2]"#, "prompt[1]: wanted a token id"),
            (r#""prompt": [1, "x"]"#, "prompt[1]: wanted a token id"),
            (
                r#""prompt": {}"#,
                "prompt: wanted a string or an array of token ids, found an object",
            ),
        ] {
            assert_eq!(completion(body).unwrap_err(), [wanted], "{body}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (field, name) in [
            (r#""temperature": -0.1"#, "temperature"),
            (r#""temperature": "1""#, "temperature"),
            (r#""top_p": 0"#, "top_p"),
            (r#""top_p": 1.1"#, "top_p"),
            (r#""top_k": -2"#, "top_k"),
            (r#""top_k": 1.5"#, "top_k"),
            (r#""min_p": 2"#, "min_p"),
            (r#""presence_penalty": 3"#, "presence_penalty"),
            (r#""frequency_penalty": -3"#, "frequency_penalty"),
            (r#""seed": 1e3"#, "seed"),
            (r#""seed": 18446744073709551615"#, "seed"),
            (r#""max_tokens": 0"#, "max_tokens"),
            (r#""max_completion_tokens": -1"#, "max_completion_tokens"),
            (r#""stop": [1]"#, "stop"),
            (r#""stop": """#, "stop"),
            (
                r#""stop": ["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"]"#,
                "stop",
            ),
            (r#""stop_token_ids": ["x"]"#, "stop_token_ids"),
            (r#""logit_bias": {"x": 1}"#, "logit_bias.x"),
            (r#""logit_bias": {"1": 101}"#, "logit_bias.1"),
            (r#""logprobs": 1"#, "logprobs"),
            (r#""top_logprobs": 2"#, "top_logprobs"),
            (r#""logprobs": true, "top_logprobs": 21"#, "top_logprobs"),
            (r#""tools": {}"#, "tools"),
            (r#""tools": [{"type": "function"}]"#, "tools[0]"),
            (r#""response_format": "json""#, "response_format"),
            (
                r#""response_format": {"type": "xml"}"#,
                "response_format.type",
            ),
            (
                r#""response_format": {"type": "json_schema", "json_schema": {"name": "x"}}"#,
                "response_format.json_schema.schema",
            ),
            (r#""stream": "yes""#, "stream"),
            (
                r#""stream_options": {"include_usage": 1}"#,
                "stream_options.include_usage",
            ),
            (r#""model": 7"#, "model"),
            (r#""chat_template_kwargs": []"#, "chat_template_kwargs"),
            (
                r#""chat_template_kwargs": {"messages": []}"#,
                "chat_template_kwargs.messages",
            ),
        ] {
            let faults = chat(field).unwrap_err();
            assert!(
                faults.len() == 1 && faults[0].starts_with(&format!("{name}: ")),
                "{field}: {faults:?}"
            );
        }
        let faults = completion(r#""prompt": "x", "logprobs": 21"#).unwrap_err();
        assert!(faults[0].starts_with("logprobs: "), "{faults:?}");
    }

    #[test]
    fn what_is_not_heeded_is_refused() {
        for field in [
            r#""n": 2"#,
            r#""best_of": 3"#,
            r#""echo": true"#,
            r#""suffix": "x""#,
            r#""tool_choice": "required""#,
            r#""functions": [{}]"#,
            r#""guided_json": {}"#,
            r#""modalities": ["text", "audio"]"#,
            r#""repetition_penalty": 1.1"#,
            r#""chat_template": "x""#,
            r#""continue_final_message": true"#,
        ] {
            let name = field.split('"').nth(1).unwrap();
            let faults = chat(field).unwrap_err();
            assert!(
                faults.len() == 1 && faults[0].starts_with(&format!("{name}: ")),
                "{faults:?}"
            );
        }
    }
}
