//! Encodes ASCII text word by word, and remembers the words' ids.
//!
//! Most of the tokenizers library's time goes into what ids do not need: alignments with the text, a regular expression,
//! a string a token. Here a loop over bytes splits ASCII text as the release's pattern does, and a word met before has
//! its ids from a table.
//!
//! A word alone has the ids that it has in its text. The pipeline that [`Cuts`](crate::segments::Cuts) knows takes added
//! tokens out, normalises, splits, and gives each piece by itself to the model: in ASCII text without an added token the
//! pieces are the pattern's, NFC changes nothing, and a BPE model without dropout is a function of the piece. What is not
//! in the table comes from that model.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{PoisonError, RwLock};

use tokenizers::{Model, ModelWrapper, PostProcessorWrapper};

/// Greatest length of a text that is encoded here; a longer one has no place for a cut in all of it. The library gives a
/// pattern up after a million steps or so, which is not imitated here, and what may come near them is left to it.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What is known of a tokenizer and of the words that it has met.
#[derive(Debug)]
pub(crate) struct Words {
    /// Texts of the added tokens, by the character that they begin with.
    added: BTreeMap<char, Vec<String>>,
    /// Threads hold it for a look-up or for an insertion of a segment's words, never while the model works.
    table: RwLock<Table>,
}

impl Words {
    /// The words of a tokenizer that has cuts; nothing, if its ids are more than those of a text's words.
    pub(crate) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Words> {
        let known = is_function(tokenizer.get_model())
            && tokenizer.get_post_processor().is_none_or(adds_nothing);
        let mut added = BTreeMap::<char, Vec<String>>::new();
        for token in tokenizer.get_added_tokens_decoder().into_values() {
            if let Some(first) = token.content.chars().next() {
                added.entry(first).or_default().push(token.content);
            }
        }
        known.then(|| Words {
            added,
            table: RwLock::new(Table::of_sets(SETS)),
        })
    }

    /// Whether a text can be encoded here.
    pub(crate) fn suit(&self, text: &str) -> bool {
        text.len() <= TEXT_BYTES_MAX && text.is_ascii() && !self.holds_added(text)
    }

    fn holds_added(&self, text: &str) -> bool {
        self.added.iter().any(|(&first, tokens)| {
            text.match_indices(first)
                .any(|(at, _)| tokens.iter().any(|token| text[at..].starts_with(token)))
        })
    }

    /// Appends the ids of a text that [suits](Self::suit).
    pub(crate) fn encode(
        &self,
        model: &ModelWrapper,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let begin = ids.len();
        let missing = self.find(text, ids);
        if missing.is_empty() {
            return Ok(());
        }
        let found = ids.split_off(begin);
        let (mut copied, mut entries) = (0, Vec::new());
        for (at, word) in missing {
            ids.extend_from_slice(&found[copied..at]);
            copied = at;
            let own = ids.len();
            let tokens = model.tokenize(&byte_level(word))?;
            ids.extend(tokens.iter().map(|token| token.id));
            entries.extend(Entry::new(word, &ids[own..]));
        }
        ids.extend_from_slice(&found[copied..]);
        if entries.is_empty() {
            return Ok(());
        }
        // A panic in here leaves no half of an entry that could be found.
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        entries.into_iter().for_each(|entry| table.insert(entry));
        Ok(())
    }

    /// Appends the ids of the words that are in the table. Gives the others, each with the number of ids appended before.
    fn find<'a>(&self, text: &'a str, ids: &mut Vec<u32>) -> Vec<(usize, &'a [u8])> {
        let begin = ids.len();
        let mut missing = Vec::new();
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        for word in pieces(text) {
            match Key::of(word).and_then(|key| table.get(&key)) {
                Some(&[id]) => ids.push(id),
                Some(known) => ids.extend_from_slice(known),
                None => missing.push((ids.len() - begin, word)),
            }
        }
        missing
    }
}

/// Whether the model is a BPE that gives a word the same ids each time and adds nothing of its own to its bytes.
fn is_function(model: &ModelWrapper) -> bool {
    let ModelWrapper::BPE(bpe) = model else {
        return false;
    };
    let nothing = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    bpe.dropout.is_none()
        && bpe.unk_token.is_none()
        && nothing(&bpe.continuing_subword_prefix)
        && nothing(&bpe.end_of_word_suffix)
        && !bpe.fuse_unk
        && !bpe.byte_fallback
}

/// Whether a post-processor moves offsets only.
fn adds_nothing(processor: &PostProcessorWrapper) -> bool {
    matches!(processor, PostProcessorWrapper::ByteLevel(_))
}

/// An ASCII word as the byte-level vocabulary writes it.
fn byte_level(word: &[u8]) -> String {
    let write = |&byte: &u8| match byte {
        0x21..=0x7e => char::from(byte),
        // U+0100 and on, in the order of the bytes that are not printable: 0x7f is the 34th.
        0x7f => '\u{121}',
        _ => char::from_u32(0x100 + u32::from(byte)).expect("far from surrogates"),
    };
    word.iter().map(write).collect()
}

/// The pieces into which the release's pattern splits an ASCII text.
fn pieces(text: &str) -> Pieces<'_> {
    Pieces {
        rest: text.as_bytes(),
    }
}

#[derive(Debug)]
struct Pieces<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let &first = self.rest.first()?;
        let (piece, rest) = self.rest.split_at(piece_end(first, self.rest));
        self.rest = rest;
        Some(piece)
    }
}

/// Where the first match of the pattern ends, in a text that begins with `first`. Alternatives in the pattern's order:
///
/// 1. `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
/// 2. `[^\r\n\p{L}\p{N}]?\p{L}+`
/// 3. `\p{N}`
/// 4. ` ?[^\s\p{L}\p{N}]+[\r\n]*`
/// 5. `\s*[\r\n]+`: `\s*` gives back until a line break follows, so it ends behind the last one of the blanks.
/// 6. `\s+(?!\S)`: gives one blank back to a character that is no blank, if there is another.
/// 7. `\s+`: that one blank.
#[inline]
fn piece_end(first: u8, text: &[u8]) -> usize {
    let second = text.get(1).map(|&byte| kind(byte));
    match (kind(first), second) {
        (Kind::Letter, _) => run(text, 1, Kind::Letter),
        (Kind::Digit, _) => 1,
        (Kind::Other, Some(Kind::Letter)) if first == b'\'' => match contraction(text) {
            Some(end) => end,
            None => run(text, 2, Kind::Letter),
        },
        (Kind::Other, Some(Kind::Letter)) => run(text, 2, Kind::Letter),
        (Kind::Blank, Some(Kind::Letter)) if !is_line_break(first) => run(text, 2, Kind::Letter),
        (Kind::Other, _) => symbols_end(text, 1),
        (Kind::Blank, Some(Kind::Other)) if first == b' ' => symbols_end(text, 2),
        (Kind::Blank, _) => blanks_end(text),
    }
}

/// Where the contraction ends that a text begins with.
fn contraction(text: &[u8]) -> Option<usize> {
    let letter = |at: usize| text.get(at).map(u8::to_ascii_lowercase);
    match (letter(1)?, letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// Where a run of one kind ends whose first bytes, up to `from`, are known.
#[inline]
fn run(text: &[u8], from: usize, of: Kind) -> usize {
    let others = text[from..].iter().position(|&byte| kind(byte) != of);
    others.map_or(text.len(), |at| from + at)
}

/// Where symbols end, up to `from` known, with the line breaks behind them.
fn symbols_end(text: &[u8], from: usize) -> usize {
    let end = run(text, from, Kind::Other);
    let breaks = text[end..].iter().take_while(|&&byte| is_line_break(byte));
    end + breaks.count()
}

/// Where a match ends in the blanks that a text begins with.
fn blanks_end(text: &[u8]) -> usize {
    let end = run(text, 1, Kind::Blank);
    match text[..end].iter().rposition(|&byte| is_line_break(byte)) {
        Some(last) => last + 1,
        None if end == text.len() || end == 1 => end,
        None => end - 1,
    }
}

fn is_line_break(byte: u8) -> bool {
    byte == b'\r' || byte == b'\n'
}

/// What the pattern tells apart among ASCII characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Blank,
    Digit,
    Letter,
    Other,
}

fn kind(byte: u8) -> Kind {
    KINDS[usize::from(byte)]
}

/// The kinds of bytes, in a table because no branch is then taken a byte.
const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Other; 256];
    let mut byte = 0;
    while byte < 128_u8 {
        kinds[byte as usize] = match byte {
            // Unicode's blanks: not U+001C to U+001F, which are some languages' own.
            b'\t'..=b'\r' | b' ' => Kind::Blank,
            b'0'..=b'9' => Kind::Digit,
            b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
            _ => Kind::Other,
        };
        byte += 1;
    }
    kinds
};

/// The words met last, in sets as a processor's cache has them: a word has its place in one set, and takes it from the
/// one that came there first. So the size is fixed, words that never come again push out no more than they must, and words
/// that were chosen to fall together make a set useless but nothing slow.
#[derive(Debug)]
struct Table {
    sets: Vec<[Entry; WAYS]>,
}

/// Two to the power of 13; with four words each, 2 MiB.
const SETS: usize = 1 << 13;
const WAYS: usize = 4;

impl Table {
    /// A table of a number of sets that is a power of two.
    fn of_sets(sets: usize) -> Table {
        Table {
            sets: vec![[Entry::NONE; WAYS]; sets],
        }
    }

    #[inline]
    fn get(&self, key: &Key) -> Option<&[u32]> {
        let set = &self.sets[key.set(self.sets.len())];
        set.iter().find(|entry| entry.key == *key).map(Entry::ids)
    }

    fn insert(&mut self, entry: Entry) {
        let at = entry.key.set(self.sets.len());
        let set = &mut self.sets[at];
        if set.iter().all(|present| present.key != entry.key) {
            set.rotate_right(1);
            set[0] = entry;
        }
    }
}

/// A word and its ids, one line of a processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entry {
    key: Key,
    ids: [u32; ENTRY_IDS_MAX],
    count: u32,
}

/// Most ids of a word in the table.
const ENTRY_IDS_MAX: usize = 7;

impl Entry {
    /// No word's.
    const NONE: Entry = Entry {
        key: Key([0; 4]),
        ids: [0; ENTRY_IDS_MAX],
        count: 0,
    };

    /// Nothing, if the word or its ids are too many for an entry.
    fn new(word: &[u8], ids: &[u32]) -> Option<Entry> {
        let mut entry = Entry {
            key: Key::of(word)?,
            ..Entry::NONE
        };
        entry.ids.get_mut(..ids.len())?.copy_from_slice(ids);
        entry.count = u32::try_from(ids.len()).ok()?;
        Some(entry)
    }

    fn ids(&self) -> &[u32] {
        &self.ids[..self.count as usize]
    }
}

/// A word's bytes, zeros and the word's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key([u64; 4]);

/// Most bytes of a word in the table.
const KEY_BYTES_MAX: usize = 31;

impl Key {
    /// Nothing, if the word is too long.
    #[inline]
    fn of(word: &[u8]) -> Option<Key> {
        let mut bytes = [0; KEY_BYTES_MAX + 1];
        bytes[..KEY_BYTES_MAX]
            .get_mut(..word.len())?
            .copy_from_slice(word);
        bytes[KEY_BYTES_MAX] = u8::try_from(word.len()).ok()?;
        let (parts, _) = bytes.as_chunks::<8>();
        Some(Key([0, 1, 2, 3].map(|at| u64::from_le_bytes(parts[at]))))
    }

    /// The set, of so many, that the word has its place in.
    #[inline]
    fn set(&self, sets: usize) -> usize {
        // Odd numbers without a pattern.
        const FACTORS: [u64; 4] = [
            0x9e37_79b9_7f4a_7c15,
            0xbf58_476d_1ce4_e5b9,
            0x94d0_49bb_1331_11eb,
            0xd6e8_feb8_6659_fd93,
        ];
        let products = self
            .0
            .iter()
            .zip(FACTORS)
            .map(|(part, factor)| part.wrapping_mul(factor));
        let sum = products.fold(0, u64::wrapping_add);
        // A byte moves no bit of a product below its own: the upper half goes through another one.
        let mixed = (sum ^ (sum >> 32)).wrapping_mul(FACTORS[0]);
        (mixed >> 32) as usize & (sets - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use descant_testkit::fixtures;
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use tokenizers::models::bpe::BPE;
    use tokenizers::processors::template::TemplateProcessing;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Library,
    };

    static CLEF: LazyLock<Library> = LazyLock::new(|| {
        Library::from_bytes(fixtures::bytes("tokenizer/clef_tokenizer.json.gz")).unwrap()
    });

    fn tiny(name: &str) -> Library {
        Library::from_file(fixtures::release(name).join("tokenizer.json")).unwrap()
    }

    /// What the library's pre-tokenizer makes of a text: each piece, and its spelling in the vocabulary.
    fn library_pieces(text: &str) -> Vec<(String, String)> {
        let mut splits = PreTokenizedString::from(text);
        let pre_tokenizer = CLEF.get_pre_tokenizer().unwrap();
        pre_tokenizer.pre_tokenize(&mut splits).unwrap();
        let splits = splits.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(spelling, (begin, end), _)| (text[begin..end].to_owned(), spelling.to_owned()))
            .collect()
    }

    fn our_pieces(text: &str) -> Vec<(String, String)> {
        let own = |piece: &[u8]| str::from_utf8(piece).unwrap().to_owned();
        pieces(text)
            .map(|piece| (own(piece), byte_level(piece)))
            .collect()
    }

    fn library_ids(library: &Library, text: &str) -> Vec<u32> {
        library.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    fn our_ids(words: &Words, library: &Library, text: &str) -> Vec<u32> {
        let mut ids = vec![7];
        words.encode(library.get_model(), text, &mut ids).unwrap();
        assert_eq!(ids.remove(0), 7, "what was there stays");
        ids
    }

    #[test]
    fn each_alternative_ends_where_it_should() {
        for (text, wanted) in [
            ("it's", &["it", "'s"][..]),
            ("'LLama 'vet", &["'LL", "ama", " '", "vet"]),
            ("'re've'm'd't'l", &["'re", "'ve", "'m", "'d", "'t", "'l"]),
            (
                "a'Vet'mex'dx'tx",
                &["a", "'Ve", "t", "'m", "ex", "'d", "x", "'t", "x"],
            ),
            ("a b\tc\rd", &["a", " b", "\tc", "\r", "d"]),
            ("(x).y", &["(x", ").", "y"]),
            ("v123", &["v", "1", "2", "3"]),
            (" 12", &[" ", "1", "2"]),
            ("?! --\r\n\n x", &["?!", " --\r\n\n", " x"]),
            ("  \n \r\n  x", &["  \n \r\n", " ", " x"]),
            ("a   b", &["a", "  ", " b"]),
            ("a   ", &["a", "   "]),
            ("\t\t!", &["\t", "\t", "!"]),
            ("\u{b}\u{c}\u{1c}x", &["\u{b}", "\u{c}", "\u{1c}x"]),
            ("", &[]),
        ] {
            let found: Vec<_> = our_pieces(text)
                .into_iter()
                .map(|(piece, _)| piece)
                .collect();
            assert_eq!(found, wanted, "{text:?}");
            let library = library_pieces(text).into_iter().map(|(piece, _)| piece);
            assert_eq!(library.collect::<Vec<_>>(), wanted, "{text:?}");
        }
    }

    /// All texts of up to five characters that stand for all that the pattern tells apart.
    #[test]
    fn every_short_text_is_split_as_the_library_splits_it() {
        const SORTS: &[u8] = b"'sLe7 \n\r\t!\x1f";
        for length in 0..=5 {
            for number in 0..SORTS.len().pow(length) {
                let digit = |place| SORTS[number / SORTS.len().pow(place) % SORTS.len()];
                let text: String = (0..length).map(|place| char::from(digit(place))).collect();
                assert_eq!(our_pieces(&text), library_pieces(&text), "{text:?}");
            }
        }
    }

    /// Each two ASCII characters, whose kinds and spellings are thereby the library's.
    #[test]
    fn every_pair_of_characters_is_split_as_the_library_splits_it() {
        for pair in 0..128 * 128_u16 {
            let [a, b] = [pair / 128, pair % 128].map(|byte| char::from(byte as u8));
            for text in [format!("{a}{b}"), format!(" {a}{b}x"), format!("'{a}{b}")] {
                assert_eq!(our_pieces(&text), library_pieces(&text), "{text:?}");
            }
        }
    }

    fn ascii() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            3 => "[a-zA-Z]{1,9}",
            2 => " {1,4}",
            2 => "[ \\t\\n\\r\u{b}\u{c}]{1,5}",
            2 => "'(s|t|re|ve|m|ll|d|S|T|RE|Ve|vE|M|LL|lL|D|l|r|v|x)",
            1 => "[0-9]{1,3}",
            2 => "[!-/:-@\\[-`{-~]{1,4}[\\r\\n]{0,2}",
            1 => "[\u{0}-\u{1f}\u{7f}]{1,3}",
            1 => "[\u{0}-\u{7f}]{1,4}",
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]
        #[test]
        fn text_is_split_as_the_library_splits_it(text in ascii()) {
            prop_assert_eq!(our_pieces(&text), library_pieces(&text), "{:?}", text);
        }

        /// In a table of 16 words, so that most are pushed out again and again.
        #[test]
        fn words_have_the_ids_of_their_text(texts in prop::collection::vec(ascii(), 1..6)) {
            static WORDS: LazyLock<Words> = LazyLock::new(|| words_in(4));
            for text in texts.iter().filter(|text| WORDS.suit(text)) {
                prop_assert_eq!(our_ids(&WORDS, &CLEF, text), library_ids(&CLEF, text), "{:?}", text);
            }
        }
    }

    fn words_in(sets: usize) -> Words {
        Words {
            table: RwLock::new(Table::of_sets(sets)),
            ..Words::of(&CLEF).unwrap()
        }
    }

    /// Lengths about those of an entry's word, of the library's own limits and of a text that is still encoded here.
    #[test]
    fn long_words_and_the_longest_texts_have_their_ids() {
        let words = Words::of(&CLEF).unwrap();
        let lengths = [1, 7, 8, 30, 31, 32, 33, 255, 256, 257];
        for one in [
            "a", "Z", "7", " ", "\n", "\t", "!", "<", "'", "'s", "ab", " x", "\r\n", "\0",
        ] {
            let longest = TEXT_BYTES_MAX / one.len() - 2;
            for times in lengths.into_iter().chain([longest]) {
                for text in [one.repeat(times), format!("{}x", one.repeat(times))] {
                    assert!(words.suit(&text));
                    assert_eq!(
                        our_ids(&words, &CLEF, &text),
                        library_ids(&CLEF, &text),
                        "{one:?} {times} times"
                    );
                }
            }
        }
    }

    #[test]
    fn what_needs_the_library_does_not_suit() {
        let words = Words::of(&CLEF).unwrap();
        for text in [
            "",
            "plain",
            "<|im_",
            "im_end|>",
            "<think",
            "<|im_end |>",
            "\0\u{7f}",
        ] {
            assert!(words.suit(text), "{text:?}");
        }
        for text in [
            "é",
            "a\u{80}",
            "x<|im_end|>y",
            "<<think>",
            "<|im_start<|im_start|>",
        ] {
            assert!(!words.suit(text), "{text:?}");
        }
        assert!(words.suit(&"a".repeat(TEXT_BYTES_MAX)));
        assert!(!words.suit(&"a".repeat(TEXT_BYTES_MAX + 1)));
        let added = CLEF.get_added_tokens_decoder();
        assert!(added.values().all(|token| !words.suit(&token.content)));
    }

    #[test]
    fn only_a_function_of_the_word_is_remembered() {
        assert!(Words::of(&CLEF).is_some());
        let with_model = |change: fn(&mut BPE)| {
            let mut library = tiny("tiny-b");
            let ModelWrapper::BPE(mut bpe) = library.get_model().clone() else {
                panic!("a BPE model");
            };
            change(&mut bpe);
            library.with_model(bpe);
            Words::of(&library).is_some()
        };
        assert!(with_model(|_| ()));
        assert!(with_model(|bpe| bpe.ignore_merges = true));
        assert!(!with_model(|bpe| bpe.dropout = Some(0.1)));
        assert!(!with_model(|bpe| bpe.unk_token = Some("a".to_owned())));
        assert!(!with_model(
            |bpe| bpe.continuing_subword_prefix = Some("#".to_owned())
        ));
        assert!(!with_model(
            |bpe| bpe.end_of_word_suffix = Some("#".to_owned())
        ));
        assert!(!with_model(|bpe| bpe.fuse_unk = true));
        assert!(!with_model(|bpe| bpe.byte_fallback = true));

        let mut library = tiny("tiny-b");
        library.with_post_processor(None::<PostProcessorWrapper>);
        assert!(Words::of(&library).is_some());
        let template = TemplateProcessing::builder()
            .try_single("$A $A")
            .unwrap()
            .build();
        library.with_post_processor(Some(template.unwrap()));
        assert_ne!(
            library_ids(&library, "a"),
            library_ids(&tiny("tiny-b"), "a")
        );
        assert!(Words::of(&library).is_none());
    }

    /// A token that merges do not make is then a word's only id.
    #[test]
    fn a_model_that_ignores_merges_is_asked_too() {
        let mut library = tiny("tiny-b");
        let ModelWrapper::BPE(bpe) = library.get_model() else {
            panic!("a BPE model");
        };
        let mut vocab = bpe.get_vocab();
        vocab.insert("zqzqzq".to_owned(), 7000);
        let model = |ignore| {
            let vocab: Vec<_> = vocab.clone().into_iter().collect();
            let builder = BPE::builder().vocab_and_merges(
                vocab
                    .into_iter()
                    .collect::<tokenizers::models::bpe::Vocab>(),
                vec![],
            );
            builder.ignore_merges(ignore).build().unwrap()
        };
        for (ignore, wanted) in [(true, 1), (false, 6)] {
            library.with_model(model(ignore));
            let words = Words::of(&library).unwrap();
            for _ in 0..2 {
                let ids = our_ids(&words, &library, "zqzqzq");
                assert_eq!(ids, library_ids(&library, "zqzqzq"));
                assert_eq!(ids.len(), wanted);
            }
        }
    }

    /// Threads push one another's words out of a table of 32, each in another order of texts.
    #[test]
    fn threads_that_share_a_table_give_the_same_ids() {
        let texts: Vec<String> = (0..60)
            .map(|text| {
                (0..40)
                    .map(|word| format!("w{} x{word}'s, ", text * word % 97))
                    .collect()
            })
            .collect();
        let wanted: Vec<_> = texts.iter().map(|text| library_ids(&CLEF, text)).collect();
        let words = words_in(8);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (texts, wanted, words) = (&texts, &wanted, &words);
                scope.spawn(move || {
                    for round in 0..texts.len() * 3 {
                        let at = (round * 7 + thread * 11) % texts.len();
                        assert_eq!(our_ids(words, &CLEF, &texts[at]), wanted[at]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_table_keeps_its_size_and_the_words_met_last() {
        assert_eq!(size_of::<Entry>(), 64);
        assert_eq!(SETS * WAYS * size_of::<Entry>(), 2 << 20);
        let mut table = Table::of_sets(SETS);
        let word = |number: u32| format!("word{number}").into_bytes();
        for number in 0..200_000_u32 {
            table.insert(Entry::new(&word(number), &[number, 1]).unwrap());
            let key = Key::of(&word(number)).unwrap();
            assert_eq!(table.get(&key), Some(&[number, 1][..]));
        }
        assert_eq!(table.sets.capacity(), SETS);
        let kept = (0..200_000).filter(|&number| {
            let ids = table.get(&Key::of(&word(number)).unwrap());
            ids.inspect(|ids| assert_eq!(*ids, [number, 1])).is_some()
        });
        assert_eq!(kept.count(), SETS * WAYS, "every place has a word");
    }

    #[test]
    fn a_word_is_entered_once_and_only_if_it_fits() {
        let mut table = Table::of_sets(1);
        for word in [&b"a"[..], b"b", b"a", b"a", b"c", b"d"] {
            table.insert(Entry::new(word, &[1]).unwrap());
        }
        for word in [&b"a"[..], b"b", b"c", b"d"] {
            assert!(table.get(&Key::of(word).unwrap()).is_some());
        }
        table.insert(Entry::new(b"e", &[1]).unwrap());
        assert!(
            table.get(&Key::of(b"a").unwrap()).is_none(),
            "the first to come"
        );
        // Zeros are bytes as others are.
        assert_ne!(Key::of(b"a"), Key::of(b"a\0"));
        assert!(table.get(&Key::of(b"a\0").unwrap()).is_none());
        assert!(Entry::new(&[b'a'; 31], &[1; 7]).is_some());
        assert!(Entry::new(&[b'a'; 32], &[1]).is_none());
        assert!(Entry::new(b"a", &[1; 8]).is_none());
    }
}
