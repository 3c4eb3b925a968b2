//! The writer: compact or indented JSON text, keys in their order, numbers by their text.

use std::fmt::Write;

use super::walk::{Keys, Visit, Walk};
use super::{Number, Value};

/// Compact JSON text: keys in order, numbers with the text they came with, nothing but `"`, `\` and U+0000 to U+001F
/// escaped.
pub fn to_json(value: &Value) -> String {
    let mut out = String::new();
    for visit in Walk::new(value, Keys::InOrder) {
        write_visit(&mut out, visit, as_sent);
    }
    out
}

/// JSON text for people: a line an entry, two spaces a level; otherwise as [`to_json`].
pub fn to_json_pretty(value: &Value) -> String {
    let mut out = String::new();
    let mut level = 0;
    for visit in Walk::new(value, Keys::InOrder) {
        if let Visit::End { empty: false, .. } = visit {
            level -= 1;
            new_line(&mut out, level);
        }
        write_visit(&mut out, visit, as_sent);
        match visit {
            Visit::Start { empty: false, .. } => {
                level += 1;
                new_line(&mut out, level);
            }
            Visit::Comma => new_line(&mut out, level),
            Visit::Key(_) => out.push(' '),
            _ => {}
        }
    }
    out
}

fn as_sent(out: &mut String, number: &Number) {
    out.push_str(number.text());
}

fn new_line(out: &mut String, level: usize) {
    write!(out, "\n{:1$}", "", 2 * level).expect("a String takes all text");
}

/// Writes one visit of a walk; how a number is spelled is the caller's choice.
pub(crate) fn write_visit(
    out: &mut String,
    visit: Visit<'_>,
    spell: impl FnOnce(&mut String, &Number),
) {
    match visit {
        Visit::Start { object, .. } => out.push(if object { '{' } else { '[' }),
        Visit::End { object, .. } => out.push(if object { '}' } else { ']' }),
        Visit::Comma => out.push(','),
        Visit::Key(key) => {
            write_string(out, key);
            out.push(':');
        }
        Visit::Null => out.push_str("null"),
        Visit::Bool(b) => out.push_str(if b { "true" } else { "false" }),
        Visit::Number(number) => spell(out, number),
        Visit::String(text) => write_string(out, text),
    }
}

/// Writes a JSON string with its quotes.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut written = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[written..at]);
        written = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            _ => write!(out, "\\u{byte:04x}").expect("a String takes all text"),
        }
    }
    out.push_str(&text[written..]);
    out.push('"');
}
