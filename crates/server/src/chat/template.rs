//! A release's chat template: Jinja, rendered as `transformers` renders it.
//!
//! `transformers` compiles templates with jinja2: `trim_blocks` and `lstrip_blocks` on, one newline at the end dropped,
//! nothing escaped. minijinja does the same but for what is set up here: `tojson` and floats spelled as Python spells
//! them, `none` not iterable, white space as Python's `str.strip` knows it, `raise_exception`, and the `generation` tags,
//! which only mark text for training. A template that needs more is an error that says what; so is one that asks for
//! the time (`strftime_now`), since the same request is to give the same prompt on any day.

use std::fmt;

use descant_decision::Value;
use descant_decision::json::{Number, to_json};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Jinja};
use minijinja_contrib::pycompat;

use crate::chat::messages::Message;

/// The chat template of a release, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The tokenizer's named tokens, such as `eos_token`, which a template may print.
    tokens: Vec<(String, String)>,
}

/// A template that cannot be used, or that refuses a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// What the template engine says, or the template itself.
    pub message: String,
}

/// What a template is asked for.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    pub(crate) messages: &'a [Message],
    /// The tools that the model may call, as the client describes them.
    pub(crate) tools: &'a [Value],
    /// Whether the prompt ends with the start of the answer.
    pub(crate) opens_answer: bool,
    /// Further variables, by name; they win over all others but the messages.
    pub(crate) variables: &'a [(String, Value)],
}

/// Steps of a template's program; a conversation takes some dozens a message. Some tenths of a second at the most.
const FUEL: u64 = 4_000_000;
/// Calls within calls.
const RECURSION_MAX: usize = 100;
const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template. `tokens` are the tokenizer's named tokens (`bos_token`, `eos_token`, …) and their texts.
    ///
    /// # Errors
    /// If it is no template, or uses tags that are not known.
    pub fn new(source: &str, tokens: Vec<(String, String)>) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_unknown_method_callback(method);
        environment.set_formatter(print_value);
        environment.add_filter("tojson", |value: &Jinja, options: Kwargs| {
            to_python_json(value, &options)
        });
        environment.add_filter("trim", |text: String, characters: Option<String>| {
            strip(&text, characters.as_deref(), true, true).to_owned()
        });
        environment.add_test("iterable", |value: &Jinja| {
            !value.is_none() && !value.is_undefined() && value.try_iter().is_ok()
        });
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Jinja, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_template_owned(NAME, without_generation_tags(source))?;
        Ok(ChatTemplate {
            environment,
            tokens,
        })
    }

    /// Whether it does anything with tools.
    pub(crate) fn knows_tools(&self) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(false).contains("tools"))
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// What the template objects to, or what it needs and does not get.
    pub(crate) fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let tools = match conversation.tools {
            [] => Jinja::from(()),
            tools => tools.iter().map(jinja).collect::<Vec<_>>().into(),
        };
        let messages: Vec<Jinja> = conversation.messages.iter().map(jinja_message).collect();
        let mut variables: Vec<(&str, Jinja)> = vec![
            ("documents", Jinja::from(())),
            ("tools", tools),
            ("add_generation_prompt", conversation.opens_answer.into()),
        ];
        variables.extend(
            self.tokens
                .iter()
                .map(|(name, text)| (name.as_str(), text.as_str().into())),
        );
        for (name, value) in conversation.variables {
            variables.push((name, jinja(value)));
        }
        variables.push(("messages", messages.into()));
        let template = self.environment.get_template(NAME)?;
        Ok(template.render(Jinja::from_pairs(variables))?)
    }
}

fn jinja_message(message: &Message) -> Jinja {
    let reasoning = message.reasoning.as_deref();
    let pairs = [
        ("role", Some(message.role)),
        ("content", Some(&message.content)),
        ("reasoning_content", reasoning),
    ];
    let given = pairs
        .into_iter()
        .filter_map(|(name, text)| Some((name, Jinja::from(text?))));
    let calls: Vec<Jinja> = message.tool_calls.iter().map(jinja).collect();
    let calls = (!calls.is_empty()).then(|| ("tool_calls", Jinja::from(calls)));
    Jinja::from_pairs(given.chain(calls))
}

/// A JSON value as a template sees it.
fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(bool) => (*bool).into(),
        Value::Number(number) => jinja_number(number),
        Value::String(text) => text.as_str().into(),
        Value::Array(elements) => elements.iter().map(jinja).collect::<Vec<_>>().into(),
        Value::Object(object) => {
            Jinja::from_pairs(object.iter().map(|(key, value)| (key, jinja(value))))
        }
    }
}

fn jinja_number(number: &Number) -> Jinja {
    let text = number.text();
    match text.parse::<i64>() {
        Ok(integer) => integer.into(),
        Err(_) => match text.parse::<i128>() {
            Ok(integer) => integer.into(),
            Err(_) => number.as_f64().into(),
        },
    }
}

/// `{{ value }}` as Python's `str` has it; a list or a map, which Python spells in ways of its own, is an error.
fn print_value(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Jinja,
) -> Result<(), Error> {
    if matches!(
        value.kind(),
        ValueKind::Iterable | ValueKind::Map | ValueKind::Seq
    ) {
        let message = format!("it prints a {} without tojson", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    match float(value) {
        Some(text) => out.write_str(&text).map_err(|error| {
            Error::new(ErrorKind::WriteFailure, "the prompt could not be written")
                .with_source(error)
        }),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// A float as Python's `repr` has it; `None` for anything else.
fn float(value: &Jinja) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    let number = f64::try_from(value.clone()).ok()?;
    Some(match number {
        _ if number.is_nan() => "nan".to_owned(),
        f64::INFINITY => "inf".to_owned(),
        f64::NEG_INFINITY => "-inf".to_owned(),
        _ => Number::float(number).text().to_owned(),
    })
}

/// Python's methods of strings, maps and lists.
fn method(
    state: &mut State<'_, '_>,
    value: &Jinja,
    name: &str,
    args: &[Jinja],
) -> Result<Jinja, Error> {
    if let Some(text) = value.as_str()
        && let Some((start, end)) = match name {
            "strip" => Some((true, true)),
            "lstrip" => Some((true, false)),
            "rstrip" => Some((false, true)),
            _ => None,
        }
    {
        let (characters,): (Option<&str>,) = from_args(args)?;
        return Ok(strip(text, characters, start, end).into());
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// Python's `str.strip`, `lstrip` and `rstrip`.
fn strip<'a>(text: &'a str, characters: Option<&str>, start: bool, end: bool) -> &'a str {
    let goes = |c: char| match characters {
        Some(characters) => characters.contains(c),
        // Beyond Unicode's white space Python counts the four information separators.
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if start {
        text.trim_start_matches(goes)
    } else {
        text
    };
    if end {
        text.trim_end_matches(goes)
    } else {
        text
    }
}

/// `tojson` as `transformers` defines it: `json.dumps` with `ensure_ascii` off, keys in their order.
fn to_python_json(value: &Jinja, options: &Kwargs) -> Result<Jinja, Error> {
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        let message = "tojson with ensure_ascii is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let indent = options.get::<Option<usize>>("indent")?;
    options.assert_all_used()?;
    let mut out = String::new();
    write_json(&mut out, value, indent, 0)?;
    Ok(Jinja::from_safe_string(out))
}

fn write_json(
    out: &mut String,
    value: &Jinja,
    indent: Option<usize>,
    level: usize,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => match float(value).as_deref() {
            None => out.push_str(&value.to_string()),
            Some("nan") => out.push_str("NaN"),
            Some("inf") => out.push_str("Infinity"),
            Some("-inf") => out.push_str("-Infinity"),
            Some(text) => out.push_str(text),
        },
        ValueKind::String => out.push_str(&json_string(value)),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut elements = value.try_iter()?;
            write_all(out, ('[', ']'), indent, level, |out, level| {
                let Some(element) = elements.next() else {
                    return Ok(false);
                };
                between(out, indent, level);
                write_json(out, &element, indent, level)?;
                Ok(true)
            })?;
        }
        ValueKind::Map => {
            let mut keys = value.try_iter()?;
            write_all(out, ('{', '}'), indent, level, |out, level| {
                let Some(key) = keys.next() else {
                    return Ok(false);
                };
                between(out, indent, level);
                out.push_str(&json_string(&key));
                out.push_str(": ");
                write_json(out, &value.get_item(&key)?, indent, level)?;
                Ok(true)
            })?;
        }
        other => {
            let message = format!("a value of kind {other} has no JSON form");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

/// Writes a container's entries, as many as `entry` has.
fn write_all(
    out: &mut String,
    (open, close): (char, char),
    indent: Option<usize>,
    level: usize,
    mut entry: impl FnMut(&mut String, usize) -> Result<bool, Error>,
) -> Result<(), Error> {
    out.push(open);
    let start = out.len();
    while entry(out, level + 1)? {}
    if let Some(indent) = indent
        && out.len() > start
    {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    }
    out.push(close);
    Ok(())
}

/// What stands before an entry: a comma unless it is the first, and its white space.
fn between(out: &mut String, indent: Option<usize>, level: usize) {
    let first = out.ends_with(['[', '{']);
    match indent {
        None if first => {}
        None => out.push_str(", "),
        Some(indent) => {
            out.push_str(if first { "\n" } else { ",\n" });
            out.extend(std::iter::repeat_n(' ', indent * level));
        }
    }
}

fn json_string(text: &Jinja) -> String {
    to_json(&Value::from(text.to_string()))
}

/// The source with each `generation` tag, which marks what a model is trained on, as a condition that holds: the same
/// text, and the same white space around it.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inside = &tag[2..end];
        let word = inside
            .trim_start_matches(['-', '+'])
            .trim_end_matches(['-', '+'])
            .trim();
        let stands_for = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match stands_for {
            Some(condition) => out.push_str(&format!("{{%{}%}}", inside.replace(word, condition))),
            None => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> TemplateError {
        // The detail of `raise_exception` is the template's own sentence.
        let message = match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => "the conversation is too long for it".to_owned(),
            (_, Some(detail)) => detail.to_owned(),
            (kind, None) => kind.to_string(),
        };
        TemplateError { message }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the chat template: {}", self.message)
    }
}

impl std::error::Error for TemplateError {}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use descant_decision::json::parse_str;
    use descant_testkit::fixtures;

    use super::*;
    use crate::chat::fields::{Fields, parse};
    use crate::chat::messages;

    fn render(source: &str, variables: &str) -> Result<String, String> {
        let tokens = vec![("eos_token".to_owned(), "<end>".to_owned())];
        let template = ChatTemplate::new(source, tokens).map_err(|error| error.message)?;
        let value = parse_str(variables).unwrap();
        let variables: Vec<(String, Value)> = value
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        let messages = [Message {
            role: "user",
            content: " hi\u{1f}".into(),
            tool_calls: Vec::new(),
            reasoning: None,
        }];
        let conversation = Conversation {
            messages: &messages,
            tools: &[],
            opens_answer: true,
            variables: &variables,
        };
        template
            .render(&conversation)
            .map_err(|error| error.message)
    }

    fn rendered(source: &str, variables: &str) -> String {
        render(source, variables).unwrap()
    }

    /// Every template, conversation and set of variables of the golden file, as `transformers` renders it or refuses it.
    #[test]
    fn prompts_are_those_of_transformers() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut rendered, mut refused) = (0, 0);
        for line in fixtures::jsonl("golden/chat/renderings.jsonl.gz") {
            let text = |field: &str| line[field].as_str().map(str::to_owned);
            let name = text("name").unwrap();
            let source =
                std::fs::read_to_string(repository.join(text("template").unwrap())).unwrap();
            let tokens = vec![("eos_token".to_owned(), text("eos_token").unwrap())];
            let template = ChatTemplate::new(&source, tokens).unwrap();
            let body = parse(line.to_string().as_bytes()).unwrap();
            let mut fields = Fields::new(&body);
            let messages = messages::read(&mut fields);
            let variables = fields.object("variables").unwrap().iter();
            let variables: Vec<_> = variables
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect();
            let tools = fields.array("tools").unwrap_or_default();
            let opens_answer = fields.boolean("add_generation_prompt").unwrap();
            fields.done().unwrap();
            let found = template.render(&Conversation {
                messages: &messages,
                tools,
                opens_answer,
                variables: &variables,
            });
            match text("rendered") {
                Some(wanted) => {
                    assert_eq!(found.as_deref(), Ok(wanted.as_str()), "{name}");
                    rendered += 1;
                }
                None => {
                    let message = found.unwrap_err().message;
                    assert_eq!(Some(message), text("error"), "{name}");
                    refused += 1;
                }
            }
        }
        assert!(
            rendered > 300 && refused > 10,
            "{rendered} rendered, {refused} refused"
        );
    }

    #[test]
    fn json_is_spelled_as_python_spells_it() {
        // From json.dumps(x, ensure_ascii=False) of CPython.
        let x = r#"{"b": [1, 2.50, 1e-5, -0.0, 12345678901234567890], "a": {"é<&'\"": null, "t": true, "e": [], "o": {}}}"#;
        let wanted = r#"{"b": [1, 2.5, 1e-05, -0.0, 12345678901234567890], "a": {"é<&'\"": null, "t": true, "e": [], "o": {}}}"#;
        assert_eq!(
            rendered("{{ x | tojson }}", &format!("{{\"x\": {x}}}")),
            wanted
        );
        let indented = "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}";
        assert_eq!(
            rendered(
                "{{ x | tojson(indent=2) }}",
                r#"{"x": {"a": [1, 2], "b": {}}}"#
            ),
            indented
        );
        assert!(render("{{ x | tojson(sort=1) }}", r#"{"x": 1}"#).is_err());
    }

    #[test]
    fn values_are_printed_as_python_prints_them() {
        let printed = rendered(
            "{{ a }} {{ b }} {{ c }} {{ d }}",
            r#"{"a": null, "b": true, "c": 1e16, "d": 3}"#,
        );
        assert_eq!(printed, "None True 1e+16 3");
        assert!(render("{{ a }}", r#"{"a": [1]}"#).is_err());
    }

    #[test]
    fn white_space_is_what_python_strips() {
        let source = "[{{ messages[0].content | trim }}|{{ messages[0].content.strip() }}|{{ 'xaxx'.lstrip('x') }}]";
        assert_eq!(rendered(source, "{}"), "[hi|hi|axx]");
    }

    #[test]
    fn nothing_is_not_iterable_and_missing_things_are_empty() {
        let source = "{{ tools is iterable }} {{ tools is none }} {{ nothing is defined }} [{{ nothing }}] {{ eos_token }}";
        assert_eq!(rendered(source, "{}"), "False True False [] <end>");
    }

    #[test]
    fn a_template_objects_in_its_own_words() {
        assert_eq!(
            render("{{ raise_exception('No user query found.') }}", "{}"),
            Err("No user query found.".into())
        );
        assert!(render("{% for x in %}", "{}").is_err());
        assert!(render("{{ strftime_now('%Y') }}", "{}").is_err());
        assert!(render("{{ 1 + nothing.field }}", "{}").is_err());
    }

    #[test]
    fn a_template_ends() {
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert_eq!(
            render(endless, "{}"),
            Err("the conversation is too long for it".into())
        );
        let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(render(deep, "{}").is_err());
    }

    #[test]
    fn generation_tags_only_mark_text() {
        let source =
            "a\n  {% generation %}\nb\n{%- endgeneration -%}\n c {% if true %}d{% endif %}";
        assert_eq!(rendered(source, "{}"), "a\nbc d");
        assert_eq!(without_generation_tags("{% open"), "{% open");
    }
}
