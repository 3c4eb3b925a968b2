//! Requests of wanted lengths for a server whose tokenizer is not at hand: how many tokens a word takes is asked first.

use std::path::Path;
use std::sync::atomic::AtomicUsize;

use descant_decision::json::{parse, to_json};

use super::client::{Client, with_raw};
use crate::failure::Failure;
use crate::samples::{Sample, Seeded};
use crate::several::{Item, Items};

/// Makes requests of about so many tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizer {
    /// For states of prose and of data.
    prose: Line,
    data: Line,
}

/// Tokens of a request by the words of its state.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    base: f64,
    per_word: f64,
}

impl Sizer {
    /// Asks the server how long some requests are, none of about more than `longest` tokens.
    ///
    /// # Errors
    /// [`Failure::Http`] if it answers no decisions.
    pub(crate) fn calibrate(client: &Client, seed: u64, longest: usize) -> Result<Sizer, Failure> {
        let probe_words = PROBE_WORDS.min(longest / 4).max(1);
        let line = |data: bool| {
            let sample = (0..)
                .map(|more| Sample::new(seed.wrapping_add(PROBES + more)))
                .find(|sample| sample.is_data() == data)
                .expect("every third sample is data");
            let tokens = |words| {
                let body = to_json(&sample.request(words, 0));
                let answer = client
                    .decided(&body, &AtomicUsize::new(0))
                    .map_err(|fault| client.failure(fault))?;
                match answer.tokens() {
                    0 => Err(client.failure("replies have no usage.input_tokens".to_owned())),
                    tokens => Ok(tokens as f64),
                }
            };
            let (least, more) = (tokens(0)?, tokens(probe_words)?);
            Ok::<Line, Failure>(Line {
                base: least,
                per_word: ((more - least) / probe_words as f64).max(0.5),
            })
        };
        Ok(Sizer {
            prose: line(false)?,
            data: line(true)?,
        })
    }

    /// A request of about so many tokens.
    pub(crate) fn request(&self, seed: u64, tokens: usize) -> String {
        let sample = Sample::new(seed);
        let line = if sample.is_data() {
            self.data
        } else {
            self.prose
        };
        to_json(&with_raw(sample.request(line.words(tokens), 0)))
    }

    /// The fewest tokens that a request has.
    pub(crate) fn least(&self) -> usize {
        self.prose.base.max(self.data.base) as usize
    }
}

impl Line {
    fn words(self, tokens: usize) -> usize {
        ((tokens as f64 - self.base) / self.per_word).max(0.0) as usize
    }
}

/// The lengths of a level's requests: ten short ones, four of the next class and two of the one above, over and over, so
/// that all levels have the same work.
pub(crate) fn mixed_lengths(count: usize, longest: usize) -> Vec<usize> {
    let mut random = Seeded::new(17);
    let mut length = |index: usize| {
        let (least, most) = match index % 16 {
            4 | 12 => (4300, 9500),
            2 | 6 | 10 | 14 => (1100, 3900),
            _ => (100, 1000),
        };
        (least + random.below(most - least)).min(longest)
    };
    (0..count).map(&mut length).collect()
}

/// The requests of a file, with logits asked for.
pub(crate) fn of_file(file: &Path) -> Result<Vec<String>, Failure> {
    let read = |item: Result<Item, Failure>| {
        let Item { line, body } = item?;
        let wrong = |fault: String| Failure::Record {
            file: file.to_owned(),
            line,
            fault,
        };
        let body = body.map_err(|refused| wrong(refused.to_string()))?;
        let value = parse(&body).map_err(|error| wrong(error.to_string()))?;
        Ok::<String, Failure>(to_json(&with_raw(value)))
    };
    let all: Vec<String> = Items::open(file)?.map(read).collect::<Result<_, _>>()?;
    match all.is_empty() {
        false => Ok(all),
        true => Err(Failure::Record {
            file: file.to_owned(),
            line: 0,
            fault: "no records".to_owned(),
        }),
    }
}

/// Seeds of the requests that are only asked how long they are.
const PROBES: u64 = 1 << 40;
/// Words of a probe: enough that one word more or less of a kind does not count.
const PROBE_WORDS: usize = 800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_the_words_for_tokens() {
        let line = Line {
            base: 100.0,
            per_word: 2.0,
        };
        assert_eq!((line.words(300), line.words(99)), (100, 0));
    }

    #[test]
    fn levels_have_the_same_mix_up_to_the_longest() {
        let lengths = mixed_lengths(64, 100_000);
        assert_eq!(lengths, mixed_lengths(64, 100_000));
        let of = |range: std::ops::Range<usize>| {
            lengths
                .iter()
                .filter(|length| range.contains(length))
                .count()
        };
        assert_eq!((of(0..1024), of(1024..4096), of(4096..10_240)), (40, 16, 8));
        assert!(mixed_lengths(64, 500).iter().all(|length| *length <= 500));
    }
}
