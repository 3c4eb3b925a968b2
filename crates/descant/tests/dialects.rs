//! What clients of other servers send, against the built-in release: every dialect's requests, replies and errors.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::sync::LazyLock;

use descant_decision::Value;
use descant_decision::json::{parse_str, to_json};

use descant_server::wire;

use crate::common::{Reply, Server, at};

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&[]));

const LAMP: &str = r#"{"model": "clef-flash", "state": "The lamp is broken.", "questions": {
    "broken": {"type": "noul", "instructions": "Is the lamp broken?"},
    "room": {"type": "choice", "instructions": "Where?", "criteria": {"kitchen": null, "attic": "Under the roof", "hall": null}},
    "harm": {"type": "score", "instructions": "How bad?", "criteria": ["None", "Some", "Much"]}}}"#;

/// The same as [`LAMP`] in OpenAI's shape.
const OPENAI: &str = r#"{"model": "clef-flash", "input": "The lamp is broken.", "questions": [
    {"type": "predicate", "name": "broken", "instructions": "Is the lamp broken?"},
    {"type": "choice", "name": "room", "instructions": "Where?", "choices": [
        {"value": "kitchen"}, {"value": "attic", "description": "Under the roof"}, {"value": "hall"}]},
    {"type": "score", "name": "harm", "instructions": "How bad?", "levels": [{"label": "None"}, {"label": "Some"}, {"label": "Much"}]}]}"#;

fn post(path: &str, body: &str) -> Reply {
    SERVER.ask("POST", path, "", body.as_bytes())
}

/// A reply's body, which must be an answer.
#[track_caller]
fn answered(reply: &Reply) -> Value {
    let text = String::from_utf8_lossy(&reply.body);
    assert_eq!(reply.status, 200, "{text}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    reply.json()
}

#[track_caller]
fn number(value: &Value, path: &[&str]) -> f64 {
    at(value, path).as_number().unwrap().as_f64()
}

fn entry(value: &Value, index: usize) -> &Value {
    &value.as_array().unwrap()[index]
}

/// The numbers of [`LAMP`] as TypeSafe has them: unrounded, with its confidence.
fn unrounded() -> Value {
    answered(&post(
        "/v1/systemone",
        &LAMP.replace("clef-flash", "jev-latest"),
    ))
}

#[test]
fn openai_decisions_are_the_same_decisions() {
    let reply = post("/v1/decisions", OPENAI);
    let body = answered(&reply);
    let own = unrounded();
    assert_eq!(reply.header("x-clef-mode"), Some("joint"));
    assert_eq!(at(&body, &["model"]).as_str(), Some("clef-flash"));
    let answers = at(&body, &["answers"]);
    let keys = |value: &Value| -> Vec<String> {
        let entries = value.as_object().unwrap().iter();
        entries.map(|(key, _)| key.to_owned()).collect()
    };
    assert_eq!(keys(entry(answers, 0)), ["type", "name", "probability"]);
    assert_eq!(
        at(entry(answers, 0), &["probability"]),
        at(&own, &["answers", "broken", "noul"])
    );
    let room = entry(answers, 1);
    assert_eq!(
        keys(room),
        ["type", "name", "choice", "confidence", "probabilities"]
    );
    assert_eq!(
        at(room, &["choice"]),
        at(&own, &["answers", "room", "choice"])
    );
    assert_eq!(
        at(room, &["confidence"]),
        at(&own, &["answers", "room", "confidence"])
    );
    let names: Vec<_> = at(room, &["probabilities"])
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (at(p, &["value"]).as_str().unwrap(), at(p, &["probability"])))
        .collect();
    let wanted: Vec<_> = at(&own, &["answers", "room", "probabilities"])
        .as_object()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(names, wanted);
    let harm = entry(answers, 2);
    assert_eq!(
        at(harm, &["score"]),
        at(&own, &["answers", "harm", "score"])
    );
    let level = entry(at(harm, &["probabilities"]), 2);
    assert_eq!(to_json(at(level, &["value"])), "2");
    assert_eq!(at(level, &["label"]).as_str(), Some("Much"));
    let tokens = at(&own, &["usage", "input_tokens"]);
    for key in ["input_tokens", "total_tokens"] {
        assert_eq!(at(&body, &["usage", key]), tokens);
    }
    assert_eq!(
        to_json(at(&body, &["usage", "output_tokens_details"])),
        r#"{"reasoning_tokens":0}"#
    );
    let cached = number(&body, &["usage", "input_tokens_details", "cached_tokens"]);
    assert!((0.0..number(&body, &["usage", "input_tokens"])).contains(&cached));
}

#[test]
fn typed_values_unnamed_questions_and_names_that_collide() {
    let body = answered(&post(
        "/v1/decisions",
        r#"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            "questions": [
                {"type": "choice", "instructions": "ok?", "choices": [{"value": true}, {"value": "true"}, {"value": false}]},
                {"type": "predicate", "name": "same", "instructions": [{"type": "input_text", "text": "y?"}]},
                {"type": "predicate", "name": "same", "instructions": "z?"},
                {"type": "predicate", "name": null, "instructions": "z?"}],
            "prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_options": {"mode": "implicit"}}"#,
    ));
    let answers = at(&body, &["answers"]);
    let values: Vec<String> = at(entry(answers, 0), &["probabilities"])
        .as_array()
        .unwrap()
        .iter()
        .map(|p| to_json(at(p, &["value"])))
        .collect();
    assert_eq!(values, ["true", "\"true\"", "false"]);
    let names: Vec<String> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| to_json(at(answer, &["name"])))
        .collect();
    assert_eq!(names, ["null", "\"same\"", "\"same\"", "null"]);
}

#[test]
fn a_conversation_is_a_state_of_messages() {
    let openai = answered(&post(
        "/v1/decisions",
        r#"{"input": [
            {"role": "system", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See:"}, {"type": "input_json", "data": {"a": 1.50}}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
            {"role": "assistant", "phase": "x", "content": [{"type": "output_text", "text": "Hm."}]}],
            "questions": [{"type": "predicate", "name": "q", "instructions": "Done?"}]}"#,
    ));
    let own = answered(&post(
        "/v1/systemone",
        r#"{"model": "jev-latest", "state": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": ["See:", {"a": 1.50}]},
            {"call": "look", "call_id": "c1", "arguments": "{}"},
            {"output_of": "c1", "output": "nothing"},
            {"role": "assistant", "content": "Hm."}],
            "questions": {"q": {"type": "noul", "instructions": "Done?"}}}"#,
    ));
    assert_eq!(
        at(entry(at(&openai, &["answers"]), 0), &["probability"]),
        at(&own, &["answers", "q", "noul"])
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn openai_errors_are_openais() {
    let question = r#"{"type":"predicate","name":"a","instructions":"y"}"#;
    let asking =
        |input: &str, question: &str| format!(r#"{{"input": {input}, "questions": [{question}]}}"#);
    for (body, status, param, code) in [
        (
            asking(
                r#""x""#,
                r#"{"type":"choice","instructions":"y","choices":[{"value":"only"}]}"#,
            ),
            400,
            r#""questions[0].choices""#,
            "null",
        ),
        (
            asking(
                r#""x""#,
                r#"{"type":"choice","instructions":"y","choices":[{"value":"a"},{"value":"a"}]}"#,
            ),
            400,
            r#""questions[0].choices[1].value""#,
            "null",
        ),
        (
            asking(r#""x""#, r#"{"type":"maybe","instructions":"y"}"#),
            400,
            r#""questions[0].type""#,
            "null",
        ),
        (
            asking(r#""x""#, r#"{"type":"predicate"}"#),
            400,
            r#""questions[0].instructions""#,
            "null",
        ),
        (
            asking(
                r#""x""#,
                r#"{"type":"score","instructions":"y","levels":[{"text":"z"}]}"#,
            ),
            400,
            r#""questions[0].levels[0].label""#,
            "null",
        ),
        (asking("7", question), 400, r#""input""#, "null"),
        (asking("[]", question), 400, r#""input""#, "null"),
        (
            asking(
                r#"[{"role":"user","content":[{"type":"input_image","image_url":"https://images.example.org/cat.png"}]}]"#,
                question,
            ),
            400,
            r#""input[0].content[0]""#,
            "null",
        ),
        (
            asking(
                r#"[{"role":"system","content":[{"type":"input_json","data":{}}]}]"#,
                question,
            ),
            400,
            r#""input[0].content[0].type""#,
            "null",
        ),
        (
            asking(
                r#"[{"type":"function_call_output","call_id":"c","output":"x"}]"#,
                question,
            ),
            400,
            r#""input[0].call_id""#,
            "null",
        ),
        (
            r#"{"input":"x","questions":[]}"#.to_owned(),
            400,
            r#""questions""#,
            "null",
        ),
        ("{".to_owned(), 400, "null", "null"),
        ("[]".to_owned(), 400, r#""input""#, "null"),
        (
            format!(r#"{{"model":"gpt-none","input":"x","questions":[{question}]}}"#),
            404,
            r#""model""#,
            r#""model_not_found""#,
        ),
    ] {
        let reply = post("/v1/decisions", &body);
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, status, "{body}: {text}");
        let error = reply.json();
        assert!(error.get("detail").is_none(), "{text}");
        let error = at(&error, &["error"]);
        assert_eq!(
            at(error, &["type"]).as_str(),
            Some("invalid_request_error"),
            "{text}"
        );
        assert_eq!(to_json(at(error, &["param"])), param, "{body}: {text}");
        assert_eq!(to_json(at(error, &["code"])), code, "{text}");
    }
    // All faults are told.
    let reply = post(
        "/v1/decisions",
        r#"{"model":7,"input":null,"questions":[{"type":"choice"}]}"#,
    );
    let message = reply.json();
    let message = at(&message, &["error", "message"])
        .as_str()
        .unwrap()
        .to_owned();
    for part in [
        "model",
        "input",
        "questions[0].instructions",
        "questions[0].choices",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn system_one_bodies_are_answered_on_every_path_for_them() {
    let own = answered(&post("/v1/systemone", LAMP));
    for path in [
        "/v1/decisions",
        "/api/alpha/decisions",
        "/api/v1/decisions",
        "/inference/v1/systemone",
    ] {
        assert_eq!(answered(&post(path, LAMP)), own, "{path}");
    }
    // And refused as there.
    for path in ["/v1/decisions", "/api/alpha/decisions"] {
        let reply = post(
            path,
            r#"{"state": "x", "questions": {"a": {"type": "box"}}}"#,
        );
        assert_eq!(reply.status, 422, "{path}");
        assert!(reply.json().get("detail").unwrap().as_array().is_some());
        let reply = post(path, &LAMP.replace("clef-flash", "gpt-none"));
        assert_eq!(reply.status, 400, "{path}");
    }
}

const SGLANG: &str = r#"{"model": "clef-flash", "input": "The lamp is broken.", "questions": [
            {"id": "broken", "type": "yes_no", "question": "Is the lamp broken?"},
            {"id": "room", "type": "choice", "question": "Where?", "options": [{"name": "kitchen"}, {"name": "attic", "description": "Under the roof"}, {"name": "hall"}]},
            {"id": "harm", "type": "score", "question": "How bad?", "levels": ["None", "Some", "Much"]}],
            "temperature": 1.0, "prompt_format_version": 1}"#;

#[test]
fn sglang_decisions_are_answered_by_id() {
    let body = answered(&post("/v1/decisions", SGLANG));
    let own = unrounded();
    assert_eq!(at(&body, &["object"]).as_str(), Some("decisions"));
    assert_eq!(
        at(&body, &["answers", "broken", "probabilities", "yes"]),
        at(&own, &["answers", "broken", "noul"])
    );
    assert_eq!(
        at(&body, &["answers", "room", "probabilities"]),
        at(&own, &["answers", "room", "probabilities"])
    );
    assert_eq!(
        at(&body, &["answers", "room", "choice"]),
        at(&own, &["answers", "room", "choice"])
    );
    assert_eq!(
        at(&body, &["answers", "harm", "probabilities", "Much"]),
        at(&own, &["answers", "harm", "probabilities", "2"])
    );
    assert_eq!(
        at(&body, &["usage", "prompt_tokens"]),
        at(&own, &["usage", "input_tokens"])
    );
    let asking = |rest: &str| {
        format!(
            r#"{{"input": "x", "questions": [{{"id": "a", "type": "yes_no", "question": "y?"}}]{rest}}}"#
        )
    };
    for (body, param) in [
        (asking(r#", "temperature": 0.5"#), "temperature"),
        (asking(r#", "images": ["x"]"#), "images"),
        (asking(r#", "seed": 1"#), "seed"),
        (asking("").replace("\"x\"", "\" \""), "input"),
        (
            asking("").replace("\"y?\"", "\"y?\", \"hint\": 1"),
            "questions[0].hint",
        ),
    ] {
        let reply = post("/v1/decisions", &body);
        assert_eq!(reply.status, 400, "{body}");
        assert_eq!(
            at(&reply.json(), &["error", "param"]).as_str(),
            Some(param),
            "{body}"
        );
    }
}

#[test]
fn workers_ai_replies_come_in_its_envelope() {
    let own = answered(&post("/v1/systemone", LAMP));
    for (account, model) in [
        ("local", "@cf/cloudflare/clef-flash"),
        ("023e", "%40cf/cloudflare/clef"),
    ] {
        let reply = post(
            &format!("/client/v4/accounts/{account}/ai/run/{model}"),
            LAMP,
        );
        let body = answered(&reply);
        assert_eq!(at(&body, &["result"]), &own);
        let rest = body.to_string().replace(&own.to_string(), "_");
        assert_eq!(
            rest,
            r#"{"result":_,"success":true,"errors":[],"messages":[]}"#
        );
        assert_eq!(reply.header("cf-ai-req-id"), reply.header("x-request-id"));
    }
    let run = "/client/v4/accounts/local/ai/run/@cf/cloudflare/clef-flash";
    for (path, body, status, code) in [
        (run, "{", 400, 6003),
        (run, r#"{"state": 1, "questions": {}}"#, 400, 5006),
        (
            run,
            r#"{"state": 1, "questions": {"a": {"type": "box"}}}"#,
            400,
            5006,
        ),
        (
            run,
            r#"{"state": 1, "questions": {"a": {"type": "choice"}}}"#,
            422,
            5012,
        ),
        (
            run,
            r#"{"state": 1, "images": ["x"], "questions": {"a": {"type": "noul"}}}"#,
            422,
            5012,
        ),
        (
            run,
            r#"{"model": "gpt", "state": 1, "questions": {"a": {"type": "noul"}}}"#,
            400,
            7000,
        ),
        (
            "/client/v4/accounts/local/ai/run/@cf/meta/llama",
            LAMP,
            400,
            7000,
        ),
        ("/client/v4/accounts/local", LAMP, 404, 7000),
    ] {
        let reply = post(path, body);
        assert_eq!(reply.status, status, "{body}");
        let reply = reply.json();
        assert_eq!(at(&reply, &["success"]).as_bool(), Some(false));
        assert!(at(&reply, &["result"]).is_null());
        let error = entry(at(&reply, &["errors"]), 0);
        assert_eq!(to_json(at(error, &["code"])), code.to_string(), "{body}");
    }
}

/// A form as the official Python client sends it.
fn form(request: &str, parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = format!(
        "--b1\r\nContent-Disposition: form-data; name=\"request\"\r\nContent-Type: application/json\r\n\r\n{request}\r\n"
    )
    .into_bytes();
    for (name, bytes) in parts {
        let head = format!(
            "--b1\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\nContent-Type: image/png\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b1--\r\n");
    body
}

const FORM: &str = "content-type: multipart/form-data; boundary=b1\r\n";

#[test]
fn multipart_forms_are_read_and_pictures_refused() {
    let reply = SERVER.ask(
        "POST",
        "/v1/systemone",
        FORM,
        &form(LAMP, &[("unused", b"x")]),
    );
    assert_eq!(answered(&reply), answered(&post("/v1/systemone", LAMP)));
    let with = |assets: &str| LAMP.replacen('{', &format!(r#"{{"assets": {assets}, "#), 1);
    let png: &[u8] = b"\x89PNG\r\n\x1a\n";
    for (assets, bytes, faults) in [
        (r#"{"<img>": {"type": "image", "part": "asset-0"}}"#, png, 1),
        (r#"{"<img>": {"type": "image", "part": "asset-1"}}"#, png, 2),
        (
            r#"{"<img>": {"type": "image", "part": "asset-0"}}"#,
            b"text",
            2,
        ),
    ] {
        let body = form(&with(assets), &[("asset-0", bytes)]);
        let reply = SERVER.ask("POST", "/v1/systemone", FORM, &body);
        assert_eq!(reply.status, 422, "{assets}");
        let detail = reply.json();
        let detail = at(&detail, &["detail"]).as_array().unwrap();
        assert_eq!(detail.len(), faults, "{detail:?}");
        assert_eq!(at(&detail[0], &["type"]).as_str(), Some("not_supported"));
        assert_eq!(to_json(at(&detail[0], &["loc"])), r#"["body","assets"]"#);
    }
}

#[test]
fn split_questions_do_not_hear_of_each_other() {
    let server = Server::start(&["--split-questions"]);
    let together = server.decide(LAMP.as_bytes());
    assert_eq!(together.header("x-clef-mode"), Some("split"));
    let together = answered(&together);
    let mut tokens = 0.0;
    for id in ["broken", "room", "harm"] {
        let question = parse_str(LAMP).unwrap();
        let question = at(&question, &["questions", id]);
        let alone = format!(
            r#"{{"model": "clef-flash", "state": "The lamp is broken.", "questions": {{"{id}": {question}}}}}"#
        );
        let alone = answered(&server.decide(alone.as_bytes()));
        assert_eq!(
            at(&alone, &["answers", id]),
            at(&together, &["answers", id]),
            "{id}"
        );
        tokens += number(&alone, &["usage", "input_tokens"]);
        // A question alone is the same joint or split.
        let joint = SERVER.decide(
            format!(r#"{{"model": "clef-flash", "state": "The lamp is broken.", "questions": {{"{id}": {question}}}}}"#).as_bytes(),
        );
        assert_eq!(
            at(&joint.json(), &["answers", id]),
            at(&together, &["answers", id]),
            "{id}"
        );
    }
    assert!((number(&together, &["usage", "input_tokens"]) - tokens).abs() < 0.5);
    // More questions than are with the engine at one time.
    let many: Vec<String> = (0..30)
        .map(|n| format!(r#""q{n}": {{"type": "noul"}}"#))
        .collect();
    let body = format!(r#"{{"state": "x", "questions": {{{}}}}}"#, many.join(","));
    let many = answered(&server.decide(body.as_bytes()));
    assert_eq!(at(&many, &["answers"]).as_object().unwrap().len(), 30);
}

#[test]
fn neutral_ids_do_not_move_answers() {
    let server = Server::start(&["--neutral-ids"]);
    let renamed = |server: &Server, name: &str| {
        let reply = server.decide(
            LAMP.replace("\"broken\"", &format!("\"{name}\""))
                .as_bytes(),
        );
        let mode = reply.header("x-clef-mode").unwrap().to_owned();
        let body = answered(&reply);
        let noul = at(&body, &["answers", name, "noul"]).clone();
        (mode, noul, at(&body, &["answers", "room"]).clone())
    };
    let first = renamed(&server, "broken");
    assert_eq!(first.0, "neutral");
    for name in ["zz-renamed.1", "Q 🙂", "x_y_z"] {
        assert_eq!(renamed(&server, name), first, "{name}");
    }
    // Where ids are read, they do move it.
    assert_ne!(renamed(&SERVER, "broken").1, renamed(&SERVER, "x_y_z").1);
}

#[test]
fn confidence_is_what_the_flag_says() {
    let probabilities = |body: &Value| -> Vec<f64> {
        let p = at(body, &["answers", "room", "probabilities"]);
        p.as_object()
            .unwrap()
            .iter()
            .map(|(_, p)| p.as_number().unwrap().as_f64())
            .collect()
    };
    for flag in ["clef", "cloudflare", "entropy", "typesafe"] {
        let server = Server::start(&["--confidence", flag]);
        for model in ["clef-flash", "jev-latest"] {
            let body = answered(&server.decide(LAMP.replace("clef-flash", model).as_bytes()));
            let p = probabilities(&body);
            let top = p.iter().copied().fold(0.0, f64::max);
            let squares: f64 = p.iter().map(|p| p * p).sum();
            let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
            let wanted = match flag {
                "clef" => top,
                "cloudflare" => (3.0 * squares - 1.0) / 2.0,
                "entropy" => 1.0 - entropy / 3.0_f64.ln(),
                _ => (3.0 * top - 1.0) / 2.0,
            };
            let found = number(&body, &["answers", "room", "confidence"]);
            // Probabilities at four places move it by a few units of the fourth place.
            assert!(
                (found - wanted).abs() < 3e-4,
                "{flag} {model}: {found} {wanted}"
            );
        }
    }
}

#[test]
fn the_name_in_a_reply_is_what_the_flag_says() {
    for (flag, model, wanted) in [
        ("always", "\"jev-latest\"", "jev-latest"),
        ("always", "null", "tiny-random"),
        ("always", "\"clef-flash\"", "clef-flash"),
        ("never", "\"clef-flash\"", "tiny-random"),
        ("auto", "\"jev-latest\"", "tiny-random"),
        ("auto", "\"clef-flash\"", "clef-flash"),
    ] {
        let server = Server::start(&["--model-echo", flag]);
        let body = answered(&server.decide(LAMP.replace("\"clef-flash\"", model).as_bytes()));
        assert_eq!(
            at(&body, &["model"]).as_str(),
            Some(wanted),
            "{flag} {model}"
        );
    }
}

/// Reads a body strictly: a key too many, one too few or another type is an error.
#[track_caller]
fn typed<T: serde::de::DeserializeOwned>(reply: &Reply) -> T {
    let text = String::from_utf8_lossy(&reply.body);
    serde_json::from_slice(&reply.body).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The document is made from the types; here the types are held against the replies.
#[test]
fn every_kind_of_reply_is_of_its_type() {
    let raw = LAMP.replacen('{', "{\"raw\": true, ", 1);
    let reply: wire::SystemOneReply = typed(&post("/v1/systemone", &raw));
    assert_eq!(reply.answers.len(), 3);
    let _: wire::SystemOneReply = typed(&post(
        "/v1/systemone",
        &LAMP.replace("clef-flash", "jev-latest"),
    ));
    let _: wire::DecisionsReply = typed(&post("/v1/decisions", OPENAI));
    let _: wire::SgLangReply = typed(&post("/v1/decisions", SGLANG));
    let run = "/client/v4/accounts/a/ai/run/clef";
    let _: wire::Envelope = typed(&post(run, LAMP));
    let refused: wire::Envelope = typed(&post(run, "{"));
    assert!(!refused.success);
    for body in ["{", "{}", &LAMP.replace("clef-flash", "gpt-none")] {
        let _: wire::ErrorReply = typed(&post("/v1/systemone", body));
        let _: wire::OpenAiErrorReply =
            typed(&post("/v1/decisions", &body.replace("state", "input")));
    }
    let get = |path: &str| SERVER.ask("GET", path, "", b"");
    let _: wire::ModelList = typed(&get("/v1/models"));
    let _: wire::ModelEntry = typed(&get("/v1/models/clef"));
    let _: wire::HealthReply = typed(&get("/health"));
    // And the requests against the types.
    let _: wire::SystemOneRequest = serde_json::from_str(LAMP).unwrap();
    let _: wire::DecisionsRequest = serde_json::from_str(OPENAI).unwrap();
    let _: wire::SgLangRequest = serde_json::from_str(SGLANG).unwrap();
}

#[test]
fn every_kind_of_text_is_of_its_type() {
    let chat = r#"{"messages": [{"role": "user", "content": "A lamp?"}], "max_tokens": 3, "logprobs": true, "top_logprobs": 2}"#;
    let reply: wire::ChatReply = typed(&post("/v1/chat/completions", chat));
    let logprobs = reply.choices[0].logprobs.as_ref().unwrap();
    assert_eq!(logprobs.content[0].top_logprobs.len(), 2);
    let _: wire::ChatRequest = serde_json::from_str(chat).unwrap();
    let completion = r#"{"prompt": "A lamp", "max_tokens": 3, "logprobs": 2, "stop": "x"}"#;
    let reply: wire::CompletionReply = typed(&post("/v1/completions", completion));
    assert!(reply.choices[0].logprobs.is_some());
    let _: wire::CompletionRequest = serde_json::from_str(completion).unwrap();
    for body in [
        r#"{"prompt": "A lamp"}"#,
        r#"{"content": "A lamp", "with_pieces": true}"#,
        r#"{"messages": [{"role": "user", "content": "A lamp"}]}"#,
    ] {
        let reply: wire::TokenizeReply = typed(&post("/tokenize", body));
        assert_eq!(reply.count as usize, reply.tokens.len());
        let _: wire::TokenizeRequest = serde_json::from_str(body).unwrap();
    }
    let _: wire::DetokenizeReply = typed(&post("/detokenize", r#"{"tokens": [1, 2]}"#));
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
    ] {
        let _: wire::OpenAiErrorReply = typed(&post(path, "{}"));
    }
}

#[test]
fn the_document_names_what_is_there() {
    let document = SERVER.ask("GET", "/openapi.json", "", b"").json();
    assert_eq!(at(&document, &["openapi"]).as_str(), Some("3.1.0"));
    let paths: Vec<(String, Vec<String>)> = at(&document, &["paths"])
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, item)| {
            let methods = item.as_object().unwrap().iter();
            (
                path.to_owned(),
                methods.map(|(method, _)| method.to_uppercase()).collect(),
            )
        })
        .collect();
    assert_eq!(paths.len(), 13, "{paths:?}");
    for (path, methods) in paths {
        let path = path
            .replace("{account}", "a")
            .replace("{model}", "clef")
            .replace("{name}", "clef");
        for method in methods {
            let reply = SERVER.ask(&method, &path, "", LAMP.as_bytes());
            assert!(
                !matches!(reply.status, 404 | 405),
                "{method} {path}: {}",
                reply.status
            );
        }
    }
    let schemas = at(&document, &["components", "schemas"])
        .as_object()
        .unwrap();
    for name in [
        "SystemOneRequest",
        "SystemOneReply",
        "DecisionsReply",
        "ErrorReply",
        "Envelope",
    ] {
        assert!(schemas.get(name).is_some(), "{name}");
    }
}
