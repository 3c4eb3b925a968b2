//! The tokenizer as the encoder sees it.

/// Turns text into token ids.
///
/// An implementation is a pure function of the text: the same text gives the same ids, whatever was encoded before
/// and on whichever thread. Its time and memory grow no faster than the text by more than a logarithm.
pub trait Tokenize: Send + Sync {
    /// Encodes one piece of text. No special token is put around it, but the text of a special token inside the
    /// piece becomes that token, as the release's tokenizer does. Never fails: every string has ids, the empty
    /// string has none.
    fn encode(&self, text: &str) -> Vec<u32>;

    /// Encodes a piece of text from its start until there are `enough` ids or more, or the text ends. Gives the first of
    /// the ids that [`encode`](Self::encode) gives. An implementation that can stop early does.
    fn encode_start(&self, text: &str, enough: usize) -> Vec<u32> {
        let _ = enough;
        self.encode(text)
    }
}

impl<T: Tokenize + ?Sized> Tokenize for &T {
    fn encode(&self, text: &str) -> Vec<u32> {
        (**self).encode(text)
    }

    fn encode_start(&self, text: &str, enough: usize) -> Vec<u32> {
        (**self).encode_start(text, enough)
    }
}

impl<T: Tokenize + ?Sized> Tokenize for std::sync::Arc<T> {
    fn encode(&self, text: &str) -> Vec<u32> {
        (**self).encode(text)
    }

    fn encode_start(&self, text: &str, enough: usize) -> Vec<u32> {
        (**self).encode_start(text, enough)
    }
}

/// Turns token ids back into text, token by token.
pub trait Detokenize: Send + Sync {
    /// The bytes of a token's text; a character may be spread over several tokens. `None` if no token has the id.
    fn token_bytes(&self, id: u32) -> Option<Vec<u8>>;

    /// Whether a token is a mark of the model's own, such as the end of a turn, that is no part of what it says.
    fn is_special(&self, id: u32) -> bool;
}
