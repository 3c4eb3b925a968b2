//! Replies and parts of streams as OpenAI's clients read them.

use std::sync::Arc;

use descant_decision::json::Object;
use descant_decision::{Detokenize, Value};

use crate::chat::calls::Call;
use crate::chat::teller::{End, Spoken, Told};

/// Which of the two forms a reply has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Chat,
    Completion,
}

/// What all parts of a reply have in common.
pub(crate) struct Letterhead {
    pub(crate) form: Form,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) vocabulary: Arc<dyn Detokenize>,
    /// Most probable tokens told with each token; `None` tells of no token.
    pub(crate) top: Option<usize>,
    /// Whether the parts of a stream have a place for the counts of tokens.
    pub(crate) tells_usage: bool,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Of these, taken from the state cache.
    pub(crate) cached: usize,
    pub(crate) completion: usize,
}

impl Letterhead {
    /// A whole reply.
    pub(crate) fn whole(&self, told: &Told, usage: Usage) -> Value {
        let choice = match self.form {
            Form::Chat => {
                let text = Some(told.text.as_str());
                let text = text.filter(|text| !text.is_empty() || told.calls.is_empty());
                let mut message = Object::new()
                    .with("role", "assistant")
                    .with("content", text)
                    .with("refusal", Value::Null);
                if !told.calls.is_empty() {
                    let calls = told.calls.iter().enumerate();
                    let calls = calls.map(|(index, call)| self.call(index, call));
                    message.insert("tool_calls", calls.collect::<Value>());
                }
                Object::new().with("index", 0).with("message", message)
            }
            Form::Completion => Object::new()
                .with("index", 0)
                .with("text", told.text.as_str()),
        };
        let choice = choice
            .with("logprobs", self.logprobs(&told.tokens))
            .with("finish_reason", told.end.map(End::name));
        let object = match self.form {
            Form::Chat => "chat.completion",
            Form::Completion => "text_completion",
        };
        self.envelope(object, vec![choice.into()])
            .with("usage", usage.to_object())
            .into()
    }

    /// What a stream begins with: who speaks.
    pub(crate) fn opening(&self) -> Option<Value> {
        let delta = Object::new().with("role", "assistant").with("content", "");
        match self.form {
            Form::Chat => Some(self.part(("delta", delta.into()), Value::Null, None)),
            Form::Completion => None,
        }
    }

    /// The parts of a stream that say something further. `calls_before` tools were called before.
    pub(crate) fn parts(&self, told: &Told, calls_before: usize) -> Vec<Value> {
        let logprobs = self.logprobs(&told.tokens);
        let text = Value::from(told.text.as_str());
        if self.form == Form::Completion {
            return vec![self.part(("text", text), logprobs, told.end)];
        }
        let mut parts = Vec::new();
        if !told.text.is_empty() || !told.tokens.is_empty() {
            let delta = Object::new().with("content", text);
            parts.push(self.part(("delta", delta.into()), logprobs, None));
        }
        for (index, call) in (calls_before..).zip(&told.calls) {
            let entry = Object::new().with("index", index);
            let call = self.call(index, call);
            let entry: Object = entry.iter().chain(call.iter()).map(owned).collect();
            let delta = Object::new().with("tool_calls", vec![entry.into()]);
            parts.push(self.part(("delta", delta.into()), Value::Null, None));
        }
        if told.end.is_some() {
            parts.push(self.part(("delta", Object::new().into()), Value::Null, told.end));
        }
        parts
    }

    /// The part of a stream that has the counts of tokens.
    pub(crate) fn usage_part(&self, usage: Usage) -> Value {
        self.envelope(self.part_object(), Vec::new())
            .with("usage", usage.to_object())
            .into()
    }

    fn part(&self, (key, said): (&str, Value), logprobs: Value, end: Option<End>) -> Value {
        let choice = Object::new()
            .with("index", 0)
            .with(key, said)
            .with("logprobs", logprobs)
            .with("finish_reason", end.map(End::name));
        let mut part = self.envelope(self.part_object(), vec![choice.into()]);
        if self.tells_usage {
            part.insert("usage", Value::Null);
        }
        part.into()
    }

    fn call(&self, index: usize, call: &Call) -> Object {
        let function = Object::new()
            .with("name", call.name.as_str())
            .with("arguments", call.arguments.as_str());
        // The reply's own digits, so that no two calls share a name.
        let digits = self.id.rsplit('-').next().unwrap_or_default();
        Object::new()
            .with("id", format!("call_{digits}_{index}"))
            .with("type", "function")
            .with("function", function)
    }

    fn part_object(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Completion => "text_completion",
        }
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Object {
        Object::new()
            .with("id", self.id.as_str())
            .with("object", object)
            .with("created", self.created)
            .with("model", self.model.as_str())
            .with("choices", choices)
    }

    fn logprobs(&self, tokens: &[Spoken]) -> Value {
        match (self.top, self.form) {
            (None, _) => Value::Null,
            (Some(_), Form::Chat) => {
                let content: Value = tokens
                    .iter()
                    .map(|spoken| self.chat_token(spoken))
                    .collect();
                Object::new()
                    .with("content", content)
                    .with("refusal", Value::Null)
                    .into()
            }
            (Some(top), Form::Completion) => self.completion_tokens(tokens, top),
        }
    }

    fn chat_token(&self, spoken: &Spoken) -> Object {
        let entry = |id, logprob| {
            let bytes = self.vocabulary.token_bytes(id).unwrap_or_default();
            Object::new()
                .with("token", String::from_utf8_lossy(&bytes).into_owned())
                .with("logprob", number(logprob))
                .with(
                    "bytes",
                    bytes.iter().map(|byte| u16::from(*byte)).collect::<Value>(),
                )
        };
        let token = &spoken.token;
        let top = token.top.iter().map(|(id, logprob)| entry(*id, *logprob));
        entry(token.id, token.logprob.unwrap_or(f32::NEG_INFINITY))
            .with("top_logprobs", top.collect::<Value>())
    }

    fn completion_tokens(&self, tokens: &[Spoken], top: usize) -> Value {
        let text = |id| {
            let bytes = self.vocabulary.token_bytes(id).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let best = |spoken: &Spoken| -> Value {
            let best = spoken.token.top.iter();
            let best: Object = best
                .map(|(id, logprob)| (text(*id), number(*logprob)))
                .collect();
            best.into()
        };
        let logprob = |spoken: &Spoken| number(spoken.token.logprob.unwrap_or(f32::NEG_INFINITY));
        let top_logprobs: Option<Value> = (top > 0).then(|| tokens.iter().map(best).collect());
        Object::new()
            .with(
                "tokens",
                tokens
                    .iter()
                    .map(|spoken| text(spoken.token.id))
                    .collect::<Value>(),
            )
            .with(
                "token_logprobs",
                tokens.iter().map(logprob).collect::<Value>(),
            )
            .with("top_logprobs", top_logprobs)
            .with(
                "text_offset",
                tokens.iter().map(|spoken| spoken.offset).collect::<Value>(),
            )
            .into()
    }
}

impl Usage {
    fn to_object(self) -> Object {
        let details = Object::new().with("cached_tokens", self.cached);
        Object::new()
            .with("prompt_tokens", self.prompt)
            .with("completion_tokens", self.completion)
            .with("total_tokens", self.prompt + self.completion)
            .with("prompt_tokens_details", details)
    }
}

fn owned((key, value): (&str, &Value)) -> (String, Value) {
    (key.to_owned(), value.clone())
}

/// A log-probability; what has none, since a bias alone made it possible, is as good as impossible.
fn number(logprob: f32) -> Value {
    match logprob.is_finite() {
        true => Value::float(f64::from(logprob)),
        false => Value::float(LEAST),
    }
}

/// What OpenAI says instead of negative infinity, for which JSON has no number.
const LEAST: f64 = -9999.0;

#[cfg(test)]
mod tests {
    use descant_decision::json::to_json;
    use descant_engine::Token;

    use super::*;
    use crate::chat::teller::tests::Bytes;

    fn letterhead(form: Form, top: Option<usize>) -> Letterhead {
        Letterhead {
            form,
            id: "x-1".into(),
            created: 7,
            model: "m".into(),
            vocabulary: Arc::new(Bytes),
            top,
            tells_usage: false,
        }
    }

    fn told(text: &str, end: Option<End>) -> Told {
        let token = Token {
            id: u32::from(b'a'),
            logprob: Some(-0.5),
            top: vec![(u32::from(b'a'), -0.5), (0xe2, f32::NEG_INFINITY)],
        };
        Told {
            text: text.into(),
            calls: Vec::new(),
            tokens: vec![Spoken { token, offset: 3 }],
            end,
        }
    }

    const USAGE: Usage = Usage {
        prompt: 5,
        cached: 4,
        completion: 2,
    };

    #[test]
    fn a_chat_reply_is_openais() {
        let reply = letterhead(Form::Chat, None).whole(&told("hi", Some(End::Stop)), USAGE);
        assert_eq!(
            to_json(&reply),
            r#"{"id":"x-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#
        );
    }

    #[test]
    fn a_completion_is_openais() {
        let reply =
            letterhead(Form::Completion, Some(2)).whole(&told("hi", Some(End::Length)), USAGE);
        assert_eq!(
            to_json(reply.get("choices").unwrap()),
            r#"[{"index":0,"text":"hi","logprobs":{"tokens":["a"],"token_logprobs":[-0.5],"top_logprobs":[{"a":-0.5,"�":-9999.0}],"text_offset":[3]},"finish_reason":"length"}]"#
        );
    }

    #[test]
    fn tokens_are_told_with_their_bytes() {
        let reply = letterhead(Form::Chat, Some(2)).whole(&told("hi", None), USAGE);
        let choice = &reply.get("choices").unwrap().as_array().unwrap()[0];
        assert_eq!(
            to_json(choice.get("logprobs").unwrap()),
            r#"{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"�","logprob":-9999.0,"bytes":[226]}]}],"refusal":null}"#
        );
    }

    #[test]
    fn calls_are_told_with_names_of_their_own() {
        let call = Call {
            name: "f".into(),
            arguments: "{}".into(),
        };
        let told = Told {
            calls: vec![call],
            ..told("", Some(End::Calls))
        };
        let head = letterhead(Form::Chat, None);
        let reply = head.whole(&told, USAGE);
        assert_eq!(
            to_json(reply.get("choices").unwrap()),
            r#"[{"index":0,"message":{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"call_1_0","type":"function","function":{"name":"f","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}]"#
        );
        let told = Told {
            tokens: Vec::new(),
            ..told
        };
        let parts: Vec<String> = head.parts(&told, 2).iter().map(to_json).collect();
        assert!(parts[0].contains(r#""delta":{"tool_calls":[{"index":2,"id":"call_1_2","type":"function","function":{"name":"f","arguments":"{}"}}]}"#), "{}", parts[0]);
        assert!(
            parts[1].contains(r#""delta":{},"logprobs":null,"finish_reason":"tool_calls""#),
            "{}",
            parts[1]
        );
    }

    #[test]
    fn a_stream_opens_says_and_ends() {
        let head = Letterhead {
            tells_usage: true,
            ..letterhead(Form::Chat, None)
        };
        let start =
            r#"{"id":"x-1","object":"chat.completion.chunk","created":7,"model":"m","choices":"#;
        let part = |rest: &str| format!("{start}{rest}");
        assert_eq!(
            head.opening().map(|value| to_json(&value)),
            Some(part(
                r#"[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#
            ))
        );
        let parts: Vec<String> = head
            .parts(&told("hi", Some(End::Stop)), 0)
            .iter()
            .map(to_json)
            .collect();
        assert_eq!(
            parts,
            [
                part(
                    r#"[{"index":0,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}],"usage":null}"#
                ),
                part(
                    r#"[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}"#
                ),
            ]
        );
        assert_eq!(
            to_json(&head.usage_part(USAGE)),
            part(
                r#"[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#
            )
        );
        let completion = letterhead(Form::Completion, None);
        assert_eq!(completion.opening(), None);
        assert_eq!(completion.parts(&told("", Some(End::Length)), 0).len(), 1);
    }
}
