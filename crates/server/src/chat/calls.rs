//! Tool calls in a text, as Qwen's models write them:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A value is text; where the tool's schema says that the parameter is something else, it is read as JSON. A call that is
//! not written like this, or not to its end, is text like any other.

use descant_decision::Value;
use descant_decision::json::{Object, parse_str, to_json};

use crate::chat::text::begun;

/// Looks for tool calls in a text that comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    tools: Vec<Tool>,
    /// A call as far as it has come, or the start of its first tag.
    held: String,
    is_inside: bool,
}

/// A tool that may be called, and which of its parameters are no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) json_parameters: Vec<String>,
}

/// What a text turned out to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// A JSON object as text.
    pub(crate) arguments: String,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

impl Calls {
    /// Looks for calls of some tools; without any it finds none.
    pub(crate) fn new(tools: Vec<Tool>) -> Calls {
        Calls {
            tools,
            ..Calls::default()
        }
    }

    /// Takes further text and gives what is certain about it.
    pub(crate) fn push(&mut self, text: &str) -> Heard {
        if self.tools.is_empty() {
            return Heard {
                text: text.to_owned(),
                calls: Vec::new(),
            };
        }
        self.held.push_str(text);
        let mut heard = Heard::default();
        loop {
            let tag = if self.is_inside { CLOSE } else { OPEN };
            let Some(start) = self.held.find(tag) else {
                break;
            };
            if self.is_inside {
                let rest = self.held.split_off(start + tag.len());
                let written = std::mem::replace(&mut self.held, rest);
                match self.read(&written) {
                    Some(call) => heard.calls.push(call),
                    None => heard.text.push_str(&written),
                }
            } else {
                let call = self.held.split_off(start);
                heard
                    .text
                    .push_str(&std::mem::replace(&mut self.held, call));
            }
            self.is_inside = !self.is_inside;
        }
        if !self.is_inside {
            let rest = self
                .held
                .split_off(self.held.len() - begun(&self.held, OPEN));
            heard
                .text
                .push_str(&std::mem::replace(&mut self.held, rest));
        }
        heard
    }

    /// What is left when no more text comes: a call without an end is text.
    pub(crate) fn finish(&mut self) -> String {
        self.is_inside = false;
        std::mem::take(&mut self.held)
    }

    /// A call from its tags and all between them.
    fn read(&self, written: &str) -> Option<Call> {
        let inside = written.strip_prefix(OPEN)?.strip_suffix(CLOSE)?.trim();
        let function = inside
            .strip_prefix("<function=")?
            .strip_suffix("</function>")?;
        let (name, mut rest) = function.split_once('>')?;
        let tool = self.tools.iter().find(|tool| tool.name == name)?;
        let mut arguments = Object::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, after) = after.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key, tool.value(key, value));
            rest = after;
        }
        Some(Call {
            name: name.to_owned(),
            arguments: to_json(&arguments.into()),
        })
    }
}

impl Tool {
    /// A tool as OpenAI's clients describe it: `{"type": "function", "function": {"name", "parameters"?}}`.
    pub(crate) fn from_value(value: &Value) -> Option<Tool> {
        let is_function = value.get("type").and_then(Value::as_str) == Some("function");
        let function = value.get("function").filter(|_| is_function)?;
        let name = function
            .get("name")?
            .as_str()
            .filter(|name| !name.is_empty())?;
        let properties = function
            .get("parameters")
            .and_then(|schema| schema.get("properties"));
        let properties = properties.and_then(Value::as_object).map(Object::iter);
        let is_json = |(_, schema): &(&str, &Value)| !may_be_text(schema);
        Some(Tool {
            name: name.to_owned(),
            json_parameters: properties
                .into_iter()
                .flatten()
                .filter(is_json)
                .map(|(key, _)| key.to_owned())
                .collect(),
        })
    }

    fn value(&self, key: &str, text: &str) -> Value {
        let is_json = self.json_parameters.iter().any(|name| name == key);
        let value = is_json.then(|| parse_str(text).ok()).flatten();
        value.unwrap_or_else(|| Value::from(text))
    }
}

/// Whether a schema lets a value be a string, or does not say.
fn may_be_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind.as_str() == Some("string")),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, parameters: &str) -> Tool {
        let text = format!(
            r#"{{"type": "function", "function": {{"name": "{name}", "parameters": {{"properties": {parameters}}}}}}}"#
        );
        Tool::from_value(&parse_str(&text).unwrap()).unwrap()
    }

    fn calls() -> Calls {
        let parameters = r#"{"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": ["object", "null"]},
                             "either": {"type": ["string", "number"]}, "any": {}}"#;
        Calls::new(vec![tool("weather", parameters), tool("ping", "{}")])
    }

    /// What is heard of a text in pieces of so many bytes, at most.
    fn heard(text: &str, piece: usize) -> Heard {
        let mut calls = calls();
        let mut all = Heard::default();
        let chars: Vec<String> = text.chars().map(String::from).collect();
        for piece in chars.chunks(piece) {
            let heard = calls.push(&piece.concat());
            all.text.push_str(&heard.text);
            all.calls.extend(heard.calls);
        }
        all.text.push_str(&calls.finish());
        all
    }

    const WEATHER: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nSão\nPaulo\n</parameter>\n\
        <parameter=days>\n3\n</parameter>\n<parameter=where>\n{\"a\": [1.50]}\n</parameter>\n\
        <parameter=either>\n7\n</parameter>\n</function>\n</tool_call>";

    fn weather() -> Call {
        Call {
            name: "weather".into(),
            arguments: r#"{"city":"São\nPaulo","days":3,"where":{"a":[1.50]},"either":"7"}"#.into(),
        }
    }

    #[test]
    fn calls_are_heard_wherever_the_text_is_cut() {
        let text = format!(
            "Let me see <tool>.\n\n{WEATHER}\n<tool_call><function=ping></function></tool_call> Done"
        );
        let ping = Call {
            name: "ping".into(),
            arguments: "{}".into(),
        };
        let wanted = Heard {
            text: "Let me see <tool>.\n\n\n Done".into(),
            calls: vec![weather(), ping],
        };
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(heard(&text, piece), wanted, "{piece}");
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "<tool_call>\n{\"name\": \"weather\"}\n</tool_call>",
            "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
            "<tool_call><function=weather><parameter=city>x</function></tool_call>",
            "<tool_call>\n<function=weather>\n<parameter=ci",
            "a <tool_ca",
            "</tool_call>",
        ] {
            for piece in [1, 1000] {
                let found = heard(text, piece);
                assert_eq!((found.text.as_str(), found.calls.len()), (text, 0));
            }
        }
    }

    #[test]
    fn a_value_that_is_not_the_json_it_should_be_is_text() {
        let text =
            "<tool_call><function=weather><parameter=days>soon</parameter></function></tool_call>";
        assert_eq!(heard(text, 5).calls[0].arguments, r#"{"days":"soon"}"#);
    }

    #[test]
    fn without_tools_there_are_no_calls() {
        let mut calls = Calls::new(Vec::new());
        assert_eq!(calls.push(WEATHER).text, WEATHER);
    }
}
