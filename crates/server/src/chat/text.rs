//! From the bytes of tokens to text that may be shown: whole characters, and nothing that a stop string may still claim.

/// Bytes on their way to characters. Whatever the cuts between the bytes, the text is the same as that of all bytes at
/// once: an ill-formed sequence becomes U+FFFD, as [`String::from_utf8_lossy`] has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Characters {
    /// The start of a character whose rest is to come.
    begun: Vec<u8>,
}

impl Characters {
    /// Takes further bytes and gives the characters that are complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.begun.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(good) => {
                    text.push_str(good);
                    rest = &[];
                    break;
                }
                Err(fault) => {
                    let (good, bad) = rest.split_at(fault.valid_up_to());
                    text.push_str(std::str::from_utf8(good).expect("valid up to here"));
                    rest = bad;
                    let Some(length) = fault.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                }
            }
        }
        self.begun = rest.to_vec();
        text
    }

    /// What is left when no more bytes come.
    pub(crate) fn finish(&mut self) -> String {
        let begun = std::mem::take(&mut self.begun);
        String::from_utf8_lossy(&begun).into_owned()
    }
}

/// Strings at which a text ends, and the part of it that may become one of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops {
    /// None of them is empty.
    strings: Vec<String>,
    /// The longest end of the text that begins one of them.
    held: String,
}

impl Stops {
    /// Ends a text at any of some strings, which are not empty.
    pub(crate) fn new(strings: Vec<String>) -> Stops {
        Stops {
            strings,
            held: String::new(),
        }
    }

    /// Takes further text and gives what may be shown of it. The text ends (`true`) with what is given here if one of
    /// the strings is complete: the one that is complete first, or of several the one that begins first.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let matches = self.strings.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        if let Some((_, start)) = matches.min() {
            let mut shown = std::mem::take(&mut self.held);
            shown.truncate(start);
            return (shown, true);
        }
        let kept = self.strings.iter().map(|stop| begun(&self.held, stop));
        let kept = kept.max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What is left when no more text comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a beginning of `stop`, but not all of it, in bytes.
pub(crate) fn begun(text: &str, stop: &str) -> usize {
    let longest = (stop.len() - 1).min(text.len());
    (1..=longest)
        .rev()
        .find(|length| text.as_bytes().ends_with(&stop.as_bytes()[..*length]))
        // Characters start the same in both, so where a beginning of one ends the other, no character is cut.
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn stops(strings: &[&str]) -> Stops {
        Stops::new(strings.iter().map(|stop| (*stop).to_owned()).collect())
    }

    /// What is shown of a text that comes in pieces, and whether it was stopped.
    fn shown(mut stops: Stops, pieces: &[&str]) -> (String, bool) {
        let mut all = String::new();
        for piece in pieces {
            let (text, stopped) = stops.push(piece);
            all.push_str(&text);
            if stopped {
                return (all, true);
            }
        }
        all.push_str(&stops.finish());
        (all, false)
    }

    #[test]
    fn a_character_is_given_when_it_is_complete() {
        let mut characters = Characters::default();
        let smile = "🙂".as_bytes();
        assert_eq!(characters.push(&[b'a', smile[0]]), "a");
        assert_eq!(characters.push(&smile[1..3]), "");
        assert_eq!(characters.push(&[smile[3], b'b']), "🙂b");
        assert_eq!(characters.finish(), "");
    }

    #[test]
    fn bytes_that_are_no_character_are_replaced() {
        let mut characters = Characters::default();
        assert_eq!(characters.push(&[0xff, b'a', 0xe2, 0x82]), "\u{fffd}a");
        assert_eq!(characters.push(b"b"), "\u{fffd}b");
        assert_eq!(characters.push(&[0xf0, 0x9f]), "");
        assert_eq!(characters.finish(), "\u{fffd}");
    }

    #[test]
    fn text_ends_before_a_stop_string_wherever_it_is_cut() {
        for pieces in [
            &["one STOP two"][..],
            &["one S", "T", "OP two"],
            &["one ", "STOP"],
        ] {
            assert_eq!(shown(stops(&["STOP"]), pieces), ("one ".into(), true));
        }
    }

    #[test]
    fn the_start_of_a_stop_string_is_held_back_until_it_is_none() {
        let mut held = stops(&["\n\nUser:"]);
        assert_eq!(held.push("yes\n"), ("yes".into(), false));
        assert_eq!(held.push("\n"), (String::new(), false));
        assert_eq!(held.push("\nUs"), ("\n".into(), false));
        assert_eq!(held.push("e"), (String::new(), false));
        assert_eq!(held.push("less"), ("\n\nUseless".into(), false));
        assert_eq!(held.push("\n\nUser"), (String::new(), false));
        assert_eq!(held.finish(), "\n\nUser");
    }

    #[test]
    fn the_string_that_is_complete_first_ends_the_text() {
        assert_eq!(
            shown(stops(&["abcd", "bc"]), &["xabcd"]),
            ("xa".into(), true)
        );
        assert_eq!(shown(stops(&["bc", "abc"]), &["xabc"]), ("x".into(), true));
    }

    #[test]
    fn a_stop_string_may_end_inside_a_character_of_no_other() {
        assert_eq!(shown(stops(&["é"]), &["e", "è", "é"]), ("eè".into(), true));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::with_cases(2000)
        })]

        /// However bytes are cut, the characters are those of the whole.
        #[test]
        fn cuts_change_no_character(
            bytes in prop::collection::vec(
                prop_oneof![Just(0xf0u8), Just(0x9f), Just(0x99), Just(0x82), Just(b'a'), any::<u8>()], 0..24),
            cuts in prop::collection::vec(1usize..5, 0..24),
        ) {
            let mut characters = Characters::default();
            let (mut text, mut rest) = (String::new(), bytes.as_slice());
            for cut in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                text.push_str(&characters.push(piece));
                rest = more;
            }
            text.push_str(&characters.push(rest));
            text.push_str(&characters.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        /// However text is cut, it ends at the same place, which is found here by looking at every beginning of it.
        #[test]
        fn cuts_move_no_end(
            text in "[abé]{0,16}",
            strings in prop::collection::vec("[abé]{1,4}", 1..4),
            cuts in prop::collection::vec(0usize..4, 0..16),
        ) {
            let mut wanted = (text.clone(), false);
            for (end, _) in text.char_indices().skip(1).chain([(text.len(), ' ')]) {
                let ends = |stop: &&String| text[..end].ends_with(stop.as_str());
                if let Some(length) = strings.iter().filter(ends).map(String::len).max() {
                    wanted = (text[..end - length].to_owned(), true);
                    break;
                }
            }
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let end = rest.char_indices().nth(cut).map_or(rest.len(), |(at, _)| at);
                let (piece, more) = rest.split_at(end);
                pieces.push(piece);
                rest = more;
            }
            pieces.push(rest);
            prop_assert_eq!(shown(Stops::new(strings), &pieces), wanted);
        }
    }
}
