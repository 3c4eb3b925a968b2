//! Logits become answers.
//!
//! Probabilities are a softmax over a question's own options, in f32 as the release computes it: the largest logit is
//! subtracted, the exponentials are summed in encoder order. They are then widened; whatever is derived from them is
//! f64. See [`Profile`] for what is rounded and what confidence means.

use std::error::Error;
use std::fmt;

use crate::encoded::{Encoded, EncodedQuestion, Logits};
use crate::fault::printable;
use crate::float::round4;
use crate::json::{Object, Value};
use crate::record::{Options, Question, Record};

/// What confidence means, and whether numbers are rounded: servers of this family differ, and a threshold tuned on one
/// does not carry over to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The release's own: the top probability; all numbers at 4 places.
    #[default]
    Clef,
    /// Workers AI's, as far as one recorded answer shows: `(n Σp² - 1) / (n - 1)`; 4 places.
    Cloudflare,
    /// Ollama's: `1 - H(p) / ln n`; 4 places.
    Entropy,
    /// TypeSafe's: for a choice `(n p_max - 1) / (n - 1)`, for a score one minus the mean distance from the most
    /// probable level over the mean distance from the middle; nothing is rounded, and the softmax is in f64 so that
    /// probabilities sum to 1 closer than 1e-6.
    TypeSafe,
}

impl Profile {
    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Clef => "clef",
            Profile::Cloudflare => "cloudflare",
            Profile::Entropy => "entropy",
            Profile::TypeSafe => "typesafe",
        }
    }

    fn probabilities(self, logits: &[f32]) -> Vec<f64> {
        match self {
            Profile::TypeSafe => softmax_f64(logits),
            _ => softmax_f32(logits),
        }
    }

    fn round(self, x: f64) -> f64 {
        match self {
            Profile::TypeSafe => x,
            _ => round4(x),
        }
    }

    fn choice_confidence(self, p: &[f64]) -> f64 {
        match self {
            Profile::Clef => p[first_max(p)],
            Profile::Cloudflare => simpson(p),
            Profile::Entropy => certainty(p),
            Profile::TypeSafe => margin(p),
        }
    }

    fn score_confidence(self, p: &[f64]) -> f64 {
        match self {
            Profile::TypeSafe => concentration(p),
            _ => self.choice_confidence(p),
        }
    }
}

/// A question's logits are not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFiniteLogits {
    /// The question's id.
    pub question: String,
}

impl fmt::Display for NonFiniteLogits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "question {}: a logit is not finite",
            printable(&self.question)
        )
    }
}

impl Error for NonFiniteLogits {}

/// The answers of a record, in request order.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// One answer a question.
    pub answers: Vec<Answer>,
    /// Tokens of the prompt.
    pub input_tokens: usize,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The question's id.
    pub id: String,
    /// What was decided, rounded as the profile says.
    pub verdict: Verdict,
    /// The numbers behind it, if the record wants them.
    pub raw: Option<Raw>,
}

/// What was decided on one question.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// One of several named options.
    Choice {
        /// The first of the most probable options, in request order.
        choice: String,
        /// How sure, as the profile defines it.
        confidence: f64,
        /// Names and probabilities in request order.
        probabilities: Vec<(String, f64)>,
    },
    /// Yes or no.
    Noul {
        /// Probability of yes.
        noul: f64,
    },
    /// One of several levels.
    Score {
        /// The expected level, counted from 0.
        score: f64,
        /// How sure, as the profile defines it.
        confidence: f64,
        /// The levels as sent.
        legend: Vec<Value>,
        /// Probability of each level.
        probabilities: Vec<f64>,
    },
}

/// A question's unrounded numbers, in encoder order (options of a choice sorted). The same in every profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    /// Option ids.
    pub options: Vec<String>,
    /// The release's f32 probabilities.
    pub probabilities: Vec<f64>,
    /// Logits.
    pub logits: Vec<f32>,
}

/// Reads the answers of a record from its logits.
///
/// # Errors
/// The first question that has a logit that is not finite.
///
/// # Panics
/// If `encoded` or `logits` are not this record's.
pub fn answer(
    record: &Record,
    encoded: &Encoded,
    logits: &Logits,
    profile: Profile,
) -> Result<Answers, NonFiniteLogits> {
    assert_eq!(
        record.questions().len(),
        encoded.questions.len(),
        "questions of another record"
    );
    assert_eq!(
        record.questions().len(),
        logits.len(),
        "logits of another record"
    );
    let questions = record
        .questions()
        .iter()
        .zip(&encoded.questions)
        .zip(logits);
    let answers = questions.map(|((question, encoded), logits)| {
        assert_eq!(
            encoded.options.len(),
            logits.len(),
            "logits of another question"
        );
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Err(NonFiniteLogits {
                question: question.id().to_owned(),
            });
        }
        Ok(Answer {
            id: question.id().to_owned(),
            verdict: verdict(question, encoded, logits, profile),
            raw: record.raw().then(|| raw(encoded, logits)),
        })
    });
    Ok(Answers {
        answers: answers.collect::<Result<_, _>>()?,
        input_tokens: encoded.ids.len(),
    })
}

fn verdict(
    question: &Question,
    encoded: &EncodedQuestion,
    logits: &[f32],
    profile: Profile,
) -> Verdict {
    let p = profile.probabilities(logits);
    match question.options() {
        Options::Choice(options) => choice(options, encoded, &p, profile),
        Options::Noul { .. } => Verdict::Noul {
            noul: profile.round(p[0]),
        },
        Options::Score(levels) => Verdict::Score {
            score: profile.round(mean_level(&p)),
            confidence: profile.round(profile.score_confidence(&p)),
            legend: levels.clone(),
            probabilities: p.iter().map(|&p| profile.round(p)).collect(),
        },
    }
}

/// The answer to a choice: `p` is in encoder order, what is decided and shown is in request order.
fn choice(
    options: &[(String, Value)],
    encoded: &EncodedQuestion,
    p: &[f64],
    profile: Profile,
) -> Verdict {
    let place = |name: &str| {
        let found = encoded
            .options
            .binary_search_by(|option| option.id.as_str().cmp(name));
        found.expect("the encoder sorts the options of the record")
    };
    let in_order: Vec<f64> = options.iter().map(|(name, _)| p[place(name)]).collect();
    let names = options.iter().map(|(name, _)| name.clone());
    Verdict::Choice {
        choice: options[first_max(&in_order)].0.clone(),
        confidence: profile.round(profile.choice_confidence(&in_order)),
        probabilities: names
            .zip(in_order.iter().map(|&p| profile.round(p)))
            .collect(),
    }
}

fn raw(encoded: &EncodedQuestion, logits: &[f32]) -> Raw {
    Raw {
        options: encoded
            .options
            .iter()
            .map(|option| option.id.clone())
            .collect(),
        probabilities: softmax_f32(logits),
        logits: logits.to_vec(),
    }
}

impl Answers {
    /// The reply body: `model`, `answers`, `usage`.
    pub fn to_value(&self, model: &str) -> Value {
        let usage = Object::new()
            .with("input_tokens", self.input_tokens)
            .with("output_tokens", 0_u32);
        let answers: Object = self
            .answers
            .iter()
            .map(|answer| (answer.id.as_str(), answer.to_value()))
            .collect();
        Object::new()
            .with("model", model)
            .with("answers", answers)
            .with("usage", usage)
            .into()
    }
}

impl Answer {
    fn to_value(&self) -> Value {
        let mut answer = self.verdict.to_object();
        if let Some(raw) = &self.raw {
            answer.insert("raw", raw.to_value());
        }
        answer.into()
    }
}

impl Verdict {
    fn to_object(&self) -> Object {
        match self {
            Verdict::Choice {
                choice,
                confidence,
                probabilities,
            } => Object::new()
                .with("type", "choice")
                .with("choice", choice.as_str())
                .with("confidence", Value::float(*confidence))
                .with(
                    "probabilities",
                    probabilities
                        .iter()
                        .map(|(name, p)| (name.as_str(), Value::float(*p)))
                        .collect::<Object>(),
                ),
            Verdict::Noul { noul } => Object::new()
                .with("type", "noul")
                .with("noul", Value::float(*noul)),
            Verdict::Score {
                score,
                confidence,
                legend,
                probabilities,
            } => Object::new()
                .with("type", "score")
                .with("score", Value::float(*score))
                .with("confidence", Value::float(*confidence))
                .with("legend", by_level(legend.iter().cloned()))
                .with(
                    "probabilities",
                    by_level(probabilities.iter().map(|&p| Value::float(p))),
                ),
        }
    }
}

impl Raw {
    fn to_value(&self) -> Value {
        let logits = self.logits.iter().map(|&logit| Value::float(logit.into()));
        Object::new()
            .with(
                "options",
                self.options.iter().map(String::as_str).collect::<Value>(),
            )
            .with(
                "probabilities",
                self.probabilities
                    .iter()
                    .map(|&p| Value::float(p))
                    .collect::<Value>(),
            )
            .with("logits", logits.collect::<Value>())
            .into()
    }
}

/// An object whose keys are the levels' indices.
fn by_level(values: impl Iterator<Item = Value>) -> Object {
    values
        .enumerate()
        .map(|(level, value)| (level.to_string(), value))
        .collect()
}

/// Softmax in f32, widened. The exponential is taken in f64 and rounded, which is the correctly rounded f32 one and the
/// same on every machine; the sum adds in the order of `logits`.
fn softmax_f32(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding to f32 is the point"
    )]
    let powers: Vec<f32> = logits
        .iter()
        .map(|&logit| f64::from(logit - largest).exp() as f32)
        .collect();
    let sum = powers.iter().fold(0.0_f32, |sum, power| sum + power);
    powers.iter().map(|power| f64::from(power / sum)).collect()
}

/// Softmax in f64; the sum adds in the order of `logits`.
fn softmax_f64(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits
        .iter()
        .map(|&logit| (f64::from(logit) - f64::from(largest)).exp())
        .collect();
    let sum = powers.iter().fold(0.0, |sum, power| sum + power);
    powers.iter().map(|power| power / sum).collect()
}

/// The index of the largest value, the first of equals.
fn first_max(p: &[f64]) -> usize {
    (1..p.len()).fold(
        0,
        |best, index| if p[index] > p[best] { index } else { best },
    )
}

/// `Σ i·p_i`, added in order of `i`.
fn mean_level(p: &[f64]) -> f64 {
    p.iter()
        .enumerate()
        .fold(0.0, |sum, (level, p)| sum + float(level) * p)
}

/// `(n Σp² - 1) / (n - 1)`: 0 for a uniform distribution, 1 for a certain one. Of a single option it is 1.
fn simpson(p: &[f64]) -> f64 {
    let n = float(p.len());
    let squares: f64 = p.iter().map(|p| p * p).sum();
    single_or(p, || (n * squares - 1.0) / (n - 1.0))
}

/// `1 - H(p) / ln n`, with 0 ln 0 = 0. Of a single option it is 1.
fn certainty(p: &[f64]) -> f64 {
    let entropy: f64 = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
    single_or(p, || 1.0 - entropy / float(p.len()).ln())
}

/// `(n p_max - 1) / (n - 1)`. Of a single option it is 1.
fn margin(p: &[f64]) -> f64 {
    let n = float(p.len());
    single_or(p, || (n * p[first_max(p)] - 1.0) / (n - 1.0))
}

/// `1 - Σ p_i |i - m| / D` where m is the first most probable level and D the mean distance of the levels from their
/// middle. Of a single level it is 1.
fn concentration(p: &[f64]) -> f64 {
    let n = float(p.len());
    let mode = float(first_max(p));
    let levels = || (0..p.len()).map(float);
    let spread: f64 = levels()
        .zip(p)
        .map(|(level, p)| p * (level - mode).abs())
        .sum();
    let uniform = levels()
        .map(|level| (level - (n - 1.0) / 2.0).abs())
        .sum::<f64>()
        / n;
    single_or(p, || 1.0 - spread / uniform)
}

/// 1 for a single option, otherwise what `confidence` gives, held between 0 and 1.
fn single_or(p: &[f64], confidence: impl FnOnce() -> f64) -> f64 {
    if p.len() == 1 {
        1.0
    } else {
        confidence().clamp(0.0, 1.0)
    }
}

/// A count of options or levels as a float: exact, counts are small.
fn float(count: usize) -> f64 {
    u32::try_from(count)
        .expect("a question has few options")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoded::EncodedOption;
    use crate::json::parse_str;
    use crate::record::Limits;

    /// Sums and quotients of a few f64 near 1 round a few times by 1.1e-16.
    const ROUNDINGS: f64 = 1e-12;

    fn close(found: f64, wanted: f64) {
        assert!(
            (found - wanted).abs() < ROUNDINGS,
            "found {found}, wanted {wanted}"
        );
    }

    /// Worked by hand from the formulas.
    #[test]
    fn confidences_are_the_formulas() {
        let p = [0.5, 0.25, 0.25];
        close(simpson(&p), (3.0 * 0.375 - 1.0) / 2.0);
        close(certainty(&p), 1.0 - 1.5 * 2.0_f64.ln() / 3.0_f64.ln());
        close(margin(&p), 0.25);
        // Mode 0; mean distance 0.25 + 2·0.25; the levels lie 2/3 from their middle on average.
        close(concentration(&p), (1.0_f64 - 0.75 / (2.0 / 3.0)).max(0.0));
        // Mode 1; mean distance 0.2 + 0.1.
        close(concentration(&[0.2, 0.7, 0.1]), 1.0 - 0.3 / (2.0 / 3.0));
    }

    /// A recorded answer of Workers AI: 0.9487, 0.0142, 0.0371 with a confidence of 0.8523; the printed probabilities
    /// are rounded at the fourth place, which moves the confidence by as much.
    #[test]
    fn simpson_is_what_workers_ai_showed() {
        let confidence = simpson(&[0.9487, 0.0142, 0.0371]);
        assert!((confidence - 0.8523).abs() < 2e-4, "{confidence}");
    }

    #[test]
    fn certain_is_one_and_uniform_is_zero() {
        for profile in [Profile::Cloudflare, Profile::Entropy, Profile::TypeSafe] {
            for n in [2_u32, 3, 7, 255] {
                let uniform = vec![1.0 / f64::from(n); n as usize];
                close(profile.choice_confidence(&uniform), 0.0);
                let mut certain = vec![0.0; n as usize];
                certain[1] = 1.0;
                close(profile.choice_confidence(&certain), 1.0);
                close(profile.score_confidence(&certain), 1.0);
            }
            close(profile.choice_confidence(&[1.0]), 1.0);
            close(profile.score_confidence(&[1.0]), 1.0);
        }
        close(concentration(&[0.25; 4]), 0.0); // mode 0: mean distance 1.5 over 1
    }

    #[test]
    fn softmax_takes_the_widest_finite_logits() {
        for softmax in [softmax_f32, softmax_f64] {
            assert_eq!(softmax(&[f32::MAX, f32::MIN]), [1.0, 0.0]);
            assert_eq!(softmax(&[f32::MIN, f32::MIN]), [0.5, 0.5]);
            assert_eq!(softmax(&[-3.5]), [1.0]);
            let p = softmax(&[0.125; 255]);
            assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        }
    }

    fn ask(questions: &str, ids: &[&[&str]]) -> (Record, Encoded) {
        let body = parse_str(&format!(r#"{{"state":"","questions":{questions}}}"#)).unwrap();
        let record = Record::from_value(&body, &Limits::default()).unwrap();
        let option = |id: &&str| EncodedOption {
            id: (*id).to_owned(),
            span: 0..1,
        };
        let questions = record
            .questions()
            .iter()
            .zip(ids)
            .map(|(question, ids)| EncodedQuestion {
                id: question.id().to_owned(),
                kind: question.kind(),
                span: 0..1,
                options: ids.iter().map(option).collect(),
            });
        let questions = questions.collect();
        let encoded = Encoded {
            ids: vec![0; 9],
            questions,
            truncated: 0,
            schema_start: 0,
        };
        (record, encoded)
    }

    /// The model reads the options sorted; a tie goes to the first as sent, and that is the order of the reply.
    #[test]
    fn ties_go_to_the_first_option_as_sent() {
        let choice = r#"{"q":{"type":"choice","criteria":{"z":null,"a":null,"m":null}}}"#;
        let (record, encoded) = ask(choice, &[&["a", "m", "z"]]);
        let reply = |logits: [f32; 3]| {
            let answers = answer(&record, &encoded, &vec![logits.to_vec()], Profile::Clef).unwrap();
            answers.to_value("clef").to_string()
        };
        let usage = r#""usage":{"input_tokens":9,"output_tokens":0}}"#;
        let answers = r#"{"model":"clef","answers":{"q":{"type":"choice","choice":"#;
        assert_eq!(
            reply([1.0, 1.0, 1.0]),
            format!(
                r#"{answers}"z","confidence":0.3333,"probabilities":{{"z":0.3333,"a":0.3333,"m":0.3333}}}}}},{usage}"#
            )
        );
        assert_eq!(
            reply([0.0, 90.0, 0.0]),
            format!(
                r#"{answers}"m","confidence":1.0,"probabilities":{{"z":0.0,"a":0.0,"m":1.0}}}}}},{usage}"#
            )
        );
    }

    /// Worked in f32 by hand: e^-0.3 is 0.7408182, the sum 1.7408183.
    #[test]
    fn raw_numbers_are_in_encoder_order_and_unrounded() {
        let choice = r#"{"q":{"type":"choice","criteria":{"b":null,"a":null}}}"#;
        let (record, encoded) = ask(choice, &[&["a", "b"]]);
        for profile in [Profile::Clef, Profile::TypeSafe] {
            let answers = answer(
                &record.clone().with_raw(true),
                &encoded,
                &vec![vec![0.1, -0.2]],
                profile,
            )
            .unwrap();
            let reply = answers.to_value("clef");
            let raw = reply
                .get("answers")
                .unwrap()
                .get("q")
                .unwrap()
                .get("raw")
                .unwrap();
            assert_eq!(
                raw.to_string(),
                r#"{"options":["a","b"],"probabilities":[0.5744425058364868,0.4255574643611908],"logits":[0.10000000149011612,-0.20000000298023224]}"#
            );
        }
    }

    #[test]
    fn a_logit_that_is_not_finite_names_its_question() {
        let questions = r#"{"good":{"type":"noul"},"bad\u001b":{"type":"noul"}}"#;
        let (record, encoded) = ask(questions, &[&["true", "false"], &["true", "false"]]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let logits = vec![vec![1.0, 2.0], vec![0.0, bad]];
            let error = answer(&record, &encoded, &logits, Profile::Clef).unwrap_err();
            assert_eq!(error.question, "bad\u{1b}");
            assert_eq!(
                error.to_string(),
                "question bad\\u{1b}: a logit is not finite"
            );
        }
    }
}
