//! Requests made up from a seed, for commands that need many of any length: prose or data as state, one to four
//! questions of all kinds. The same seed gives the same requests on every machine.

use descant_decision::Value;
use descant_decision::json::Object;

/// A generator of numbers, SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Seeded {
        Seeded(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// Puts a list into another order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            list.swap(end, self.below(end + 1));
        }
    }
}

/// A request that grows with the words of its state; its questions stay.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    random: Seeded,
    questions: Object,
    /// Whether the state is an object with a list of events rather than prose.
    data: bool,
    /// What the state begins with, so that two samples share no prefix.
    title: String,
}

impl Sample {
    /// A sample of its own for every seed.
    pub(crate) fn new(seed: u64) -> Sample {
        let mut random = Seeded::new(seed);
        let title = format!("Case {:06}", random.below(1_000_000));
        let data = random.below(3) == 0;
        let questions = questions(&mut random);
        Sample {
            random,
            questions,
            data,
            title,
        }
    }

    /// Whether its state is an object rather than prose.
    pub(crate) fn is_data(&self) -> bool {
        self.data
    }

    /// The request whose state has so many words, and `padding` letters, each a word of its own, behind them.
    pub(crate) fn request(&self, words: usize, padding: usize) -> Value {
        let mut random = self.random.clone();
        let state = match self.data {
            true => events(&mut random, &self.title, words),
            false => prose(&mut random, &self.title, words).into(),
        };
        let tail = " a".repeat(padding);
        let state = match (state, padding) {
            (state, 0) => state,
            (Value::Object(object), _) => Value::Object(object.with("tail", tail)),
            (state, _) => format!("{}{tail}", state.as_str().unwrap_or_default()).into(),
        };
        Object::new()
            .with("state", state)
            .with("questions", self.questions.clone())
            .into()
    }

    /// The request with the most words that `rows` allows, `rows` being what `count` makes of it: exactly so many where
    /// a letter is a token, otherwise a few fewer.
    ///
    /// # Errors
    /// What `count` says.
    pub(crate) fn of_rows<E>(
        &self,
        rows: usize,
        mut count: impl FnMut(&Value) -> Result<usize, E>,
    ) -> Result<Value, E> {
        let (mut fits, mut too_many) = (0, rows + 1);
        while too_many - fits > 1 {
            let words = fits.midpoint(too_many);
            match count(&self.request(words, 0))? <= rows {
                true => fits = words,
                false => too_many = words,
            }
        }
        let plain = self.request(fits, 0);
        for padding in (1..=rows.saturating_sub(count(&plain)?)).rev() {
            let padded = self.request(fits, padding);
            if count(&padded)? == rows {
                return Ok(padded);
            }
        }
        Ok(plain)
    }
}

/// The same state with other questions.
pub(crate) fn asked_otherwise(request: &Value, seed: u64) -> Value {
    let state = request.get("state").cloned();
    Object::new()
        .with("state", state)
        .with("questions", questions(&mut Seeded::new(seed)))
        .into()
}

fn prose(random: &mut Seeded, title: &str, words: usize) -> String {
    let mut text = title.to_owned();
    for index in 0..words {
        text.push_str(match index % 17 {
            0 => ". ",
            9 if random.below(3) == 0 => ", ",
            _ => " ",
        });
        text.push_str(word(random));
    }
    text
}

fn word(random: &mut Seeded) -> &'static str {
    random.pick::<&'static str>(&WORDS)
}

fn events(random: &mut Seeded, title: &str, words: usize) -> Value {
    let mut object = Object::new()
        .with("title", title)
        .with("load", Value::float(random.below(1000) as f64 / 8.0));
    let mut list = Vec::new();
    let mut left = words;
    while left > 0 {
        let length = left.min(3 + random.below(12));
        left -= length;
        let message: Vec<&str> = (0..length).map(|_| word(random)).collect();
        list.push(Value::from(
            Object::new()
                .with("at", random.below(86_400))
                .with("message", message.join(" ")),
        ));
    }
    object.insert("events", list);
    object.into()
}

fn questions(random: &mut Seeded) -> Object {
    let count = 1 + random.below(4);
    let mut all = Object::new();
    for index in 0..count {
        let words = 3 + random.below(6);
        let ask: Vec<&str> = (0..words).map(|_| word(random)).collect();
        let ask = format!("Is it about {}?", ask.join(" "));
        let question = match random.below(3) {
            0 => Object::new().with("type", "noul").with("instructions", ask),
            1 => Object::new()
                .with("type", "choice")
                .with("instructions", ask)
                .with("criteria", options(random)),
            _ => Object::new()
                .with("type", "score")
                .with("instructions", ask)
                .with("criteria", levels(random)),
        };
        all.insert(format!("q{index}"), question);
    }
    all
}

fn options(random: &mut Seeded) -> Object {
    let count = 2 + random.below(5);
    let mut all = Object::new();
    for index in 0..count {
        let text = match random.below(4) {
            0 => Value::Null,
            _ => format!("{} {}", word(random), word(random)).into(),
        };
        all.insert(format!("{}_{index}", random.pick(&NAMES)), text);
    }
    all
}

fn levels(random: &mut Seeded) -> Value {
    let count = 2 + random.below(4);
    (0..count)
        .map(|level| format!("{level} {}", word(random)))
        .collect()
}

/// Names of options.
const NAMES: [&str; 8] = [
    "billing", "Platform", "success", "safety", "alpha", "Mid", "beta", "misc",
];

/// Words of states and questions; a few are not ASCII, since a token is seldom a letter there.
const WORDS: [&str; 64] = [
    "invoice",
    "server",
    "refund",
    "the",
    "and",
    "error",
    "deploy",
    "finished",
    "payment",
    "customer",
    "export",
    "button",
    "does",
    "nothing",
    "since",
    "monday",
    "please",
    "urgent",
    "disk",
    "used",
    "timeout",
    "retry",
    "with",
    "status",
    "5xx",
    "from",
    "checkout",
    "region",
    "eu-2",
    "window",
    "account",
    "password",
    "reset",
    "mail",
    "twice",
    "charged",
    "café",
    "naïve",
    "東京",
    "हिन्दी",
    "Straße",
    "año",
    "is",
    "not",
    "of",
    "a",
    "to",
    "in",
    "late",
    "again",
    "49.00",
    "2026-10-01",
    "order",
    "column",
    "missing",
    "team",
    "level",
    "high",
    "low",
    "thanks",
    "answer",
    "quickly",
    "memory",
    "queue",
];

#[cfg(test)]
mod tests {
    use descant_decision::json::to_json;

    use super::*;

    /// Words as tokens.
    fn count(request: &Value) -> Result<usize, ()> {
        Ok(to_json(request).split(' ').count())
    }

    #[test]
    fn a_seed_gives_one_request() {
        let request = |seed| Sample::new(seed).request(40, 0);
        assert_eq!(request(1), request(1));
        assert_ne!(request(1), request(2));
        let other = asked_otherwise(&request(1), 9);
        assert_eq!(request(1).get("state"), other.get("state"));
        assert_ne!(request(1).get("questions"), other.get("questions"));
    }

    #[test]
    fn requests_are_as_long_as_asked_for() {
        for seed in 0..8 {
            for rows in [60, 128, 1000] {
                let request = Sample::new(seed).of_rows(rows, count).unwrap();
                assert_eq!(count(&request), Ok(rows), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_shuffled_list_keeps_its_elements() {
        let mut list: Vec<usize> = (0..20).collect();
        Seeded::new(4).shuffle(&mut list);
        assert_ne!(list, (0..20).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..20).collect::<Vec<_>>());
    }
}
