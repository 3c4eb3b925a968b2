//! The parser, the writer and the renderer: tables, nesting on small stacks, properties.
#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use std::thread;
use std::time::{Duration, Instant};

use descant_decision::json::{
    NESTING_MAX, Number, Object, ParseErrorKind, VALUES_MAX, parse, parse_str,
};
use descant_decision::json::{to_json, to_json_pretty};
use descant_decision::{Fault, FaultKind, Step, Value, render};
use proptest::prelude::*;

/// Text, and what Python's `json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)`
/// prints for it, run with CPython 3.11.
const RENDERED: &[(&str, &str)] = &[
    ("null", "null"),
    (" [ true , false ] ", "[true,false]"),
    ("-0", "0"),
    ("-0.0", "-0.0"),
    ("1.10", "1.1"),
    ("1E5", "100000.0"),
    ("1e15", "1000000000000000.0"),
    ("1e16", "1e+16"),
    ("1e22", "1e+22"),
    ("0.0001", "0.0001"),
    ("0.00001", "1e-05"),
    ("1e-7", "1e-07"),
    ("1.5e-07", "1.5e-07"),
    ("0e0", "0.0"),
    ("1e-400", "0.0"),
    ("-1e-400", "-0.0"),
    (
        "123456789012345678901234567890",
        "123456789012345678901234567890",
    ),
    ("-18446744073709551617", "-18446744073709551617"),
    ("12345678901234567.0", "1.2345678901234568e+16"),
    ("159.924957275390625", "159.92495727539062"),
    (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#),
    (
        r#"{"b":{"z":1,"a":[{"y":1,"x":2}]},"a":0}"#,
        r#"{"a":0,"b":{"a":[{"x":2,"y":1}],"z":1}}"#,
    ),
    // UTF-16 order would put U+1F600 before U+FF61.
    (
        "{\"\u{1f600}\":1,\"\u{ff61}\":2,\"Z\":3,\"_\":4,\"a\":5}",
        "{\"Z\":3,\"_\":4,\"a\":5,\"\u{ff61}\":2,\"\u{1f600}\":1}",
    ),
    (
        r#"["\u0001\u001f\b\f\n\r\t\"\\\/é"]"#,
        "[\"\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\/é\"]",
    ),
    (
        r#"["\u007f\u2028\ud83d\ude00"]"#,
        "[\"\u{7f}\u{2028}\u{1f600}\"]",
    ),
    ("[{},[],\"\"]", "[{},[],\"\"]"),
];

#[test]
fn rendering_is_pythons() {
    for (text, wanted) in RENDERED {
        assert_eq!(render(&parse_str(text).unwrap()), *wanted, "{text}");
    }
}

#[test]
fn a_string_is_rendered_raw() {
    let text = "a \"quoted\" \\ \u{1} line\n<|im_end|>";
    assert_eq!(render(&Value::from(text)), text);
}

#[test]
fn writing_keeps_order_and_spelling() {
    let text = r#"{"b":[1.10,-0,1E5,1e+2],"a":{"d":"é\u0001","c":null}}"#;
    assert_eq!(to_json(&parse_str(text).unwrap()), text);
}

#[test]
fn pretty_text_has_a_line_an_entry() {
    let value = parse_str(r#"{"a":[1,{"b":[]}],"c":{}}"#).unwrap();
    let wanted = "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}";
    assert_eq!(to_json_pretty(&value), wanted);
}

#[test]
fn a_repeated_key_has_its_last_value_at_its_first_position() {
    let value = parse_str(r#"{"x":1,"a":2,"x":{"a":3},"b":4,"a":5,"x":6}"#).unwrap();
    assert_eq!(to_json(&value), r#"{"x":6,"a":5,"b":4}"#);
    let collected: Object = [("x", 1), ("a", 2), ("x", 3)].into_iter().collect();
    assert_eq!(to_json(&collected.into()), r#"{"x":3,"a":2}"#);
}

/// Text, where it stops being JSON, and a part of the message.
const REFUSED: &[(&str, usize, &str)] = &[
    ("", 0, "wanted a value, found the end"),
    ("  ", 2, "found the end"),
    ("\u{feff}1", 0, "byte order mark"),
    ("NaN", 0, "NaN"),
    ("[Infinity]", 1, "Infinity"),
    ("-Infinity", 0, "Infinity"),
    ("nul", 0, "wanted a value"),
    ("True", 0, "wanted a value, found 'T'"),
    ("01", 0, "spelled"),
    ("-", 1, "spelled"),
    ("+1", 0, "wanted a value"),
    ("1.", 2, "spelled"),
    (".5", 0, "wanted a value"),
    ("1e", 2, "spelled"),
    ("1e+", 3, "spelled"),
    ("-a", 1, "spelled"),
    ("1 2", 2, "wanted the end of the text"),
    ("[1,]", 3, "wanted a value, found ']'"),
    ("[1 2]", 3, "wanted ',' or ']'"),
    ("[1}", 2, "wanted ',' or ']', found '}'"),
    ("[", 1, "wanted a value, found the end"),
    ("[1", 2, "found the end"),
    ("{\"a\":1]", 6, "wanted ',' or '}'"),
    ("{\"a\" 1}", 5, "wanted ':'"),
    ("{a:1}", 1, "wanted a key or '}'"),
    ("{\"a\":1,}", 7, "wanted a key, found '}'"),
    ("{1:2}", 1, "wanted a key"),
    ("\"a", 2, "wanted '\"'"),
    ("\"\n\"", 1, "U+000A unescaped"),
    ("\"\\x\"", 1, "escape"),
    ("\"\\u12\"", 1, "escape"),
    ("\"\\u+123\"", 1, "escape"),
    ("\"\\u00é0\"", 1, "escape"),
    ("\"\\ud800\"", 1, "surrogate"),
    ("\"a\\udc00\"", 2, "surrogate"),
    ("\"\\ud800\\u0041\"", 1, "surrogate"),
    ("\"\\ud800\\ud800\"", 1, "surrogate"),
    ("\"\\ud800\\uzzzz\"", 7, "escape"),
    ("\"\\ud800\\n\"", 1, "surrogate"),
    ("[\u{a0}1]", 1, "wanted a value"),
    ("[1]\0", 3, "wanted the end"),
    ("'a'", 0, "wanted a value"),
    ("/**/1", 0, "wanted a value"),
];

#[test]
fn what_is_not_json_is_refused_where_it_stops() {
    for (text, offset, message) in REFUSED {
        let error = parse_str(text).expect_err(text);
        assert_eq!(error.offset, *offset, "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
        let fault = Fault::from(error);
        assert_eq!(fault.kind, FaultKind::JsonInvalid);
        assert_eq!(fault.loc, [Step::Index(*offset)]);
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    for (bytes, offset) in [
        (&b"\"\xff\""[..], 1),
        (b"\"\xed\xa0\x80\"", 1),
        (b"\"\xc0\xaf\"", 1),
        (b"\"ab\xe2\x82", 3),
    ] {
        let error = parse(bytes).unwrap_err();
        assert_eq!(
            (error.kind, error.offset),
            (ParseErrorKind::NotUtf8, offset)
        );
    }
}

#[test]
fn a_number_that_overflows_is_named_by_its_path() {
    for number in ["1e400", "-1e400", "1.8e308", "123.0e999999999999"] {
        let fault = Fault::from(
            parse_str(&format!(r#"{{"state":{{"é":[0,{{}},{number}]}}}}"#)).unwrap_err(),
        );
        assert_eq!(fault.kind, FaultKind::FiniteNumber);
        assert_eq!(
            fault.loc,
            [Step::key("state"), Step::key("é"), Step::Index(2)]
        );
    }
    assert_eq!(
        render(&parse_str("1.7976931348623157e308").unwrap()),
        "1.7976931348623157e+308"
    );
    assert_eq!(
        render(&parse_str("1.7976931348623158e308").unwrap()),
        "1.7976931348623157e+308"
    );
}

#[test]
fn integers_have_as_many_digits_as_python_reads() {
    let longest = "9".repeat(4300);
    assert_eq!(
        render(&parse_str(&format!("[-{longest}]")).unwrap()),
        format!("[-{longest}]")
    );
    let fault = Fault::from(parse_str(&format!("[1,-{longest}9]")).unwrap_err());
    assert_eq!(fault.kind, FaultKind::IntParsingSize);
    assert_eq!(fault.loc, [Step::Index(1)]);
    assert!(fault.msg.contains("4301 digits"), "{}", fault.msg);
    let float = format!("0.{longest}9");
    assert_eq!(render(&parse_str(&float).unwrap()), "1.0");
}

/// An eighth of what a thread has by default.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(256 << 10);
    thread.spawn(work).unwrap().join().unwrap();
}

#[test]
fn nesting_needs_no_stack() {
    on_a_small_stack(|| {
        for (open, close) in [("[", "]"), ("{\"k\":", "}"), ("[{\"k\":", "}]")] {
            let levels = NESTING_MAX / close.len();
            let text = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            let value = parse_str(&text).unwrap();
            let copy = value.clone();
            assert!(value == copy);
            assert_eq!(to_json(&copy), text);
            assert_eq!(render(&copy), text);
            assert_eq!(format!("{copy:?}"), text);
            assert!(to_json_pretty(&copy).len() > text.len());
            drop((value, copy));
        }
    });
}

#[test]
fn deeper_nesting_is_refused_however_deep() {
    on_a_small_stack(|| {
        for levels in [NESTING_MAX + 1, 100_000, 5_000_000] {
            let error = parse_str(&"[".repeat(levels)).unwrap_err();
            assert_eq!(
                (error.kind, error.offset),
                (ParseErrorKind::NestingTooDeep, NESTING_MAX)
            );
            let error = parse_str(&"{\"a\":".repeat(levels)).unwrap_err();
            assert_eq!(
                (error.kind, error.offset),
                (ParseErrorKind::NestingTooDeep, 5 * NESTING_MAX)
            );
        }
        // A level that is closed is not open.
        assert!(parse_str(&format!("[{}1]", "[],{},".repeat(2 * NESTING_MAX))).is_ok());
    });
}

#[test]
fn more_values_than_the_limit_are_refused() {
    let zeros = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
    assert!(parse_str(&zeros(VALUES_MAX - 1)).is_ok());
    let error = parse_str(&zeros(VALUES_MAX)).unwrap_err();
    assert_eq!(error.kind, ParseErrorKind::TooManyValues);
}

/// 200,000 keys with a long common start, each given twice. Quadratic code would take minutes.
#[test]
fn many_keys_are_not_quadratic() {
    let start = Instant::now();
    let key = |index: usize| format!("\"{}{:06}\":{index}", "k".repeat(50), index % 200_000);
    let entries: Vec<_> = (0..400_000).map(key).collect();
    let value = parse_str(&format!("{{{}}}", entries.join(","))).unwrap();
    let object = value.as_object().unwrap();
    assert_eq!(object.len(), 200_000);
    assert_eq!(
        object
            .iter()
            .next()
            .unwrap()
            .1
            .as_number()
            .unwrap()
            .as_u64(),
        Some(200_000)
    );
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "took {:?}",
        start.elapsed()
    );
}

#[test]
fn numbers_are_read() {
    let number = |text| parse_str(text).unwrap().as_number().unwrap().clone();
    assert_eq!(number("17").as_u64(), Some(17));
    assert_eq!(number("-17").as_u64(), None);
    assert_eq!(number("17.0").as_u64(), None);
    assert_eq!(number("18446744073709551616").as_u64(), None);
    assert_eq!(number("1e2").as_f64().to_bits(), 100.0_f64.to_bits());
    assert!(
        number("-17").is_integer() && !number("17.0").is_integer() && !number("1E2").is_integer()
    );
    assert_eq!(Number::float(1.0).text(), "1.0");
}

#[test]
#[should_panic(expected = "JSON has no number for NaN")]
fn a_float_that_is_not_finite_is_no_value() {
    let _ = Value::float(f64::NAN);
}

fn number_text() -> impl Strategy<Value = String> {
    let float = any::<f64>().prop_filter("finite", |x| x.is_finite());
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        float.clone().prop_map(|x| format!("{x:e}")),
        float.prop_map(|x| Number::float(x).text().to_owned()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number_text().prop_map(|text| parse_str(&text).unwrap()),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|entries| entries.into_iter().collect::<Object>().into()),
        ]
    })
}

/// The same value for `serde_json`, an independent reader.
fn reread(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

fn keys_are_sorted(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Array(elements) => elements.iter().all(keys_are_sorted),
        serde_json::Value::Object(entries) => {
            entries.keys().is_sorted_by(|a, b| a.chars().lt(b.chars()))
                && entries.values().all(keys_are_sorted)
        }
        _ => true,
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(value in value()) {
        prop_assert_eq!(&parse_str(&to_json(&value)).unwrap(), &value);
        prop_assert_eq!(&parse_str(&to_json_pretty(&value)).unwrap(), &value);
    }

    #[test]
    fn another_reader_reads_the_same(value in value()) {
        prop_assert_eq!(reread(&to_json(&value)), reread(&to_json_pretty(&value)));
    }

    #[test]
    fn rendered_keys_are_sorted_and_nothing_is_lost(value in value()) {
        prop_assume!(value.as_str().is_none());
        let rendered = render(&value);
        prop_assert!(keys_are_sorted(&reread(&rendered)));
        // serde_json compares objects without regard to order; -0 is the one number that rendering changes.
        prop_assume!(!to_json(&value).contains("-0"));
        prop_assert_eq!(reread(&rendered), reread(&to_json(&value)));
    }

    #[test]
    fn bytes_of_any_kind_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn a_changed_byte_is_read_as_another_reader_reads_it(
        value in value(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), prop::sample::select(&b"{}[]\",:\\0-e.u"[..])],
    ) {
        let mut bytes = to_json(&value).into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let ours = parse(&bytes);
        let theirs = serde_json::from_slice::<serde_json::Value>(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?} {:?}", String::from_utf8_lossy(&bytes), ours, theirs);
    }
}
