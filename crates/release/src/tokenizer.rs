//! The release's tokenizer: `tokenizer.json` exactly as it stands.
//!
//! The pattern printed in `tokenizer_config.json` is not read: the released `tokenizer.json` carries another one, and it
//! is the one the models were trained with.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use descant_decision::{Detokenize, Tokenize};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::error::LoadError;
use crate::segments::Cuts;
use crate::source::read_bounded;
use crate::words::Words;

/// A byte-level BPE tokenizer. Every text has ids; the text of an added token becomes that token wherever it stands.
pub struct Tokenizer {
    file: PathBuf,
    inner: tokenizers::Tokenizer,
    id_max: u32,
    /// Ids of the added tokens that are marked as special.
    special: BTreeSet<u32>,
    /// Where long text may be cut; nothing where that is not known.
    cuts: Option<Cuts>,
    /// Encodes the parts of a text that are ASCII; nothing where the library has to do it all.
    words: Option<Words>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`LoadError::File`], [`LoadError::Memory`], [`LoadError::Tokenizer`].
    pub fn open(file: &Path) -> Result<Tokenizer, LoadError> {
        Tokenizer::from_bytes(file, &read_bounded(file, BYTES_MAX)?)
    }

    /// Loads the content of a `tokenizer.json`; `file` is for messages.
    ///
    /// # Errors
    /// [`LoadError::Tokenizer`] if it is no tokenizer, or one that some text has no ids in.
    pub fn from_bytes(file: &Path, json: &[u8]) -> Result<Tokenizer, LoadError> {
        let refuse = |source| LoadError::Tokenizer {
            file: file.to_path_buf(),
            source,
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(refuse)?;
        // Cutting and filling up are the caller's business; the reference switches them off too.
        inner.with_truncation(None).map_err(refuse)?;
        inner.with_padding(None);
        if let Some(byte) = ByteLevel::alphabet()
            .into_iter()
            .find(|byte| inner.token_to_id(&byte.to_string()).is_none())
        {
            return Err(refuse(
                format!(
                    "no token for the byte written {byte:?}; wanted a byte-level BPE tokenizer"
                )
                .into(),
            ));
        }
        let vocabulary = inner.get_vocab(true);
        let id_max = vocabulary.values().copied().max().unwrap_or(0);
        let cuts = Cuts::of(&inner);
        let tokenizer = Tokenizer {
            file: file.to_path_buf(),
            words: cuts.as_ref().and_then(|_| Words::of(&inner)),
            cuts,
            special: special(&inner),
            inner,
            id_max,
        };
        tokenizer.try_encode(PROBE, usize::MAX).map_err(refuse)?;
        Ok(tokenizer)
    }

    /// Checks that an embedding of `vocab` rows has one for every id.
    ///
    /// # Errors
    /// [`LoadError::TokenizerIds`].
    pub fn check_ids(&self, vocab: usize) -> Result<(), LoadError> {
        match (self.id_max as usize) < vocab {
            true => Ok(()),
            false => Err(LoadError::TokenizerIds {
                file: self.file.clone(),
                id_max: self.id_max,
                vocab,
            }),
        }
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The greatest id.
    pub fn id_max(&self) -> u32 {
        self.id_max
    }

    /// Id and text of each added token, by id. Its text becomes its id in any text.
    pub fn added_tokens(&self) -> Vec<(u32, String)> {
        let added = self.inner.get_added_tokens_decoder();
        let mut tokens: Vec<_> = added
            .into_iter()
            .map(|(id, token)| (id, token.content))
            .collect();
        tokens.sort_unstable();
        tokens
    }

    /// The id of a token's text, as the file writes it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of some ids. Bytes that form no character become U+FFFD; unknown ids have no text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.inner.decode(ids, skip_special).unwrap_or_default()
    }

    /// The ids of a text's segments, until there are enough.
    fn try_encode(
        &self,
        text: &str,
        enough: usize,
    ) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let mut ids = Vec::new();
        let Some(cuts) = &self.cuts else {
            self.encode_whole(text, &mut ids)?;
            return Ok(ids);
        };
        for segment in cuts.segments(text) {
            match &self.words {
                Some(words) => self.encode_parts(cuts, words, segment, &mut ids)?,
                None => self.encode_whole(segment, &mut ids)?,
            }
            if ids.len() >= enough {
                break;
            }
        }
        Ok(ids)
    }

    /// Appends a segment's ids: word by word, or, where the library is needed for something in it, for as little of it as
    /// may be cut off.
    fn encode_parts(
        &self,
        cuts: &Cuts,
        words: &Words,
        segment: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let model = self.inner.get_model();
        if words.suit(segment) {
            return words.encode(model, segment, ids);
        }
        let mut encode = |run: &str, suits: bool| match suits {
            true => words.encode(model, run, ids),
            false => self.encode_whole(run, ids),
        };
        // Runs of parts of one sort are encoded together, since each run costs a lock or a call.
        let (mut begin, mut end, mut suits) = (0, 0, true);
        for part in cuts.parts(segment) {
            if words.suit(part) != suits {
                encode(&segment[begin..end], suits)?;
                (begin, suits) = (end, !suits);
            }
            end += part.len();
        }
        encode(&segment[begin..], suits)
    }

    /// Appends the ids that the library gives a text as it stands.
    fn encode_whole(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if !text.is_empty() {
            ids.extend_from_slice(self.inner.encode_fast(text, false)?.get_ids());
        }
        Ok(())
    }
}

impl Tokenize for Tokenizer {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_start(text, usize::MAX)
    }

    fn encode_start(&self, text: &str, enough: usize) -> Vec<u32> {
        self.try_encode(text, enough)
            .expect("a byte-level BPE whose bytes all have tokens refuses no text")
    }
}

impl Detokenize for Tokenizer {
    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.inner.id_to_token(id)?;
        // As the byte-level decoder does it: a token with a character that stands for no byte is text as it is.
        let bytes = token.chars().map(byte_of).collect::<Option<Vec<u8>>>();
        Some(bytes.unwrap_or_else(|| token.into_bytes()))
    }

    fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }
}

fn special(inner: &tokenizers::Tokenizer) -> BTreeSet<u32> {
    let added = inner.get_added_tokens_decoder().into_iter();
    added
        .filter_map(|(id, token)| token.special.then_some(id))
        .collect()
}

/// The byte that a character of a byte-level vocabulary stands for: a printable one for itself, the 68 others, in their
/// order, for U+0100 and the characters behind it.
fn byte_of(c: char) -> Option<u8> {
    const FIRST: u32 = 0x100;
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ FIRST..=0x143 => {
            let mut others = (0..=0x20u8).chain(0x7f..=0xa0).chain([0xad]);
            others.nth((code - FIRST) as usize)
        }
        _ => None,
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("file", &self.file)
            .field("tokens", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

/// Greatest size of `tokenizer.json`; the release's has 20 MB.
pub(crate) const BYTES_MAX: u64 = 256 << 20;
/// A text of several scripts, tried at loading so that a broken file fails then.
const PROBE: &str = "It's 12 o'clock.\r\n\n  नमस्ते 你好 \u{301} 🙂";

#[cfg(test)]
mod tests {
    use super::*;
    use descant_testkit::fixtures;
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use tokenizers::AddedToken;

    static CLEF: LazyLock<Tokenizer> = LazyLock::new(|| {
        let json = fixtures::bytes("tokenizer/clef_tokenizer.json.gz");
        Tokenizer::from_bytes(Path::new("tokenizer.json"), &json).unwrap()
    });

    /// A small release's tokenizer, which has one more added token of a single letter, one of the normalised text, and one
    /// that begins another.
    static ADDED: LazyLock<Tokenizer> = LazyLock::new(|| {
        let mut inner = tiny("tiny-b").inner;
        let added = [("q", false), ("e the", true), ("<|im", false)];
        inner
            .add_tokens(
                added
                    .map(|(text, normalized)| AddedToken::from(text, false).normalized(normalized)),
            )
            .unwrap();
        let json = inner.to_string(false).unwrap();
        Tokenizer::from_bytes(Path::new("tokenizer.json"), json.as_bytes()).unwrap()
    });

    fn tiny(name: &str) -> Tokenizer {
        Tokenizer::open(&fixtures::release(name).join("tokenizer.json")).unwrap()
    }

    /// What the library alone makes of the whole text.
    fn library_ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        let encoding = tokenizer.inner.encode_fast(text, false).unwrap();
        encoding.get_ids().to_vec()
    }

    fn piece() -> impl Strategy<Value = String> {
        let whole = [
            "<|im_start|>",
            "<|im_end|>",
            "</think>",
            "<tts_text_bos_single>",
            "{\"a\": [1, -2.5e3, null], \"it's\": \"\\n\"}",
            "    fn main() {\n\t\tlet x = &mut y[0];\r\n    }\n\n",
            "https://example.org/a?b=c&d=%20#e",
            "e the",
            "q",
        ];
        let halves = [
            "<|im_",
            "end|>",
            "<",
            "|>",
            "<thi",
            "nk>",
            "<|im_end|",
            "<tts_text_bos",
        ];
        prop_oneof![
            4 => "[a-zA-Z]{1,9}",
            4 => " ",
            2 => "[ \\t\\n\\r\u{b}\u{c}]{1,5}",
            2 => "'(s|t|re|ve|m|ll|d|S|RE|lL|\u{17f}|v)",
            1 => "[0-9]{1,3}",
            2 => "[!-/:-@\\[-`{-~]{1,4}[\\r\\n]{0,2}",
            1 => "[\u{0}-\u{7f}]{1,4}",
            2 => prop::sample::select(whole.to_vec()).prop_map(str::to_owned),
            2 => prop::sample::select(halves.to_vec()).prop_map(str::to_owned),
            1 => "[\u{300}\u{338}\u{3099}é漢か한€’“٣\u{85}\u{a0}\u{2028}\u{3000}\u{212a}]{1,2}",
            1 => any::<char>().prop_map(String::from),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6000))]
        /// The second time each word that can be remembered is.
        #[test]
        fn ids_are_the_library_s(pieces in prop::collection::vec(piece(), 0..24), times in 1..3_usize) {
            let text = pieces.concat();
            for tokenizer in [&*CLEF, &*ADDED] {
                let wanted = library_ids(tokenizer, &text);
                for _ in 0..times {
                    prop_assert_eq!(tokenizer.encode(&text), &wanted[..], "{:?}", text);
                }
            }
        }
    }

    /// Every state and text of the golden records, by each tokenizer at hand.
    #[test]
    fn golden_bodies_have_the_library_s_ids() {
        let records = fixtures::jsonl("golden/encode/clef.jsonl.gz");
        let others = ["tiny-a", "tiny-b", "tiny-tied"].map(tiny);
        let by_words = others.iter().map(|tokenizer| tokenizer.words.is_some());
        assert_eq!(by_words.collect::<Vec<_>>(), [false, true, false]);
        for tokenizer in others.iter().chain([&*CLEF, &*ADDED]) {
            for record in &records {
                let body = record["body"].as_str().unwrap();
                assert_eq!(
                    tokenizer.encode(body),
                    library_ids(tokenizer, body),
                    "{}",
                    record["name"]
                );
            }
        }
    }

    #[test]
    fn a_start_has_enough_of_the_ids() {
        let text = "It's 12 o'clock, “said” the <|im_end|> clock.\r\n".repeat(500);
        let ids = CLEF.encode(&text);
        assert_eq!(ids, library_ids(&CLEF, &text));
        for enough in [0, 1, 2, 1000, ids.len(), ids.len() + 1] {
            let start = CLEF.encode_start(&text, enough);
            assert!(start.len() >= enough.min(ids.len()), "{enough}");
            assert!(ids.starts_with(&start), "{enough}");
        }
        assert!(
            CLEF.encode_start(&text, 1).len() < ids.len() / 2,
            "it stops early"
        );
    }

    #[test]
    fn every_character_of_the_alphabet_is_a_byte_of_its_own() {
        let bytes: BTreeSet<u8> = ByteLevel::alphabet()
            .into_iter()
            .map(|c| byte_of(c).unwrap_or_else(|| panic!("{c:?} is no byte")))
            .collect();
        assert_eq!(bytes.len(), 256);
        for (c, byte) in [
            ('!', b'!'),
            ('Ġ', b' '),
            ('Ċ', b'\n'),
            ('ł', 0xa0),
            ('Ń', 0xad),
        ] {
            assert_eq!(byte_of(c), Some(byte), "{c}");
        }
        for c in [' ', '\u{ad}', '\u{144}', '語'] {
            assert_eq!(byte_of(c), None, "{c:?}");
        }
    }
}
