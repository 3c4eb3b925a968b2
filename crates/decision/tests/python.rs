//! Reading and rendering JSON against CPython's own `json`.
#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use descant_decision::json::{ParseErrorKind, parse_str, to_json};
use descant_decision::render;
use descant_testkit::fixtures;

/// The pairs of a golden file.
fn pairs(file: &str) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let lines = fixtures::jsonl(&format!("golden/python/{file}.jsonl.gz"));
    lines
        .iter()
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect()
}

/// Renders a value as Python would, a string with its quotes.
fn dumps(text: &str) -> Result<String, ParseErrorKind> {
    // A string alone is rendered raw; in an array it has its quotes.
    let value = parse_str(&format!("[{text}]")).map_err(|error| error.kind)?;
    let rendered = render(&value);
    Ok(rendered[1..rendered.len() - 1].to_owned())
}

/// Python spells what overflows, and reads and writes three names that are not JSON; this program refuses both.
fn is_not_finite(spelled: &str) -> bool {
    spelled.contains("Infinity") || spelled.contains("NaN")
}

#[test]
fn numbers_are_spelled_as_python_spells_them() {
    let (mut equal, mut refused) = (0, 0);
    for (text, wanted) in pairs("numbers") {
        match dumps(&text) {
            Ok(found) => {
                assert_eq!(found, wanted, "{text}");
                equal += 1;
            }
            Err(ParseErrorKind::NonFinite | ParseErrorKind::NumberTooLarge)
                if is_not_finite(&wanted) =>
            {
                refused += 1
            }
            Err(error) => panic!("{text}: {error:?}"),
        }
    }
    println!("{equal} equal, {refused} refused");
    assert!(equal > 1000 && refused > 3);
}

#[test]
fn strings_and_containers_are_spelled_as_python_spells_them() {
    for file in ["strings", "values"] {
        let mut equal = 0;
        for (text, wanted) in pairs(file) {
            match dumps(&text) {
                Ok(found) => assert_eq!(found, wanted, "{text}"),
                Err(error) => assert!(is_not_finite(&wanted), "{text}: {error:?}"),
            }
            equal += 1;
        }
        println!("{file}: {equal} equal");
        assert!(equal > 100, "{file}: {equal}");
    }
}

/// What is written as it was read is read again to the same rendering.
#[test]
fn writing_loses_nothing() {
    for (text, wanted) in pairs("values")
        .into_iter()
        .filter(|(_, wanted)| !is_not_finite(wanted))
    {
        let written = to_json(&parse_str(&text).unwrap());
        assert_eq!(dumps(&written).unwrap(), wanted, "{text}");
    }
}

#[test]
fn what_python_refuses_is_refused() {
    for (text, message) in pairs("refused") {
        assert!(parse_str(&text).is_err(), "{text:?}: Python says {message}");
    }
}
