//! A stream's tokens as its client hears of them: text and tool calls.

use std::fmt;
use std::sync::Arc;

use descant_decision::Detokenize;
use descant_engine::{FinishReason, Token};

use crate::chat::calls::{Call, Calls, Heard, Tool};
use crate::chat::text::{Characters, Stops};

/// Turns tokens into text, token by token, and ends it at a stop string.
pub(crate) struct Teller {
    vocabulary: Arc<dyn Detokenize>,
    characters: Characters,
    stops: Stops,
    calls: Calls,
    /// Whether a tool was called.
    called: bool,
    /// Whether the client hears of the tokens themselves.
    tells_tokens: bool,
    /// Tokens that the client has not heard of yet.
    tokens: Vec<Spoken>,
    /// Tokens so far.
    count: usize,
    /// Characters of all tokens so far, shown or not.
    chars: usize,
}

/// What there is to tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    /// Further text.
    pub(crate) text: String,
    /// Tools that are called, after the text.
    pub(crate) calls: Vec<Call>,
    /// The tokens since the last text, if the client wants to hear of them.
    pub(crate) tokens: Vec<Spoken>,
    /// Why the text ends here, if it does.
    pub(crate) end: Option<End>,
}

/// A token and where its text begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spoken {
    pub(crate) token: Token,
    /// Characters before it.
    pub(crate) offset: usize,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model ended it, having called tools.
    Calls,
    /// It is as long as was asked for.
    Length,
    /// The model ended it, or a stop string did.
    Stop,
}

impl Teller {
    /// A teller of a stream that ends at `stops`, none of which is empty, and in which `tools` are called.
    pub(crate) fn new(
        vocabulary: Arc<dyn Detokenize>,
        stops: Vec<String>,
        tools: Vec<Tool>,
        tells_tokens: bool,
    ) -> Teller {
        Teller {
            vocabulary,
            characters: Characters::default(),
            stops: Stops::new(stops),
            calls: Calls::new(tools),
            called: false,
            tells_tokens,
            tokens: Vec::new(),
            count: 0,
            chars: 0,
        }
    }

    /// Takes the next token.
    pub(crate) fn token(&mut self, token: Token) -> Told {
        self.count += 1;
        let bytes = match self.vocabulary.is_special(token.id) {
            true => None,
            false => self.vocabulary.token_bytes(token.id),
        };
        let text = self.characters.push(&bytes.unwrap_or_default());
        if self.tells_tokens {
            let offset = self.chars;
            self.tokens.push(Spoken { token, offset });
        }
        self.chars += text.chars().count();
        let (text, stopped) = self.stops.push(&text);
        let mut heard = self.calls.push(&text);
        if stopped {
            heard.text.push_str(&self.calls.finish());
        }
        self.told(heard, stopped.then_some(End::Stop))
    }

    /// Takes the stream's own end.
    pub(crate) fn end(&mut self, reason: FinishReason) -> Told {
        let (mut text, stopped) = self.stops.push(&self.characters.finish());
        let end = match reason {
            FinishReason::Length if !stopped => End::Length,
            FinishReason::Length | FinishReason::Stop { .. } => End::Stop,
        };
        if !stopped {
            text.push_str(&self.stops.finish());
        }
        let mut heard = self.calls.push(&text);
        heard.text.push_str(&self.calls.finish());
        // The token that ends a turn is counted, though it has no text.
        self.count += usize::from(matches!(reason, FinishReason::Stop { .. }));
        self.told(heard, Some(end))
    }

    /// Tokens that were chosen so far.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn told(&mut self, heard: Heard, end: Option<End>) -> Told {
        let Heard { text, calls } = heard;
        self.called |= !calls.is_empty();
        let end = match end {
            Some(End::Stop) if self.called => Some(End::Calls),
            end => end,
        };
        let mut told = Told {
            text,
            calls,
            tokens: Vec::new(),
            end,
        };
        if told.is_news() {
            told.tokens = std::mem::take(&mut self.tokens);
        }
        told
    }
}

impl Told {
    /// Whether there is something to tell at all.
    pub(crate) fn is_news(&self) -> bool {
        !self.text.is_empty() || !self.calls.is_empty() || self.end.is_some()
    }

    /// Adds what came next.
    pub(crate) fn append(&mut self, next: Told) {
        self.text.push_str(&next.text);
        self.calls.extend(next.calls);
        self.tokens.extend(next.tokens);
        self.end = next.end;
    }
}

impl End {
    /// Its name on the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            End::Calls => "tool_calls",
            End::Length => "length",
            End::Stop => "stop",
        }
    }
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Teller")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A vocabulary in which a token is a byte, but 0 is special.
    #[derive(Debug)]
    pub(crate) struct Bytes;

    impl Detokenize for Bytes {
        fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
            u8::try_from(id).ok().map(|byte| vec![byte])
        }

        fn is_special(&self, id: u32) -> bool {
            id == 0
        }
    }

    fn token(id: u32) -> Token {
        Token {
            id,
            logprob: Some(-1.0),
            top: Vec::new(),
        }
    }

    fn tell(teller: &mut Teller, bytes: &[u8]) -> Vec<Told> {
        let tokens = bytes.iter().map(|byte| token(u32::from(*byte)));
        tokens.map(|token| teller.token(token)).collect()
    }

    #[test]
    fn tokens_wait_for_the_text_that_they_are_part_of() {
        let mut teller = Teller::new(Arc::new(Bytes), vec!["!?".into()], Vec::new(), true);
        let told = tell(&mut teller, "aé!".as_bytes());
        let heard: Vec<(&str, usize)> = told
            .iter()
            .map(|told| (told.text.as_str(), told.tokens.len()))
            .collect();
        assert_eq!(heard, [("a", 1), ("", 0), ("é", 2), ("", 0)]);
        let offsets: Vec<usize> = told
            .iter()
            .flat_map(|told| &told.tokens)
            .map(|spoken| spoken.offset)
            .collect();
        assert_eq!(offsets, [0, 1, 1]);
        let last = teller.end(FinishReason::Length);
        assert_eq!((last.text.as_str(), last.tokens.len()), ("!", 1));
        assert_eq!((last.end, teller.count()), (Some(End::Length), 4));
    }

    #[test]
    fn a_stop_string_ends_the_text() {
        let mut teller = Teller::new(Arc::new(Bytes), vec!["!?".into()], Vec::new(), false);
        let told = tell(&mut teller, b"a!?");
        assert_eq!(told[2].end, Some(End::Stop));
        assert!(told.iter().all(|told| told.tokens.is_empty()));
        assert_eq!(teller.count(), 3);
    }

    #[test]
    fn special_tokens_and_ids_without_text_are_silent() {
        let mut teller = Teller::new(Arc::new(Bytes), Vec::new(), Vec::new(), false);
        let smile = "🙂".as_bytes();
        // A special token does not part the bytes of a character.
        tell(&mut teller, &smile[..2]);
        assert!(!teller.token(token(0)).is_news());
        assert!(!teller.token(token(1000)).is_news());
        assert_eq!(tell(&mut teller, &smile[2..])[1].text, "🙂");
    }

    #[test]
    fn an_unfinished_character_is_replaced_at_the_end() {
        let mut teller = Teller::new(Arc::new(Bytes), Vec::new(), Vec::new(), false);
        tell(&mut teller, &[0xe2, 0x82]);
        let told = teller.end(FinishReason::Stop { id: 0 });
        assert_eq!(
            (told.text.as_str(), told.end),
            ("\u{fffd}", Some(End::Stop))
        );
        assert_eq!(teller.count(), 3);
    }
}
