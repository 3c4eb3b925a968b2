//! Receipts: digests that show which model, which input and which numbers an answer came from.
//!
//! All digests are BLAKE3. Those of the model are of the release's files, so that `b3sum` finds them too; those of a
//! request are of its token ids and logits, which say all that a reply was made from.

use std::fmt;
use std::sync::{Arc, OnceLock};

use descant_decision::json::Object;
use descant_decision::{Encoded, Logits, Value};

/// Form of the receipts.
const FORM: u32 = 1;

/// Digests of a release, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDigests {
    /// Of the backbone: its config and weights.
    pub model: String,
    /// Of the head: its config and weights.
    pub head: String,
    /// Of the tokenizer.
    pub tokenizer: String,
}

/// Where answers come from.
#[derive(Clone)]
pub struct Provenance {
    /// The device and its precision.
    backend: String,
    /// Computes the digests, which takes seconds for a large release.
    compute: Arc<dyn Fn() -> Result<ModelDigests, String> + Send + Sync>,
    digests: Arc<OnceLock<Result<ModelDigests, String>>>,
}

/// What a receipt says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The program's version.
    pub version: String,
    /// The device and its precision.
    pub backend: String,
    /// How the questions were put to the model, a name of [`crate::Reading`].
    pub mode: String,
    /// Digests of the release.
    pub digests: ModelDigests,
    /// Digest of the token ids.
    pub prompt: String,
    /// Digest of the logits.
    pub logits: String,
}

impl Provenance {
    /// A release on a device, whose digests are computed when they are first wanted.
    pub fn new(
        backend: String,
        compute: impl Fn() -> Result<ModelDigests, String> + Send + Sync + 'static,
    ) -> Provenance {
        Provenance {
            backend,
            compute: Arc::new(compute),
            digests: Arc::default(),
        }
    }

    /// The device and its precision.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The digests; computed by the first who asks, for whom all others wait.
    ///
    /// # Errors
    /// Why the release's files cannot be read.
    pub fn digests(&self) -> Result<&ModelDigests, String> {
        self.digests
            .get_or_init(|| (self.compute)())
            .as_ref()
            .map_err(Clone::clone)
    }

    /// A receipt.
    ///
    /// # Errors
    /// As [`Provenance::digests`].
    pub fn receipt(
        &self,
        mode: &str,
        prompts: &[Arc<Encoded>],
        logits: &[Logits],
    ) -> Result<Receipt, String> {
        Ok(Receipt {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            backend: self.backend.clone(),
            mode: mode.to_owned(),
            digests: self.digests()?.clone(),
            prompt: prompt_digest(prompts),
            logits: logits_digest(logits),
        })
    }
}

impl fmt::Debug for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provenance")
            .field("backend", &self.backend)
            .field("digests", &self.digests.get())
            .finish_non_exhaustive()
    }
}

impl Receipt {
    /// The receipt as JSON, all ASCII, for a header or a file.
    pub fn to_value(&self) -> Value {
        Object::new()
            .with("receipt", FORM)
            .with("version", self.version.as_str())
            .with("backend", self.backend.as_str())
            .with("mode", self.mode.as_str())
            .with("model", self.digests.model.as_str())
            .with("head", self.digests.head.as_str())
            .with("tokenizer", self.digests.tokenizer.as_str())
            .with("prompt", self.prompt.as_str())
            .with("logits", self.logits.as_str())
            .into()
    }

    /// Reads a receipt.
    ///
    /// # Errors
    /// What is missing or of another form.
    pub fn from_value(value: &Value) -> Result<Receipt, String> {
        let form = value.get("receipt").and_then(Value::as_number);
        if form.and_then(descant_decision::json::Number::as_u64) != Some(u64::from(FORM)) {
            return Err(format!("wanted a receipt of form {FORM}"));
        }
        let text = |key: &str| {
            let found = value.get(key).and_then(Value::as_str);
            found
                .map(str::to_owned)
                .ok_or_else(|| format!("the receipt has no {key}"))
        };
        Ok(Receipt {
            version: text("version")?,
            backend: text("backend")?,
            mode: text("mode")?,
            digests: ModelDigests {
                model: text("model")?,
                head: text("head")?,
                tokenizer: text("tokenizer")?,
            },
            prompt: text("prompt")?,
            logits: text("logits")?,
        })
    }

    /// The fields in which another receipt differs, by name, with this one's value and the other's.
    pub fn differences<'a>(&'a self, other: &'a Receipt) -> Vec<(&'static str, &'a str, &'a str)> {
        let fields = |receipt: &'a Receipt| {
            [
                ("version", receipt.version.as_str()),
                ("backend", receipt.backend.as_str()),
                ("mode", receipt.mode.as_str()),
                ("model", receipt.digests.model.as_str()),
                ("head", receipt.digests.head.as_str()),
                ("tokenizer", receipt.digests.tokenizer.as_str()),
                ("prompt", receipt.prompt.as_str()),
                ("logits", receipt.logits.as_str()),
            ]
        };
        fields(self)
            .into_iter()
            .zip(fields(other))
            .filter(|(own, others)| own.1 != others.1)
            .map(|((name, own), (_, others))| (name, own, others))
            .collect()
    }
}

/// BLAKE3 of the prompts: for each its number of ids as u64, then the ids as u32, all little endian.
fn prompt_digest(prompts: &[Arc<Encoded>]) -> String {
    let mut hasher = blake3::Hasher::new();
    for prompt in prompts {
        hasher.update(&(prompt.ids.len() as u64).to_le_bytes());
        let bytes: Vec<u8> = prompt.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize().to_hex().to_string()
}

/// BLAKE3 of the logits: for each question its number of options as u64, then the logits as f32, all little endian, options
/// in the order in which the model reads them.
fn logits_digest(logits: &[Logits]) -> String {
    let mut hasher = blake3::Hasher::new();
    for question in logits.iter().flatten() {
        hasher.update(&(question.len() as u64).to_le_bytes());
        let bytes: Vec<u8> = question
            .iter()
            .flat_map(|logit| logit.to_le_bytes())
            .collect();
        hasher.update(&bytes);
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use descant_decision::json::to_json;

    use super::*;

    fn prompt(ids: &[u32]) -> Arc<Encoded> {
        Arc::new(Encoded {
            ids: ids.to_vec(),
            questions: Vec::new(),
            truncated: 0,
            schema_start: 0,
        })
    }

    fn digests() -> ModelDigests {
        let text = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
        ModelDigests {
            model: text("m"),
            head: text("h"),
            tokenizer: text("t"),
        }
    }

    /// The bytes are spelled out by hand; BLAKE3 itself is the crate's.
    #[test]
    fn digests_are_of_counts_and_little_endian_values() {
        let ids = b"\x02\0\0\0\0\0\0\0\x01\0\0\0\x00\x01\0\0\x01\0\0\0\0\0\0\0\x07\0\0\0";
        let wanted = blake3::hash(ids).to_hex().to_string();
        assert_eq!(prompt_digest(&[prompt(&[1, 256]), prompt(&[7])]), wanted);
        let logits = b"\x02\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\xc0";
        let wanted = blake3::hash(logits).to_hex().to_string();
        assert_eq!(logits_digest(&[vec![vec![1.0, -2.0]]]), wanted);
    }

    #[test]
    fn a_receipt_is_read_back_and_every_change_is_named() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let provenance = Provenance::new("cpu f32".into(), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(digests())
        });
        let logits = [vec![vec![1.0_f32, 2.0]]];
        let receipt = provenance
            .receipt("joint", &[prompt(&[1, 2])], &logits)
            .unwrap();
        let text = to_json(&receipt.to_value());
        assert!(text.is_ascii() && text.len() < 1024, "{text}");
        assert_eq!(
            Receipt::from_value(&receipt.to_value()),
            Ok(receipt.clone())
        );
        for (other, name) in [
            (
                provenance.receipt("split", &[prompt(&[1, 2])], &logits),
                "mode",
            ),
            (
                provenance.receipt("joint", &[prompt(&[1, 3])], &logits),
                "prompt",
            ),
            (
                provenance.receipt("joint", &[prompt(&[1, 2])], &[vec![vec![1.0, 2.0000002]]]),
                "logits",
            ),
        ] {
            let other = other.unwrap();
            let names: Vec<_> = receipt.differences(&other).iter().map(|d| d.0).collect();
            assert_eq!(names, [name]);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_no_receipt_is_said() {
        let receipt =
            |text: &str| Receipt::from_value(&descant_decision::json::parse_str(text).unwrap());
        assert_eq!(receipt("{}").unwrap_err(), "wanted a receipt of form 1");
        assert_eq!(
            receipt(r#"{"receipt":1}"#).unwrap_err(),
            "the receipt has no version"
        );
    }
}
