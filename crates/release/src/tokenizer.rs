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

/// A byte-level BPE tokenizer. Every text has ids; the text of an added token becomes that token wherever it stands.
pub struct Tokenizer {
    file: PathBuf,
    inner: tokenizers::Tokenizer,
    id_max: u32,
    /// Ids of the added tokens that are marked as special.
    special: BTreeSet<u32>,
    /// Where long text may be cut; nothing where that is not known.
    cuts: Option<Cuts>,
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
        let tokenizer = Tokenizer {
            file: file.to_path_buf(),
            cuts: Cuts::of(&inner),
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
        let Some(cuts) = &self.cuts else {
            return Ok(self.inner.encode_fast(text, false)?.get_ids().to_vec());
        };
        let mut ids = Vec::new();
        for segment in cuts.segments(text) {
            ids.extend_from_slice(self.inner.encode_fast(segment, false)?.get_ids());
            if ids.len() >= enough {
                break;
            }
        }
        Ok(ids)
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
