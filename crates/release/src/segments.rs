//! Cuts long text where the tokenizer cuts it anyway, so that a segment at a time can be encoded.
//!
//! The tokenizers library keeps some 300 bytes for a byte of text while it works, and ids need 4: in segments, a text of
//! any length takes little more room than itself.
//!
//! A cut changes no id if no step of the tokenizer looks across it. Between an ASCII letter or digit and an ASCII
//! character that is neither, between two ASCII digits, and between a line feed and a character that is no blank, the
//! release's split pattern always ends a match and never looks back; NFC composes nothing across, since all but the last
//! of these characters are ASCII; and no added token lies across, since pairs that occur inside of one are left out.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, NormalizerWrapper, Tokenizer};

/// Bytes after which a segment ends at the next place where it may.
const SEGMENT_BYTES: usize = 4 << 10;

/// Bytes after which a segment ends anywhere. Only a run of a million letters, blanks or symbols comes so far; near such a
/// cut its ids are not those of the whole.
const SEGMENT_BYTES_MAX: usize = 1 << 20;

/// The split pattern of the released `tokenizer.json`.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Where a tokenizer's texts may be cut.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    /// For each ASCII character the set of ASCII characters that may stand behind a cut after it, as bits.
    behind: [u128; 128],
}

impl Cuts {
    /// The cuts of a tokenizer; nothing, if it is not of the kind whose cuts are known.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Cuts> {
        let added = tokenizer.get_added_tokens_decoder();
        let known = normalises_as_known(tokenizer.get_normalizer())
            && tokenizer.get_pre_tokenizer().is_some_and(splits_as_known)
            && added.values().all(is_plain);
        known.then(|| Cuts::around(added.values().map(|token| token.content.as_str())))
    }

    fn around<'a>(added: impl Iterator<Item = &'a str>) -> Cuts {
        let mut behind = [0; 128];
        for before in 0..128_u8 {
            for after in (0..128_u8).filter(|&after| splits_between(before, after)) {
                behind[usize::from(before)] |= 1 << after;
            }
        }
        for token in added {
            for pair in token.as_bytes().windows(2) {
                behind[usize::from(pair[0])] &= !(1 << pair[1]);
            }
        }
        Cuts { behind }
    }

    /// The segments of a text, in order.
    pub(crate) fn segments<'a>(&self, text: &'a str) -> Segments<'a, '_> {
        self.segments_of(text, SEGMENT_BYTES, SEGMENT_BYTES_MAX)
    }

    /// A segment cut wherever it may be.
    pub(crate) fn parts<'a>(&self, segment: &'a str) -> Segments<'a, '_> {
        self.segments_of(segment, 1, usize::MAX)
    }

    fn segments_of<'a>(&self, text: &'a str, bytes: usize, bytes_max: usize) -> Segments<'a, '_> {
        Segments {
            cuts: self,
            rest: text,
            bytes,
            bytes_max,
        }
    }

    /// Whether a text may be cut before the byte at `at`.
    fn allow(&self, text: &str, at: usize) -> bool {
        let before = text.as_bytes()[at - 1];
        let after = text.as_bytes()[at];
        if after.is_ascii() {
            return before.is_ascii() && self.behind[usize::from(before)] >> after & 1 == 1;
        }
        // Added tokens are ASCII, so none lies across.
        let character = text.get(at..).and_then(|rest| rest.chars().next());
        before == b'\n' && character.is_some_and(|character| !character.is_whitespace())
    }
}

/// Whether the pattern always splits between two ASCII characters.
fn splits_between(before: u8, after: u8) -> bool {
    let word = before.is_ascii_alphanumeric() && !after.is_ascii_alphanumeric();
    let digits = before.is_ascii_digit() && after.is_ascii_digit();
    // The pattern's blanks are Unicode's: U+000B is one, U+001C to U+001F are not.
    let line = before == b'\n' && !char::from(after).is_whitespace();
    word || digits || line
}

fn normalises_as_known(normalizer: Option<&NormalizerWrapper>) -> bool {
    matches!(normalizer, None | Some(NormalizerWrapper::NFC(_)))
}

/// Whether text is split by the release's pattern alone.
fn splits_as_known(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    let wanted = serde_json::json!({
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ],
    });
    serde_json::to_value(pre_tokenizer).is_ok_and(|found| found == wanted)
}

/// Whether an added token is matched by its text alone.
fn is_plain(token: &AddedToken) -> bool {
    token.content.is_ascii() && !token.single_word && !token.lstrip && !token.rstrip
}

/// An iterator over segments. Joined they are the text.
#[derive(Debug)]
pub(crate) struct Segments<'a, 'c> {
    cuts: &'c Cuts,
    rest: &'a str,
    bytes: usize,
    bytes_max: usize,
}

impl<'a> Iterator for Segments<'a, '_> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (segment, rest) = self.rest.split_at(self.end());
        self.rest = rest;
        Some(segment)
    }
}

impl Segments<'_, '_> {
    /// Where the next segment ends.
    fn end(&self) -> usize {
        let length = self.rest.len();
        let most = self.rest.ceil_char_boundary(self.bytes_max.min(length));
        (self.bytes..most)
            .find(|&at| self.cuts.allow(self.rest, at))
            .unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use descant_testkit::fixtures;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static CLEF: LazyLock<Tokenizer> = LazyLock::new(|| {
        Tokenizer::from_bytes(fixtures::bytes("tokenizer/clef_tokenizer.json.gz")).unwrap()
    });

    fn tiny(name: &str) -> Tokenizer {
        Tokenizer::from_file(fixtures::release(name).join("tokenizer.json")).unwrap()
    }

    fn ids(text: &str) -> Vec<u32> {
        CLEF.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    /// Ids of a text cut wherever it may be.
    fn ids_in_segments(text: &str) -> Vec<u32> {
        let cuts = Cuts::of(&CLEF).unwrap();
        cuts.segments_of(text, 1, usize::MAX)
            .flat_map(ids)
            .collect()
    }

    #[test]
    fn only_a_known_pipeline_is_cut() {
        assert!(Cuts::of(&CLEF).is_some());
        assert!(Cuts::of(&tiny("tiny-b")).is_some());
        assert!(
            Cuts::of(&tiny("tiny-a")).is_none(),
            "its pattern takes line feeds differently"
        );
        let mut strips = CLEF.clone();
        strips
            .add_tokens([AddedToken::from("<strip>", false).rstrip(true)])
            .unwrap();
        assert!(Cuts::of(&strips).is_none());
    }

    #[test]
    fn segments_join_to_the_text_and_keep_their_sizes() {
        let cuts = Cuts::of(&CLEF).unwrap();
        let text = "Größe: 12,5 m² – naïve façade\n漢字かな交じり文。\n<|im_end|> end ".repeat(50);
        for (bytes, bytes_max) in [(1, 3), (1, 1000), (7, 20), (100, 120), (10_000, 20_000)] {
            let segments: Vec<_> = cuts.segments_of(&text, bytes, bytes_max).collect();
            assert_eq!(segments.concat(), text);
            assert!(segments.iter().all(|segment| segment.len() < bytes_max + 4));
            assert!(
                segments
                    .iter()
                    .rev()
                    .skip(1)
                    .all(|segment| segment.len() >= bytes)
            );
        }
        assert_eq!(cuts.segments("").count(), 0);
        assert_eq!(cuts.segments(&text).count(), 1);
    }

    /// The pattern may take a line feed together with blanks after it, of which Unicode has 25.
    #[test]
    fn a_line_feed_stays_with_the_blanks_after_it() {
        let cuts = Cuts::of(&CLEF).unwrap();
        let blanks: Vec<_> = ('\0'..=char::MAX).filter(|c| c.is_whitespace()).collect();
        assert_eq!(blanks.len(), 25);
        assert!(
            blanks
                .iter()
                .all(|blank| !cuts.allow(&format!("\n{blank}"), 1))
        );
        assert!(
            ["\na", "\n7", "\n,", "\né", "\n漢", "\n\u{301}"]
                .iter()
                .all(|text| cuts.allow(text, 1))
        );
    }

    /// Every state and text of the golden records, cut wherever it may be.
    #[test]
    fn no_cut_changes_the_golden_ids() {
        let mut cut = 0;
        for record in fixtures::jsonl("golden/encode/clef.jsonl.gz") {
            let body = record["body"].as_str().unwrap();
            assert_eq!(ids_in_segments(body), ids(body), "{}", record["name"]);
            cut += usize::from(
                Cuts::of(&CLEF)
                    .unwrap()
                    .segments_of(body, 1, usize::MAX)
                    .count()
                    > 10,
            );
        }
        assert!(cut > 200, "only {cut} bodies were cut");
    }

    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-zA-Z]{1,4}",
            "[0-9]{1,4}",
            "[ \\t\\n\\r\u{b}\u{c}\u{1c}\u{85}\u{a0}\u{2028}\u{3000}]{1,3}",
            "[!-/:-@\\[-`{-~]{1,3}",
            "'(s|t|re|ve|m|ll|d|S|LL|\u{17f})",
            "[\u{300}-\u{304}\u{338}\u{9cd}\u{3099}]{1,2}",
            "[漢字かなカ한글ᄀ각é€²½٣]{1,2}",
            prop::sample::select(vec![
                "<|im_end|>",
                "<think>",
                "</tool_call>",
                "<|fim_pad|>",
                "<|im",
                "_end|>"
            ])
            .prop_map(str::to_owned),
            any::<char>().prop_map(String::from),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_cut_changes_an_id(pieces in prop::collection::vec(piece(), 0..24)) {
            let text = pieces.concat();
            prop_assert_eq!(ids_in_segments(&text), ids(&text), "{:?}", text);
        }
    }
}
