//! Text bound to a JSON schema: which tokens may come next, by llguidance.
//!
//! The binding only rules tokens out; which of the others is chosen is the sampler's business, so the same seed still
//! gives the same text. It is a function of the schema and the tokens so far.

use std::fmt;
use std::sync::{Arc, OnceLock};

use descant_decision::json::to_json;
use descant_decision::{Value, printable};
use descant_engine::Constraint;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::chat::desk::Vocabulary;

/// Makes bindings for one vocabulary.
pub(crate) struct Grammars {
    vocabulary: Arc<dyn Vocabulary>,
    /// Tokens of the model, those of the tokenizer among them.
    vocab: usize,
    /// Tokens that end a turn; at least one.
    turn_ends: Vec<u32>,
    /// Made when the first text is to be bound: few servers bind any.
    factory: OnceLock<Result<ParserFactory, String>>,
}

/// A text that follows a schema.
struct Binding {
    matcher: Matcher,
    turn_ends: Vec<u32>,
}

impl Grammars {
    pub(crate) fn new(
        vocabulary: Arc<dyn Vocabulary>,
        vocab: usize,
        turn_ends: Vec<u32>,
    ) -> Grammars {
        Grammars {
            vocabulary,
            vocab,
            turn_ends,
            factory: OnceLock::new(),
        }
    }

    /// Binds a text to a JSON schema. Takes time in proportion to the schema, and the first time to the vocabulary.
    ///
    /// # Errors
    /// Why the schema cannot be followed.
    pub(crate) fn bind(&self, schema: &Value) -> Result<Box<dyn Constraint>, String> {
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let schema = serde_json::from_str(&to_json(schema)).map_err(|error| error.to_string())?;
        let parser = factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let parser = parser.map_err(|error| printable(&error.to_string()))?;
        Ok(Box::new(Binding {
            matcher: Matcher::new(Ok(parser)),
            turn_ends: self.turn_ends.clone(),
        }))
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let Some(end) = self.turn_ends.first() else {
            return Err("the model has no token that ends a turn".to_owned());
        };
        let words: Vec<Vec<u8>> = (0..self.vocab as u32).map(|id| self.word(id)).collect();
        let info = TokRxInfo::new(self.vocab as u32, *end);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.turn_ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(factory)
    }

    /// A token's bytes; none for one that no text may hold, which is then never allowed.
    fn word(&self, id: u32) -> Vec<u8> {
        let bytes = self.vocabulary.token_bytes(id).unwrap_or_default();
        if self.turn_ends.contains(&id) {
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat();
        }
        match self.vocabulary.is_special(id) || bytes.len() > WORD_BYTES_MAX {
            true => Vec::new(),
            false => bytes,
        }
    }
}

impl Constraint for Binding {
    fn mask(&mut self, logits: &mut [f32]) {
        // A schema that proves too much to follow ends the text; its client sees that it is not complete.
        let allowed: Option<SimpleVob> = self.matcher.compute_mask_or_eos().ok();
        for (id, logit) in (0u32..).zip(logits.iter_mut()) {
            let may_come = match &allowed {
                Some(allowed) => allowed.is_allowed(id),
                None => self.turn_ends.contains(&id),
            };
            if !may_come {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, id: u32) {
        // What comes after the end, where a client wants the end ignored, is no text of the schema's.
        if !self.matcher.is_stopped() {
            let _ = self.matcher.consume_token(id);
        }
    }
}

/// Bytes of the longest token that a bound text may hold.
const WORD_BYTES_MAX: usize = 250;

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars")
            .field("vocab", &self.vocab)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use descant_decision::json::parse_str;
    use descant_decision::{Detokenize, Tokenize};
    use descant_release::Tokenizer;
    use descant_testkit::fixtures;

    use super::*;
    use crate::chat::teller::tests::Bytes;

    impl Tokenize for Bytes {
        fn encode(&self, text: &str) -> Vec<u32> {
            text.bytes().map(u32::from).collect()
        }
    }

    fn grammars() -> Grammars {
        // Token 0 ends a turn, those from 256 on are nobody's.
        Grammars::new(Arc::new(Bytes), 300, vec![0])
    }

    /// Follows a text byte by byte as far as it may go; whether it may end there.
    fn follow(schema: &str, text: &str) -> (usize, bool) {
        let mut binding = grammars().bind(&parse_str(schema).unwrap()).unwrap();
        let may = |binding: &mut Box<dyn Constraint>, id: u32| {
            let mut logits = vec![0.0; 300];
            binding.mask(&mut logits);
            assert!(
                logits.iter().any(|logit| logit.is_finite()),
                "nothing may come"
            );
            assert!(logits[256..].iter().all(|logit| logit.is_infinite()));
            logits[id as usize].is_finite()
        };
        for (index, byte) in text.bytes().enumerate() {
            if !may(&mut binding, u32::from(byte)) {
                return (index, may(&mut binding, 0));
            }
            binding.accept(u32::from(byte));
        }
        (text.len(), may(&mut binding, 0))
    }

    const PERSON: &str = r##"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
        "home": {"$ref": "#/$defs/home"}}, "required": ["name", "age"], "additionalProperties": false,
        "$defs": {"home": {"enum": ["attic", "hall"]}}}"##;

    #[test]
    fn what_follows_the_schema_passes_and_may_end() {
        for text in [
            r#"{"name": "Zoë", "age": 30}"#,
            r#"{"name":"","age":0,"home":"attic"}"#,
        ] {
            assert_eq!(follow(PERSON, text), (text.len(), true), "{text}");
        }
    }

    #[test]
    fn what_does_not_is_stopped_where_it_leaves_it() {
        for (text, at) in [
            ("hello", 0),
            (r#"{"age""#, 2),
            (r#"{"name": 3"#, 9),
            (r#"{"name": "x", "age": -1"#, 21),
            (r#"{"name": "x", "age": 1, "home": "roof""#, 33),
            (r#"{"name": "x"}"#, 12),
        ] {
            assert_eq!(follow(PERSON, text), (at, false), "{text}");
        }
    }

    #[test]
    fn any_object_is_an_object() {
        let text = r#"{"a": [1, {"b": null}], "c": "d"}"#;
        assert_eq!(follow(r#"{"type": "object"}"#, text), (text.len(), true));
        assert_eq!(follow(r#"{"type": "object"}"#, "[1]"), (0, false));
    }

    #[test]
    fn after_its_end_a_text_only_ends() {
        let mut binding = grammars()
            .bind(&parse_str(r#"{"const": 1}"#).unwrap())
            .unwrap();
        binding.accept(u32::from(b'1'));
        for _ in 0..3 {
            let mut logits = vec![0.0; 300];
            binding.mask(&mut logits);
            let may_come: Vec<usize> = (0..300).filter(|id| logits[*id].is_finite()).collect();
            assert_eq!(may_come, [0]);
            binding.accept(0);
        }
    }

    #[test]
    fn the_released_vocabulary_follows_a_schema() {
        let json = fixtures::bytes("tokenizer/clef_tokenizer.json.gz");
        let tokenizer = Tokenizer::from_bytes(Path::new("tokenizer.json"), &json).unwrap();
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        let text = r#"{"name": "Zoë 世界 🙂", "age": 30, "home": "attic"}"#;
        let ids = tokenizer.encode(text);
        let vocab = 248_320;
        let grammars = Grammars::new(Arc::new(tokenizer), vocab, vec![end]);
        let mut binding = grammars.bind(&parse_str(PERSON).unwrap()).unwrap();
        for id in ids.into_iter().chain([end]) {
            let mut logits = vec![0.0; vocab];
            binding.mask(&mut logits);
            assert!(logits[id as usize].is_finite(), "{id}");
            let may_come = logits.iter().filter(|logit| logit.is_finite()).count();
            assert!(may_come < vocab, "something is ruled out");
            binding.accept(id);
        }
    }

    #[test]
    fn a_schema_that_is_none_is_refused() {
        for schema in [
            r#"{"type": "nonsense"}"#,
            r##"{"$ref": "#/nowhere"}"##,
            r#"{"$ref": "http://127.0.0.1/x"}"#,
            "7",
            "false",
        ] {
            assert!(
                grammars().bind(&parse_str(schema).unwrap()).is_err(),
                "{schema}"
            );
        }
        let nobody = Grammars::new(Arc::new(Bytes), 300, Vec::new());
        assert!(nobody.bind(&parse_str("{}").unwrap()).is_err());
        assert!(Bytes.is_special(0));
    }
}
