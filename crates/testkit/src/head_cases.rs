//! The golden cases of the joint schema head alone, with the heads they belong to.

use std::collections::BTreeMap;
use std::sync::Arc;

use descant_decision::{Encoded, EncodedOption, EncodedQuestion, Kind, Span};
use descant_model::HeadWeights;
use descant_release::safetensors::SafetensorsFile;
use descant_release::{Dtype, HeadConfig, LoadError, LoadPlan, Part, Release, Tensor, Wanted};
use serde_json::Value;

use crate::fixtures::{self, integers};
use crate::seeded::{self, Rule};

/// A head and the records that the reference put to it.
#[derive(Debug)]
pub struct GoldenHead {
    /// Its name: `small-1`, `hidden_4096`, …
    pub name: String,
    /// Its sizes.
    pub config: HeadConfig,
    /// Its weights.
    pub weights: Arc<dyn HeadWeights>,
    /// The records.
    pub cases: Vec<HeadCase>,
}

/// One record: what the head reads, and what the reference gave.
#[derive(Clone, Debug)]
pub struct HeadCase {
    /// Name of the case, after its head's.
    pub name: String,
    /// Token ids and spans; the questions' ids are `q0`, `q1`, …
    pub encoded: Arc<Encoded>,
    /// Hidden rows, `[T, H]`.
    pub hidden: Vec<f32>,
    /// The reference's logits; none where a hidden row holds a value that is not finite, and every logit is NaN.
    pub wanted: Option<GoldenLogits>,
}

/// Logits of all options of all questions, in order.
#[derive(Clone, Debug)]
pub struct GoldenLogits {
    /// In f32.
    pub single: Vec<f64>,
    /// In f64.
    pub double: Vec<f64>,
}

/// The three small heads, whose weights are stored.
pub fn small_heads() -> Vec<GoldenHead> {
    ["small-1", "small-2", "small-3"].map(small_head).into()
}

fn small_head(name: &str) -> GoldenHead {
    let config = head_config(&fixtures::json(&format!(
        "golden/head/{name}/joint_head_config.json"
    )));
    let inputs = fixtures::tensors(&format!("golden/head/{name}/inputs.safetensors"));
    let case = |line: &Value| {
        let mut hidden = fixtures::tensor(&inputs, text(&line["hidden"]));
        if let Some(poison) = line.get("poison") {
            let at = |what: &str| poison[what].as_u64().expect("an index") as usize;
            hidden[at("row") * config.hidden + at("column")] =
                text(&poison["value"]).parse().expect("a number");
        }
        head_case(name, line, integers(&line["ids"]), hidden)
    };
    let cases = fixtures::jsonl(&format!("golden/head/{name}/cases.jsonl"))
        .iter()
        .map(case)
        .collect();
    let head = fixtures::tensors(&format!("golden/head/{name}/joint_head.safetensors"));
    GoldenHead {
        name: name.to_owned(),
        config,
        weights: Arc::new(StoredHead { head, inputs }),
        cases,
    }
}

/// The two published widths, with drawn weights. Takes half a second and 260 MB each.
pub fn real_heads() -> impl Iterator<Item = GoldenHead> {
    fixtures::jsonl("golden/head/real.jsonl")
        .into_iter()
        .map(|line| real_head(&line))
}

fn real_head(line: &Value) -> GoldenHead {
    let name = text(&line["name"]);
    let config = head_config(&line["config"]);
    let seed = line["seed"].as_u64().expect("a seed");
    let tokens: Vec<usize> = integers(&line["ids"]);
    let hidden = seeded::uniform(
        "hidden",
        seed,
        0,
        tokens.len() * config.hidden,
        Rule::HIDDEN,
    );
    let drawn = DrawnHead::new(&config, seed, &tokens);
    drawn.check(line, &hidden);
    // Only these rows of the output embedding are drawn, so the i-th token is row i.
    let ids = (0..tokens.len() as u32).collect();
    let cases = vec![head_case(name, line, ids, hidden)];
    GoldenHead {
        name: name.to_owned(),
        config,
        weights: Arc::new(drawn),
        cases,
    }
}

fn head_case(head: &str, line: &Value, ids: Vec<u32>, hidden: Vec<f32>) -> HeadCase {
    let flat = |field: &str| {
        line[field]
            .as_array()
            .expect("lists")
            .iter()
            .flat_map(fixtures::numbers)
            .collect()
    };
    HeadCase {
        name: format!("{head}, {}", text(&line["name"])),
        encoded: Arc::new(encoded(line, ids)),
        hidden,
        wanted: line.get("poison").is_none().then(|| GoldenLogits {
            single: flat("logits_f32"),
            double: flat("logits_f64"),
        }),
    }
}

fn encoded(line: &Value, ids: Vec<u32>) -> Encoded {
    let questions: Vec<EncodedQuestion> = line["questions"]
        .as_array()
        .expect("questions")
        .iter()
        .enumerate()
        .map(question)
        .collect();
    let schema_start = questions
        .iter()
        .map(|question| question.span.start)
        .min()
        .unwrap_or(0);
    Encoded {
        ids,
        questions,
        truncated: 0,
        schema_start,
    }
}

fn question((index, question): (usize, &Value)) -> EncodedQuestion {
    let kind = match text(&question["type"]) {
        "noul" => Kind::Noul,
        "choice" => Kind::Choice,
        "score" => Kind::Score,
        other => panic!("no type of a question: {other}"),
    };
    let option = |(index, value)| EncodedOption {
        id: format!("o{index}"),
        span: span(value),
    };
    let options = question["option_spans"]
        .as_array()
        .expect("spans")
        .iter()
        .enumerate()
        .map(option)
        .collect();
    EncodedQuestion {
        id: format!("q{index}"),
        kind,
        span: span(&question["question_span"]),
        options,
    }
}

fn span(value: &Value) -> Span {
    let ends: Vec<usize> = integers(value);
    ends[0]..ends[1]
}

fn head_config(value: &Value) -> HeadConfig {
    let size = |name: &str| {
        value[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no size {name}")) as usize
    };
    HeadConfig {
        hidden: size("hidden_size"),
        width: size("width"),
        routing_layers: size("routing_layers"),
        layers: size("layers"),
        heads: size("heads"),
        feedforward: size("feedforward"),
    }
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("wanted a string, found {value}"))
}

fn missing(name: &str) -> LoadError {
    LoadError::TensorMissing {
        file: "head".into(),
        name: name.to_owned(),
        wanted: Vec::new(),
    }
}

/// A head's own file, and one with the output embedding.
#[derive(Debug)]
struct StoredHead {
    head: SafetensorsFile,
    inputs: SafetensorsFile,
}

impl HeadWeights for StoredHead {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        self.head.tensor(name).ok_or_else(|| missing(name))
    }

    fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        self.inputs
            .tensor("lm_head.weight")
            .ok_or_else(|| missing("lm_head.weight"))
    }
}

/// A head whose weights are drawn by [`seeded`].
#[derive(Debug)]
pub struct DrawnHead {
    tensors: BTreeMap<String, Drawn>,
    rows: Drawn,
}

/// A drawn tensor: bf16 values as a file holds them.
#[derive(Debug)]
struct Drawn {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl DrawnHead {
    /// Draws a head of these sizes, and the output embedding's rows of some tokens, in their order.
    pub fn new(config: &HeadConfig, seed: u64, tokens: &[usize]) -> DrawnHead {
        let tensors = head_plan(config).into_iter().map(|wanted| {
            let rule = Rule::of_head(&wanted.name, &wanted.shape);
            let drawn = Drawn::new(
                wanted.shape.clone(),
                [(0, wanted.parameters())],
                &wanted.name,
                seed,
                rule,
            );
            (wanted.name, drawn)
        });
        let rows = tokens
            .iter()
            .map(|token| (token * config.hidden, config.hidden));
        let rows = Drawn::new(
            vec![tokens.len(), config.hidden],
            rows,
            "lm_head.weight",
            seed,
            Rule::LM_HEAD,
        );
        DrawnHead {
            tensors: tensors.collect(),
            rows,
        }
    }

    /// Names of all tensors of a head of these sizes.
    pub fn names(config: &HeadConfig) -> Vec<String> {
        head_plan(config)
            .into_iter()
            .map(|wanted| wanted.name)
            .collect()
    }

    /// Compares single elements with those that Python drew.
    fn check(&self, line: &Value, hidden: &[f32]) {
        for check in line["checks"].as_array().expect("checks") {
            let (name, element) = (
                text(&check["tensor"]),
                check["element"].as_u64().expect("an index") as usize,
            );
            let wanted = u32::from_str_radix(text(&check["bits"]), 16).expect("bits");
            let found = match name {
                "hidden" => hidden[element],
                "lm_head.weight" => self.rows.value(0),
                _ => self.tensors[name].value(element),
            };
            assert_eq!(found.to_bits(), wanted, "element {element} of {name}");
        }
    }
}

/// The tensors of a head of these sizes.
fn head_plan(config: &HeadConfig) -> Vec<Wanted> {
    // The head's part of a plan does not depend on the backbone.
    let any =
        Release::open(&fixtures::release("tiny-a"), None).unwrap_or_else(|error| panic!("{error}"));
    LoadPlan::new("", any.config(), Some(config))
        .part(Part::Head)
        .cloned()
        .collect()
}

impl Drawn {
    /// Draws parts of a tensor's sequence, each a first element and a count.
    fn new(
        shape: Vec<usize>,
        parts: impl IntoIterator<Item = (usize, usize)>,
        name: &str,
        seed: u64,
        rule: Rule,
    ) -> Drawn {
        let draw = |(element, count)| seeded::uniform_bf16(name, seed, element, count, rule);
        let bytes = parts
            .into_iter()
            .flat_map(draw)
            .flat_map(half::bf16::to_le_bytes)
            .collect();
        Drawn { shape, bytes }
    }

    fn value(&self, element: usize) -> f32 {
        half::bf16::from_le_bytes([self.bytes[2 * element], self.bytes[2 * element + 1]]).to_f32()
    }

    fn tensor<'a>(&'a self, name: &'a str) -> Tensor<'a> {
        Tensor {
            name,
            dtype: Dtype::BF16,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }
}

impl HeadWeights for DrawnHead {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        let (name, drawn) = self
            .tensors
            .get_key_value(name)
            .ok_or_else(|| missing(name))?;
        Ok(drawn.tensor(name))
    }

    fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        Ok(self.rows.tensor("lm_head.weight"))
    }
}
