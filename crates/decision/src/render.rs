//! A value as it stands in the prompt.

use crate::float;
use crate::json::{Keys, Number, Value, Walk, write_visit};

/// Renders a value as the release's Python does: a string raw, anything else as `json.dumps` with `ensure_ascii=False`,
/// separators `,` and `:` and sorted keys. Sorting is by code point at every depth. An integer keeps its digits, `-0`
/// being `0`; a float is spelled as Python's `repr` spells the double it reads as.
pub fn render(value: &Value) -> String {
    if let Value::String(text) = value {
        return text.clone();
    }
    let mut out = String::new();
    for visit in Walk::new(value, Keys::Sorted) {
        write_visit(&mut out, visit, spell_as_python);
    }
    out
}

fn spell_as_python(out: &mut String, number: &Number) {
    match number.text() {
        "-0" => out.push('0'),
        digits if number.is_integer() => out.push_str(digits),
        _ => out.push_str(&float::repr(number.as_f64())),
    }
}
