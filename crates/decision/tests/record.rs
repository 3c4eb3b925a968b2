//! Which bodies are records, and what is said of those that are not.
#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use std::collections::BTreeMap;

use descant_decision::json::{Object, Value, parse_str};
use descant_decision::{FAULTS_MAX, Fault, FaultKind, Kind, Limits, Options, Record, Step};

fn read(body: &str) -> Result<Record, Vec<Fault>> {
    Record::from_value(&parse_str(body).unwrap(), &Limits::default())
}

/// A body with one question `a`.
fn asking(question: &str) -> String {
    format!(r#"{{"state":"x","questions":{{"a":{question}}}}}"#)
}

/// The path as JSON text, the fault's type.
fn spelled(fault: &Fault) -> (String, &'static str) {
    let loc: Value = fault.loc.iter().collect();
    (loc.to_string(), fault.kind.name())
}

/// Bodies and all of their faults.
#[expect(clippy::too_many_lines, reason = "a table")]
fn refused() -> Vec<(String, Vec<(&'static str, &'static str)>)> {
    let question = |text, faults| (asking(text), faults);
    vec![
        ("[]".to_owned(), vec![("[]", "dict_type")]),
        ("null".to_owned(), vec![("[]", "dict_type")]),
        ("{}".to_owned(), vec![(r#"["state"]"#, "missing"), (r#"["questions"]"#, "missing")]),
        (r#"{"state":1,"questions":{}}"#.to_owned(), vec![(r#"["questions"]"#, "too_short")]),
        (r#"{"state":1,"questions":[]}"#.to_owned(), vec![(r#"["questions"]"#, "dict_type")]),
        (r#"{"state":1,"questions":null}"#.to_owned(), vec![(r#"["questions"]"#, "dict_type")]),
        (
            r#"{"model":7,"raw":"yes","images":["x","iVBORw0KGgo=",5],"files":["file:///x"],"videos":["x"],"assets":{"i":{},"j":7},"questions":{"":{}}}"#.to_owned(),
            vec![
                (r#"["model"]"#, "string_type"),
                (r#"["raw"]"#, "bool_type"),
                (r#"["state"]"#, "missing"),
                (r#"["images"]"#, "not_supported"),
                (r#"["images",0]"#, "image_invalid"),
                (r#"["images",2]"#, "value_error"),
                (r#"["files"]"#, "not_supported"),
                (r#"["files",0]"#, "image_url_not_allowed"),
                (r#"["videos"]"#, "not_supported"),
                (r#"["assets"]"#, "not_supported"),
                (r#"["assets","i"]"#, "value_error"),
                (r#"["assets","j"]"#, "dict_type"),
                (r#"["questions",""]"#, "string_too_short"),
                (r#"["questions",""]"#, "union_tag_not_found"),
            ],
        ),
        (
            r#"{"state":1,"images":[1,2,3,4,5,6,7,8,9],"questions":{"a":{"type":"noul"}}}"#.to_owned(),
            vec![(r#"["images"]"#, "not_supported"), (r#"["images"]"#, "too_long")],
        ),
        (
            r#"{"state":1,"images":"x","videos":{},"assets":[],"questions":{"a":null}}"#.to_owned(),
            vec![
                (r#"["images"]"#, "list_type"),
                (r#"["videos"]"#, "list_type"),
                (r#"["assets"]"#, "dict_type"),
                (r#"["questions","a"]"#, "dict_type"),
            ],
        ),
        question("5", vec![(r#"["questions","a"]"#, "dict_type")]),
        question(r#"{"type":"boolean"}"#, vec![(r#"["questions","a"]"#, "union_tag_invalid")]),
        question(r#"{"type":"box"}"#, vec![(r#"["questions","a"]"#, "union_tag_invalid")]),
        question(r#"{"type":["noul"]}"#, vec![(r#"["questions","a"]"#, "union_tag_invalid")]),
        question(r#"{"type":null}"#, vec![(r#"["questions","a"]"#, "union_tag_invalid")]),
        question(r#"{"type":"choice"}"#, vec![(r#"["questions","a","choice","criteria"]"#, "missing")]),
        question(r#"{"type":"choice","criteria":null}"#, vec![(r#"["questions","a","choice","criteria"]"#, "dict_type")]),
        question(r#"{"type":"choice","criteria":["x"]}"#, vec![(r#"["questions","a","choice","criteria"]"#, "dict_type")]),
        question(r#"{"type":"choice","criteria":{}}"#, vec![(r#"["questions","a","choice","criteria"]"#, "too_short")]),
        question(r#"{"type":"choice","criteria":{"b":1,"":2}}"#, vec![(r#"["questions","a","choice","criteria",""]"#, "string_too_short")]),
        question(r#"{"type":"score"}"#, vec![(r#"["questions","a","score","criteria"]"#, "missing")]),
        question(r#"{"type":"score","criteria":{"0":"low"}}"#, vec![(r#"["questions","a","score","criteria"]"#, "list_type")]),
        question(r#"{"type":"score","criteria":"low"}"#, vec![(r#"["questions","a","score","criteria"]"#, "list_type")]),
        question(r#"{"type":"score","criteria":[]}"#, vec![(r#"["questions","a","score","criteria"]"#, "too_short")]),
        question(r#"{"type":"score","criteria":[1,2,3,4,5,6,7,8,9,10,11]}"#, vec![(r#"["questions","a","score","criteria"]"#, "too_long")]),
        question(
            r#"{"type":"score","criteria":["low",null,1,true,[],{}]}"#,
            vec![
                (r#"["questions","a","score","criteria",1]"#, "union_type"),
                (r#"["questions","a","score","criteria",2]"#, "union_type"),
                (r#"["questions","a","score","criteria",3]"#, "union_type"),
            ],
        ),
        question(r#"{"type":"noul","criteria":["x"]}"#, vec![(r#"["questions","a","noul","criteria"]"#, "dict_type")]),
        question(r#"{"type":"noul","criteria":"x"}"#, vec![(r#"["questions","a","noul","criteria"]"#, "dict_type")]),
        question(
            r#"{"type":"noul","criteria":{"true":"t","maybe":"m","True":"T"}}"#,
            vec![
                (r#"["questions","a","noul","criteria","maybe"]"#, "extra_forbidden"),
                (r#"["questions","a","noul","criteria","True"]"#, "extra_forbidden"),
            ],
        ),
    ]
}

#[test]
fn all_faults_of_a_body_are_named_with_their_paths() {
    for (body, wanted) in refused() {
        let faults = read(&body).expect_err(&body);
        let found: Vec<_> = faults.iter().map(spelled).collect();
        let wanted: Vec<_> = wanted
            .into_iter()
            .map(|(loc, kind)| (loc.to_owned(), kind))
            .collect();
        assert_eq!(found, wanted, "{body}");
    }
}

/// Bodies that are records, for the reason at their side.
const TAKEN: &[(&str, &str)] = &[
    (
        r#"{"state":null,"questions":{"a":{"type":"noul"}}}"#,
        "a null state",
    ),
    (
        r#"{"state":1.5,"questions":{"a":{"type":"noul"}}}"#,
        "a number as state",
    ),
    (
        r#"{"state":false,"questions":{"a":{"type":"noul"}}}"#,
        "a boolean as state",
    ),
    (
        r#"{"state":"","questions":{"a":{"type":"noul","criteria":{}}}}"#,
        "an empty state, empty criteria",
    ),
    (
        r#"{"state":"","model":null,"raw":null,"questions":{"a":{"type":"noul"}}}"#,
        "null for absent",
    ),
    (
        r#"{"state":"","images":[],"videos":null,"files":[],"assets":{},"questions":{"a":{"type":"noul"}}}"#,
        "no media",
    ),
    (
        r#"{"state":"","seed":1,"x_trace_id":{},"media_kwargs":{"a":1},"questions":{"a":{"type":"noul","x":1}}}"#,
        "unknown fields",
    ),
    (
        r#"{"state":"","questions":{"a":{"type":"noul","instructions":5}}}"#,
        "a number as instructions",
    ),
    (
        r#"{"state":"","questions":{"a":{"type":"noul","instructions":true}}}"#,
        "a boolean as instructions",
    ),
    (
        r#"{"state":"","questions":{" ":{"type":"choice","criteria":{" ":null,"n":5,"b":false}}}}"#,
        "one blank is an id and a name",
    ),
    (
        r#"{"state":"","questions":{"a":{"type":"choice","criteria":{"only":null}}}}"#,
        "one option",
    ),
    (
        r#"{"state":"","questions":{"a":{"type":"score","criteria":["only"]}}}"#,
        "one level",
    ),
    (
        r#"{"state":"","questions":{"a":{"type":"score","criteria":["",[],{}]}}}"#,
        "levels that say nothing",
    ),
];

#[test]
fn what_the_release_answers_is_taken() {
    for (body, why) in TAKEN {
        assert!(read(body).is_ok(), "{why}: {:?}", read(body));
    }
}

#[test]
fn a_record_keeps_what_was_sent_in_its_order() {
    let body = r#"{"raw":true,"questions":{"b":{"type":"score","criteria":["low",{"z":1,"a":1.10}]},
        "a":{"instructions":["do"],"type":"choice","criteria":{"y":null,"x":"X"}}},"state":[1],"model":"clef"}"#;
    let record = read(body).unwrap();
    assert_eq!(record.model(), Some("clef"));
    assert!(record.raw() && !record.clone().with_raw(false).raw());
    assert_eq!(record.state().to_string(), "[1]");
    let [b, a] = record.questions() else {
        panic!("{record:?}")
    };
    assert_eq!(
        (b.id(), b.kind(), a.id(), a.kind()),
        ("b", Kind::Score, "a", Kind::Choice)
    );
    assert_eq!(
        (b.instructions().to_string(), a.instructions().to_string()),
        ("null".to_owned(), r#"["do"]"#.to_owned())
    );
    let Options::Score(levels) = b.options() else {
        panic!("{b:?}")
    };
    assert_eq!(levels[1].to_string(), r#"{"z":1,"a":1.10}"#);
    let Options::Choice(options) = a.options() else {
        panic!("{a:?}")
    };
    assert_eq!(
        options
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        ["y", "x"]
    );
}

#[test]
fn a_noul_side_is_the_default_unless_it_is_given() {
    let sides = |criteria: &str| {
        let record = read(&asking(&format!(r#"{{"type":"noul"{criteria}}}"#))).unwrap();
        let Options::Noul {
            when_true,
            when_false,
        } = record.questions()[0].options().clone()
        else {
            panic!()
        };
        (when_true.to_string(), when_false.to_string())
    };
    let yes = r#""The proposition is true or the answer is yes.""#.to_owned();
    let no = r#""The proposition is false or the answer is no.""#.to_owned();
    assert_eq!(sides(""), (yes.clone(), no.clone()));
    assert_eq!(sides(r#","criteria":null"#), (yes.clone(), no.clone()));
    assert_eq!(
        sides(r#","criteria":{"false":"F"}"#),
        (yes, r#""F""#.to_owned())
    );
    assert_eq!(
        sides(r#","criteria":{"true":null}"#),
        ("null".to_owned(), no.clone())
    );
    assert_eq!(
        sides(r#","criteria":{"true":""}"#),
        (r#""""#.to_owned(), no)
    );
}

/// Each limit is met exactly, and passed by one.
#[test]
fn limits_are_met_exactly() {
    let limits = Limits {
        levels_max: 2,
        options_max: 3,
        questions_max: 2,
        ..Limits::default()
    };
    let numbered = |count: usize, value: &str| -> Value {
        (0..count)
            .map(|index| (format!("k{index}"), parse_str(value).unwrap()))
            .collect::<Object>()
            .into()
    };
    let body = |questions: Value| {
        Value::from(Object::new().with("state", "").with("questions", questions))
    };
    let question = |kind: &str, criteria: Value| {
        body(
            Object::new()
                .with(
                    "a",
                    Object::new().with("type", kind).with("criteria", criteria),
                )
                .into(),
        )
    };
    let levels = |count| std::iter::repeat_n("level", count).collect::<Value>();
    let cases: [(&dyn Fn(usize) -> Value, usize); 3] = [
        (&|count| body(numbered(count, r#"{"type":"noul"}"#)), 2),
        (&|count| question("choice", numbered(count, "null")), 3),
        (&|count| question("score", levels(count)), 2),
    ];
    for (make, max) in cases {
        assert!(Record::from_value(&make(max), &limits).is_ok());
        let faults = Record::from_value(&make(max + 1), &limits).unwrap_err();
        let [fault] = &faults[..] else {
            panic!("{faults:?}")
        };
        assert_eq!(fault.kind, FaultKind::TooLong);
        assert!(
            fault.msg.contains(&format!("at most {max}"))
                && fault.msg.contains(&format!("found {}", max + 1))
        );
    }
}

#[test]
fn a_body_of_faults_is_answered_briefly() {
    let long = "k".repeat(100_000);
    let keys = (0..5000)
        .map(|index| format!(r#""{index}{long:.1000}":0"#))
        .collect::<Vec<_>>()
        .join(",");
    let faults = read(&asking(&format!(
        r#"{{"type":"noul","criteria":{{{keys}}}}}"#
    )))
    .unwrap_err();
    assert_eq!(faults.len(), FAULTS_MAX);
    let spelled: usize = faults.iter().map(|fault| fault.to_string().len()).sum();
    assert!(spelled < 100_000, "{spelled} bytes");

    let faults = read(&format!(
        r#"{{"state":"","questions":{{"{long}":{{"type":"{long}"}}}}}}"#
    ))
    .unwrap_err();
    assert!(faults[0].to_string().len() < 400, "{}", faults[0]);
}

#[test]
fn messages_hold_no_control_characters() {
    let faults =
        read(r#"{"state":"","questions":{"a\u001b[31m\n":{"type":"\u001b[2J"}}}"#).unwrap_err();
    let text = faults[0].to_string();
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.contains("u{1b}[31m"), "{text}");
    // The path itself is data and stays as it was sent; JSON escapes it.
    assert_eq!(faults[0].loc[1], Step::Key("a\u{1b}[31m\n".to_owned()));
}

/// Every kind of fault has a name of its own and is met by some body.
#[test]
fn every_kind_of_fault_is_met() {
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for (body, _) in refused() {
        for fault in read(&body).unwrap_err() {
            *met.entry(fault.kind.name()).or_default() += 1;
        }
    }
    let wanted = [
        "bool_type",
        "dict_type",
        "extra_forbidden",
        "image_invalid",
        "image_url_not_allowed",
        "list_type",
        "missing",
        "not_supported",
        "string_too_short",
        "string_type",
        "too_long",
        "too_short",
        "union_tag_invalid",
        "union_tag_not_found",
        "union_type",
        "value_error",
    ];
    assert_eq!(met.into_keys().collect::<Vec<_>>(), wanted);
}
