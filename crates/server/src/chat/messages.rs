//! The messages of a conversation, as OpenAI's clients send them.

use descant_decision::json::{Object, parse_str};
use descant_decision::{FaultKind, Step, Value};

use crate::chat::fields::Fields;

/// One message, its text in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    pub(crate) content: String,
    /// The tools that an assistant calls here, their arguments as objects.
    pub(crate) tool_calls: Vec<Value>,
    /// What the model thought before it said this, if the client keeps it apart.
    pub(crate) reasoning: Option<String>,
}

/// What is wrong with a message: where in it, and what.
type Wrong = (Vec<Step>, FaultKind, String);

/// Reads `messages`; faults go to `fields`.
pub(crate) fn read(fields: &mut Fields<'_>) -> Vec<Message> {
    if fields.value("messages").is_none() {
        fields.fault("messages", FaultKind::Missing, "a conversation is required");
        return Vec::new();
    }
    let Some(entries) = fields.array("messages") else {
        return Vec::new();
    };
    if entries.is_empty() {
        fields.fault(
            "messages",
            FaultKind::TooShort,
            "at least one message is required",
        );
    }
    let mut messages = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        match message(entry) {
            Ok(message) => messages.push(message),
            Err((place, kind, msg)) => {
                let loc = [Step::key("messages"), Step::Index(index)];
                fields.fault_at(loc.into_iter().chain(place).collect(), kind, msg);
                // One is enough to find the mistake; a long conversation has it in every message.
                return messages;
            }
        }
    }
    messages
}

fn message(entry: &Value) -> Result<Message, Wrong> {
    let Some(entry) = entry.as_object() else {
        let msg = format!("wanted an object, found {}", entry.kind());
        return Err((Vec::new(), FaultKind::DictType, msg));
    };
    let role = role(entry)?;
    let asks = |field| {
        entry
            .get(field)
            .is_some_and(|value: &Value| !is_empty(value))
    };
    for field in ["function_call", "audio"] {
        if asks(field) {
            let msg = "this server takes text messages only".to_owned();
            return Err((vec![Step::key(field)], FaultKind::NotSupported, msg));
        }
    }
    let content = match entry.get("content") {
        None | Some(Value::Null) if role == "assistant" => String::new(),
        None | Some(Value::Null) => {
            let msg = "the text of the message is required".to_owned();
            return Err((vec![Step::key("content")], FaultKind::Missing, msg));
        }
        Some(content) => text(content)?,
    };
    let tool_calls = match entry.get("tool_calls").filter(|calls| !is_empty(calls)) {
        Some(calls) => tool_calls(role, calls)?,
        None => Vec::new(),
    };
    let reasoning = entry.get("reasoning_content").and_then(Value::as_str);
    Ok(Message {
        role,
        content,
        tool_calls,
        reasoning: reasoning.map(str::to_owned),
    })
}

/// The role as chat templates know it: `developer` is what OpenAI calls `system` by now.
fn role(entry: &Object) -> Result<&'static str, Wrong> {
    let wanted = "system, developer, user, assistant or tool";
    let wrong = |kind, msg: String| Err((vec![Step::key("role")], kind, msg));
    match entry.get("role") {
        None | Some(Value::Null) => {
            wrong(FaultKind::Missing, format!("a role is required: {wanted}"))
        }
        Some(Value::String(role)) => match role.as_str() {
            "assistant" => Ok("assistant"),
            "developer" | "system" => Ok("system"),
            "tool" => Ok("tool"),
            "user" => Ok("user"),
            _ => wrong(FaultKind::UnionTagInvalid, format!("wanted {wanted}")),
        },
        Some(other) => {
            let msg = format!("wanted a string, found {}", other.kind());
            wrong(FaultKind::StringType, msg)
        }
    }
}

/// The calls as a template wants them: what OpenAI's clients send as JSON text is an object.
fn tool_calls(role: &str, calls: &Value) -> Result<Vec<Value>, Wrong> {
    let wrong = |msg: &str| {
        let loc = vec![Step::key("tool_calls")];
        (loc, FaultKind::UnionType, msg.to_owned())
    };
    if role != "assistant" {
        return Err(wrong("only an assistant calls tools"));
    }
    let calls = calls.as_array().ok_or_else(|| wrong("wanted an array"))?;
    let calls: Option<Vec<Value>> = calls.iter().map(tool_call).collect();
    calls
        .ok_or_else(|| wrong("wanted functions, each with its name and its arguments as JSON text"))
}

fn tool_call(call: &Value) -> Option<Value> {
    let function = call.get("function")?;
    let name = function.get("name")?.as_str()?;
    let arguments = match function.get("arguments")? {
        Value::String(text) => parse_str(text).ok()?,
        other => other.clone(),
    };
    arguments.as_object()?;
    let function = Object::new()
        .with("name", name)
        .with("arguments", arguments);
    let call = Object::new()
        .with("type", "function")
        .with("function", function);
    Some(call.into())
}

/// The text of a message: a string, or text parts one after the other.
fn text(content: &Value) -> Result<String, Wrong> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut text = String::new();
            for (index, part) in parts.iter().enumerate() {
                text.push_str(text_of_part(part).map_err(|(place, kind, msg)| {
                    let loc = [Step::key("content"), Step::Index(index)];
                    (loc.into_iter().chain(place).collect(), kind, msg)
                })?);
            }
            Ok(text)
        }
        other => {
            let msg = format!(
                "wanted a string or an array of parts, found {}",
                other.kind()
            );
            Err((vec![Step::key("content")], FaultKind::UnionType, msg))
        }
    }
}

fn text_of_part(part: &Value) -> Result<&str, Wrong> {
    let Some(part) = part.as_object() else {
        let msg = format!("wanted an object, found {}", part.kind());
        return Err((Vec::new(), FaultKind::DictType, msg));
    };
    match part.get("type").and_then(Value::as_str) {
        Some("text") => part.get("text").and_then(Value::as_str).ok_or_else(|| {
            let msg = "the text of the part is required".to_owned();
            (vec![Step::key("text")], FaultKind::StringType, msg)
        }),
        Some(_) => {
            let msg = "this server reads parts of type text only".to_owned();
            Err((vec![Step::key("type")], FaultKind::NotSupported, msg))
        }
        None => {
            let msg = "the type of the part is required: text".to_owned();
            Err((vec![Step::key("type")], FaultKind::UnionTagNotFound, msg))
        }
    }
}

/// Whether a field says nothing: null, or an empty array.
fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(<[Value]>::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::fields::parse;
    use crate::error::Refused;

    fn messages(body: &str) -> Result<Vec<Message>, String> {
        let object = parse(format!("{{\"messages\": {body}}}").as_bytes()).unwrap();
        let mut fields = Fields::new(&object);
        let messages = read(&mut fields);
        match fields.done() {
            Ok(()) => Ok(messages),
            Err(Refused::Faults(faults)) => Err(faults[0].to_string()),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn text_comes_as_a_string_or_in_parts() {
        let found = messages(
            r#"[{"role": "developer", "content": "Be brief.", "name": "x"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": []},
                {"role": "user", "content": ""}]"#,
        );
        let message = |role, content: &str, reasoning: Option<&str>| Message {
            role,
            content: content.to_owned(),
            tool_calls: Vec::new(),
            reasoning: reasoning.map(str::to_owned),
        };
        let wanted = vec![
            message("system", "Be brief.", None),
            message("user", "ab", None),
            message("assistant", "", Some("hm")),
            message("user", "", None),
        ];
        assert_eq!(found, Ok(wanted));
    }

    #[test]
    fn a_calls_arguments_are_an_object_to_the_template() {
        let found = messages(
            r#"[{"role": "assistant", "content": null, "tool_calls": [
                   {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.50, \"a\": null}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "3"}]"#,
        )
        .unwrap();
        let wanted =
            r#"{"type":"function","function":{"name":"f","arguments":{"b":1.50,"a":null}}}"#;
        assert_eq!(found[0].tool_calls[0].to_string(), wanted);
        assert_eq!((found[1].role, found[1].content.as_str()), ("tool", "3"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, wanted) in [
            ("null", "messages: a conversation is required"),
            ("[]", "messages: at least one message is required"),
            ("\"hi\"", "messages: wanted an array, found a string"),
            ("[7]", "messages[0]: wanted an object, found a number"),
            (
                r#"[{"content": "x"}]"#,
                "messages[0].role: a role is required: system, ",
            ),
            (
                r#"[{"role": "robot", "content": "x"}]"#,
                "messages[0].role: wanted system, ",
            ),
            (
                r#"[{"role": 1, "content": "x"}]"#,
                "messages[0].role: wanted a string, found a number",
            ),
            (
                r#"[{"role": "user"}]"#,
                "messages[0].content: the text of the message is required",
            ),
            (
                r#"[{"role": "user", "content": {}}]"#,
                "messages[0].content: wanted a string or ",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#,
                "messages[0].content[0].type: this server reads ",
            ),
            (
                r#"[{"role": "user", "content": [{"text": "x"}]}]"#,
                "messages[0].content[0].type: the type of ",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "text"}]}]"#,
                "messages[0].content[0].text: the text of ",
            ),
            (
                r#"[{"role": "user", "content": ["x"]}]"#,
                "messages[0].content[0]: wanted an object, found a string",
            ),
            (
                r#"[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}]"#,
                "messages[1].tool_calls: wanted functions",
            ),
            (
                r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]"#,
                "messages[0].tool_calls: wanted functions",
            ),
            (
                r#"[{"role": "user", "content": "x", "tool_calls": [{}]}]"#,
                "messages[0].tool_calls: only an assistant",
            ),
        ] {
            let found = messages(body).unwrap_err();
            assert!(found.starts_with(wanted), "{body}: {found}");
        }
    }
}
