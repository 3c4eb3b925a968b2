//! Heads of drawn weights, and records for them: what both heads are tested on beside the golden cases.

use std::sync::Arc;

use descant_decision::{Encoded, EncodedOption, EncodedQuestion, Kind, Logits};
use descant_model::HeadWeights;
use descant_release::{Dtype, HeadConfig, LoadError, Tensor};

use crate::assert_same_bits;
use crate::head_cases::{DrawnHead, HeadCase};
use crate::seeded::{self, Rule};

/// Panics unless two records of logits have the same bits.
///
/// # Panics
/// If they do not.
#[track_caller]
pub fn assert_same_logits(what: &str, found: &Logits, wanted: &Logits) {
    let lengths = |logits: &Logits| logits.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(found), lengths(wanted), "{what}");
    assert_same_bits(what, 1, &found.concat(), &wanted.concat());
}

/// A head of odd sizes with drawn weights.
#[derive(Debug)]
pub struct Drawn {
    /// Its sizes.
    pub config: HeadConfig,
    /// Its weights, bf16.
    pub weights: Arc<dyn HeadWeights>,
}

/// Token ids of its records lie below.
pub const VOCAB: usize = 50;
const SEED: u64 = 7;

impl Drawn {
    /// A small one.
    #[allow(
        clippy::new_without_default,
        reason = "a drawn head is made, not assumed"
    )]
    pub fn new() -> Drawn {
        Drawn::of(HeadConfig {
            hidden: 72,
            width: 60,
            routing_layers: 2,
            layers: 2,
            heads: 5,
            feedforward: 100,
        })
    }

    /// One whose rows take several chains, and several tiles side by side.
    pub fn wide() -> Drawn {
        Drawn::of(HeadConfig {
            hidden: 136,
            width: 456,
            routing_layers: 1,
            layers: 1,
            heads: 6,
            feedforward: 64,
        })
    }

    /// One of these sizes.
    pub fn of(config: HeadConfig) -> Drawn {
        let tokens: Vec<usize> = (0..VOCAB).collect();
        Drawn {
            weights: Arc::new(DrawnHead::new(&config, SEED, &tokens)),
            config,
        }
    }

    /// Records of few and many questions and options, in short prompts and long.
    pub fn cases(&self) -> Vec<HeadCase> {
        let many: Vec<(Kind, usize)> = (0..100)
            .map(|i| ([Kind::Noul, Kind::Choice, Kind::Score][i % 3], 2 + i % 2))
            .collect();
        let mut cases = vec![
            self.case("one option of one question", 3, &[(Kind::Choice, 1)], 0),
            self.case("100 questions", 1100, &many, 300),
            self.case("255 options", 1000, &[(Kind::Choice, 255)], 64),
            self.case(
                "a long state",
                2100,
                &[(Kind::Noul, 2), (Kind::Choice, 4), (Kind::Score, 3)],
                1990,
            ),
        ];
        let mut wide = self.case("a span of nearly all rows", 500, &[(Kind::Noul, 2)], 0);
        let encoded = Arc::make_mut(&mut wide.encoded);
        encoded.questions[0].span = 0..490;
        encoded.questions[0].options[0].span = 499..500;
        cases.push(wide);
        cases
    }

    /// A record of [`record`] with drawn hidden rows.
    pub fn case(
        &self,
        name: &str,
        rows: usize,
        schema: &[(Kind, usize)],
        start: usize,
    ) -> HeadCase {
        HeadCase {
            name: name.to_owned(),
            encoded: Arc::new(record(rows, schema, start, VOCAB)),
            hidden: seeded::uniform(name, SEED, 0, rows * self.config.hidden, Rule::HIDDEN),
            wanted: None,
        }
    }
}

/// A record of `rows` rows whose spans, of one to three rows, follow one another from row `start` on.
///
/// # Panics
/// If the spans do not fit.
pub fn record(rows: usize, schema: &[(Kind, usize)], start: usize, vocab: usize) -> Encoded {
    let mut at = start;
    let mut span = || {
        let length = 1 + at % 3 * usize::from(rows > 100);
        at += length;
        at - length..at
    };
    let question = |(index, &(kind, options)): (usize, &(Kind, usize))| EncodedQuestion {
        id: format!("q{index}"),
        kind,
        span: span(),
        options: (0..options)
            .map(|i| EncodedOption {
                id: i.to_string(),
                span: span(),
            })
            .collect(),
    };
    let questions: Vec<EncodedQuestion> = schema.iter().enumerate().map(question).collect();
    assert!(at <= rows, "{at} rows of spans");
    Encoded {
        ids: (0..rows).map(|row| (row * 13 % vocab) as u32).collect(),
        questions,
        truncated: 0,
        schema_start: start,
    }
}

/// A head's weights in another dtype.
#[derive(Debug)]
pub struct Converted {
    /// Name, shape and bytes.
    pub tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
    dtype: Dtype,
    source: Arc<dyn HeadWeights>,
}

impl Converted {
    /// Values in `dtype`, times up to `1 + noise`.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(drawn: &Drawn, dtype: Dtype, noise: f32) -> Converted {
        let convert = |name: String| {
            let tensor = drawn.weights.tensor(&name).expect("it is drawn");
            let values = tensor
                .to_f32()
                .expect("there is memory")
                .into_iter()
                .enumerate();
            let values = values.map(|(i, x)| x * (1.0 + noise * (i * 7 % 13) as f32 / 13.0));
            let bytes = match dtype {
                Dtype::F16 => values
                    .flat_map(|x| half::f16::from_f32(x).to_le_bytes())
                    .collect(),
                _ => values.flat_map(f32::to_le_bytes).collect(),
            };
            (name, tensor.shape.to_vec(), bytes)
        };
        Converted {
            tensors: DrawnHead::names(&drawn.config)
                .into_iter()
                .map(convert)
                .collect(),
            dtype,
            source: Arc::clone(&drawn.weights),
        }
    }
}

impl HeadWeights for Converted {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        let missing = || LoadError::TensorMissing {
            file: "head".into(),
            name: name.into(),
            wanted: Vec::new(),
        };
        let (name, shape, bytes) = self
            .tensors
            .iter()
            .find(|(known, ..)| known == name)
            .ok_or_else(missing)?;
        Ok(Tensor {
            name,
            dtype: self.dtype,
            shape,
            bytes,
        })
    }

    fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        self.source.lexical_embedding()
    }
}
