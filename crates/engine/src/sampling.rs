//! Logits into tokens: a pure function of the logits, the parameters, the tokens so far, the seed and the position.
//!
//! The steps, in order: bias and penalties on the logits, the constraint's mask, `top_k`, temperature, `top_p`, `min_p`,
//! one draw. Tokens are ranked by logit, equal ones by id. The draw inverts the cumulative sum of the kept tokens'
//! weights `exp((logit - greatest) / temperature)`, summed in f64 in the order of their ids; its random number is a
//! function of the seed and the token's position. At temperature 0 the first-ranked token is taken.
//!
//! Log-probabilities that are reported are those of the model: of the logits before bias, penalties and temperature.

mod philox;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use crate::EngineError;

/// How a stream's tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most probable token. Default 1.
    pub temperature: f32,
    /// Keeps the most probable tokens whose probabilities together reach it. Default 1: all.
    pub top_p: f32,
    /// Keeps so many of the most probable tokens; 0 keeps all. Default 0.
    pub top_k: usize,
    /// Keeps the tokens that are at least so probable as this share of the most probable one. Default 0: all.
    pub min_p: f32,
    /// Taken from the logit of each token that the stream gave already. Default 0.
    pub presence_penalty: f32,
    /// Taken from a token's logit once for each time that the stream gave it. Default 0.
    pub frequency_penalty: f32,
    /// Added to the logits of some tokens. Default none.
    pub bias: Vec<(u32, f32)>,
    /// Key of the random numbers. Default 0.
    pub seed: u64,
    /// How many of the most probable tokens are reported with each token, with their log-probabilities; `None` reports
    /// none, and no log-probability of the token itself. Default `None`.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// Which tokens may come next, as a grammar sees it.
pub trait Constraint: Send {
    /// Sets the logits of the tokens that may not come next to negative infinity. At least one token stays possible.
    fn mask(&mut self, logits: &mut [f32]);

    /// Takes the token that was chosen.
    fn accept(&mut self, id: u32);
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability, natural, if the stream asked for log-probabilities.
    pub logprob: Option<f32>,
    /// The most probable tokens at its place and their log-probabilities, most probable first.
    pub top: Vec<(u32, f32)>,
}

/// The choice of one stream's tokens.
pub(crate) struct Sampler {
    sampling: Sampling,
    constraint: Option<Box<dyn Constraint>>,
    /// How often the stream gave each token.
    given: BTreeMap<u32, u32>,
    /// Tokens that the stream gave.
    count: u64,
}

/// A token with its logit or its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ranked<T> {
    id: u32,
    value: T,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("sampling", &self.sampling)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Sampling {
    /// # Errors
    /// [`EngineError::Sampling`] naming the first parameter outside its range.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let Sampling {
            temperature,
            top_p,
            min_p,
            ..
        } = self;
        let penalties = (self.presence_penalty, self.frequency_penalty);
        let checks = [
            (
                "temperature",
                "a number from 0",
                temperature.is_finite() && *temperature >= 0.0,
            ),
            (
                "top_p",
                "above 0 and at most 1",
                *top_p > 0.0 && *top_p <= 1.0,
            ),
            ("min_p", "from 0 to 1", (0.0..=1.0).contains(min_p)),
            (
                "presence_penalty",
                "a finite number",
                penalties.0.is_finite(),
            ),
            (
                "frequency_penalty",
                "a finite number",
                penalties.1.is_finite(),
            ),
            (
                "bias",
                "finite numbers",
                self.bias.iter().all(|(_, bias)| bias.is_finite()),
            ),
        ];
        match checks.into_iter().find(|(_, _, holds)| !holds) {
            Some((name, wanted, _)) => Err(EngineError::Sampling { name, wanted }),
            None => Ok(()),
        }
    }
}

impl Sampler {
    /// A sampler at the start of a stream.
    pub(crate) fn new(sampling: Sampling, constraint: Option<Box<dyn Constraint>>) -> Sampler {
        Sampler {
            sampling,
            constraint,
            given: BTreeMap::new(),
            count: 0,
        }
    }

    /// Chooses the stream's next token. `logits` `[vocab]`; they are changed.
    ///
    /// Gives `None` if a logit is NaN or positive infinity, or none is finite: the weights are damaged or overflow.
    pub(crate) fn next(&mut self, logits: &mut [f32]) -> Option<Token> {
        if logits
            .iter()
            .any(|logit| logit.is_nan() || *logit == f32::INFINITY)
        {
            return None;
        }
        let report = self.sampling.logprobs.map(|count| report(logits, count));
        let plain = report.as_ref().map(|_| logits.to_vec());
        self.adjust(logits);
        let id = self.choose(logits)?;
        self.take(id);
        let (log_sum, top) = report.unwrap_or_default();
        Some(Token {
            id,
            logprob: plain.map(|plain| logprob(plain[id as usize], log_sum)),
            top,
        })
    }

    /// Applies bias, penalties and the constraint.
    fn adjust(&mut self, logits: &mut [f32]) {
        for (id, bias) in &self.sampling.bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        let Sampling {
            presence_penalty,
            frequency_penalty,
            ..
        } = self.sampling;
        for (id, count) in &self.given {
            logits[*id as usize] -= presence_penalty + frequency_penalty * *count as f32;
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits);
        }
    }

    /// Notes that a token was chosen.
    fn take(&mut self, id: u32) {
        *self.given.entry(id).or_default() += 1;
        self.count += 1;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id);
        }
    }

    /// The id of the next token, for logits that bias and penalties were applied to.
    fn choose(&self, logits: &[f32]) -> Option<u32> {
        let Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            ..
        } = self.sampling;
        let best = *top(logits, 1).first()?;
        if temperature == 0.0 || top_k == 1 {
            return Some(best.id);
        }
        let ranked = if top_k == 0 {
            all(logits)
        } else {
            top(logits, top_k)
        };
        let weight = |logit: f32| (f64::from(logit - best.value) / f64::from(temperature)).exp();
        let mut kept: Vec<Ranked<f64>> = ranked
            .into_iter()
            .map(|Ranked { id, value }| Ranked {
                id,
                value: weight(value),
            })
            .collect();
        cut_top_p(&mut kept, f64::from(top_p));
        // The greatest weight is 1.
        kept.retain(|token| token.value >= f64::from(min_p));
        kept.sort_unstable_by_key(|token| token.id);
        Some(draw(&kept, philox::uniform(seed, self.count)))
    }
}

/// The tokens that are possible at all, in the order of their ids.
fn all(logits: &[f32]) -> Vec<Ranked<f32>> {
    let possible = |(id, value): (usize, &f32)| {
        (*value > f32::NEG_INFINITY).then_some(Ranked {
            id: id as u32,
            value: *value,
        })
    };
    logits.iter().enumerate().filter_map(possible).collect()
}

/// The `count` first-ranked tokens that are possible at all, first-ranked first.
fn top(logits: &[f32], count: usize) -> Vec<Ranked<f32>> {
    let count = count.min(logits.len());
    if count == 0 {
        return Vec::new();
    }
    let mut best: Vec<Ranked<f32>> = Vec::with_capacity(2 * count);
    // No token from here on that is not above the bar can be among the best: an equal one has a greater id.
    let mut bar = f32::NEG_INFINITY;
    for (id, value) in logits.iter().copied().enumerate() {
        if value > bar {
            best.push(Ranked {
                id: id as u32,
                value,
            });
            if best.len() == 2 * count {
                best.select_nth_unstable_by(count - 1, rank);
                best.truncate(count);
                bar = best[count - 1].value;
            }
        }
    }
    best.sort_unstable_by(rank);
    best.truncate(count);
    best
}

/// Greater values first, equal ones in the order of their ids.
fn rank<T: PartialOrd>(a: &Ranked<T>, b: &Ranked<T>) -> Ordering {
    let by_value = b
        .value
        .partial_cmp(&a.value)
        .expect("values were checked for NaN");
    by_value.then(a.id.cmp(&b.id))
}

/// Keeps the first-ranked tokens whose weights reach the share `top_p` of the sum. `kept` comes in the order of ids or
/// of rank and leaves in the order of rank if it was cut.
fn cut_top_p(kept: &mut Vec<Ranked<f64>>, top_p: f64) {
    if top_p >= 1.0 {
        return;
    }
    let goal = top_p * kept.iter().map(|token| token.value).sum::<f64>();
    let mut mass = 0.0;
    let mut ranked = 0;
    // Few tokens hold most of the mass, so the list is sorted from its front only as far as needed.
    while ranked < kept.len() {
        let block = (4 * ranked).max(256).min(kept.len() - ranked);
        let rest = &mut kept[ranked..];
        if block < rest.len() {
            rest.select_nth_unstable_by(block - 1, rank);
        }
        rest[..block].sort_unstable_by(rank);
        for index in ranked..ranked + block {
            mass += kept[index].value;
            if mass >= goal {
                kept.truncate(index + 1);
                return;
            }
        }
        ranked += block;
    }
}

/// The token at the share `number` of the cumulative sum. `kept` is not empty; `number` lies in `[0, 1)`.
fn draw(kept: &[Ranked<f64>], number: f64) -> u32 {
    let goal = number * kept.iter().map(|token| token.value).sum::<f64>();
    let mut mass = 0.0;
    for token in kept {
        mass += token.value;
        if mass > goal {
            return token.id;
        }
    }
    // Not reached: the last mass is the sum itself, and the goal is below it.
    kept[kept.len() - 1].id
}

/// The logarithm of the sum of all exponentials, and the `count` most probable tokens with their log-probabilities.
fn report(logits: &[f32], count: usize) -> (f64, Vec<(u32, f32)>) {
    let Some(best) = top(logits, 1).first().copied() else {
        return (f64::NEG_INFINITY, Vec::new());
    };
    let greatest = f64::from(best.value);
    let sum: f64 = logits
        .iter()
        .map(|logit| (f64::from(*logit) - greatest).exp())
        .sum();
    let log_sum = greatest + sum.ln();
    let tokens = top(logits, count);
    let reported = tokens
        .iter()
        .map(|token| (token.id, logprob(token.value, log_sum)));
    (log_sum, reported.collect())
}

fn logprob(logit: f32, log_sum: f64) -> f32 {
    (f64::from(logit) - log_sum) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(change: impl FnOnce(&mut Sampling)) -> Sampler {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        sampling.check().unwrap();
        Sampler::new(sampling, None)
    }

    /// The share of each token among many draws, each with its own seed.
    fn shares(logits: &[f32], change: impl Fn(&mut Sampling)) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for seed in 0..DRAWS {
            let mut sampler = sampler(&change);
            sampler.sampling.seed = seed;
            let token = sampler.next(&mut logits.to_vec()).unwrap();
            counts[token.id as usize] += 1.0 / DRAWS as f64;
        }
        counts
    }

    const DRAWS: u64 = 10_000;
    /// Five standard deviations of the share of 10,000 draws, at most 0.005 each.
    const SHARE_BAND: f64 = 0.025;

    fn assert_shares(found: &[f64], wanted: &[f64]) {
        for (id, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let near = (found - wanted).abs() <= SHARE_BAND;
            assert!(
                near && (*wanted > 0.0 || *found == 0.0),
                "{id}: {found}, not {wanted}"
            );
        }
    }

    /// Logits of the probabilities 0.1, 0.4, 0.2, 0.3.
    fn four() -> Vec<f32> {
        [0.1f32, 0.4, 0.2, 0.3]
            .iter()
            .map(|p| p.ln() + 3.0)
            .collect()
    }

    #[test]
    fn draws_follow_the_probabilities() {
        assert_shares(&shares(&four(), |_| ()), &[0.1, 0.4, 0.2, 0.3]);
    }

    #[test]
    fn temperature_raises_probabilities_to_its_inverse() {
        // Squares 0.01, 0.16, 0.04, 0.09 over their sum 0.3.
        let wanted = [0.0333, 0.5333, 0.1333, 0.3];
        assert_shares(&shares(&four(), |s| s.temperature = 0.5), &wanted);
    }

    #[test]
    fn top_k_keeps_so_many() {
        let wanted = [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0];
        assert_shares(&shares(&four(), |s| s.top_k = 2), &wanted);
    }

    #[test]
    fn top_p_keeps_the_token_that_reaches_it() {
        let wanted = [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0];
        assert_shares(&shares(&four(), |s| s.top_p = 0.71), &wanted);
        let wanted = [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0];
        assert_shares(&shares(&four(), |s| s.top_p = 0.69), &wanted);
    }

    #[test]
    fn top_p_counts_what_top_k_left() {
        // Of 0.4 and 0.3 the first alone is a share of 0.571.
        let only_first = |s: &mut Sampling| (s.top_k, s.top_p) = (2, 0.57);
        assert_shares(&shares(&four(), only_first), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn min_p_counts_from_the_most_probable() {
        let wanted = [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0];
        assert_shares(&shares(&four(), |s| s.min_p = 0.49), &wanted);
    }

    #[test]
    fn top_p_over_a_long_list_equals_a_full_sort() {
        // 2000 tokens, logits spread by a multiplicative hash, so that several blocks are sorted.
        let hash = |id: u32| id.wrapping_mul(2_654_435_761) >> 8;
        let logits: Vec<f32> = (0..2000).map(|id| hash(id) as f32 / 1e7).collect();
        let mut kept: Vec<_> = all(&logits)
            .into_iter()
            .map(|token| Ranked {
                id: token.id,
                value: f64::from(token.value).exp(),
            })
            .collect();
        let mut sorted = kept.clone();
        sorted.sort_by(rank);
        let goal = 0.9 * kept.iter().map(|token| token.value).sum::<f64>();
        let mut mass = 0.0;
        let below = sorted.iter().take_while(|token| {
            mass += token.value;
            mass < goal
        });
        let count = below.count() + 1;
        cut_top_p(&mut kept, 0.9);
        assert!(count > 1280, "{count} tokens do not need a third block");
        assert_eq!(kept, sorted[..count]);
    }

    #[test]
    fn greedy_takes_the_greatest_and_of_equals_the_first() {
        let mut greedy = sampler(|s| s.temperature = 0.0);
        assert_eq!(greedy.next(&mut [1.0, 3.0, 3.0, 2.0]).unwrap().id, 1);
    }

    #[test]
    fn penalties_count_the_tokens_given() {
        let logits = [2.0, 1.0, 0.0];
        let ids = |change: fn(&mut Sampling)| {
            let mut greedy = sampler(|s| {
                s.temperature = 0.0;
                change(s);
            });
            let mut next = || greedy.next(&mut logits.to_vec()).unwrap().id;
            [next(), next(), next(), next(), next()]
        };
        // Presence takes 1.5 once: 0.5, -0.5 and -1.5 are the logits once each token was given.
        assert_eq!(ids(|s| s.presence_penalty = 1.5), [0, 1, 0, 0, 0]);
        // Frequency takes 0.75 each time: 2, 1.25, (1), .5 against 1, 0.25.
        assert_eq!(ids(|s| s.frequency_penalty = 0.75), [0, 0, 1, 0, 1]);
        assert_eq!(ids(|s| s.bias = vec![(2, 2.5)]), [2, 2, 2, 2, 2]);
    }

    #[test]
    fn logprobs_are_the_models_own() {
        let mut greedy = sampler(|s| {
            s.temperature = 0.0;
            s.bias = vec![(0, 100.0)];
            s.logprobs = Some(2);
        });
        let token = greedy.next(&mut four()).unwrap();
        assert_eq!(token.id, 0);
        // f32 logits near 3 carry an error of 1.2e-7, and ln and exp in f64 next to nothing.
        let near = |found: f32, p: f32| (found - p.ln()).abs() < 1e-6;
        assert!(near(token.logprob.unwrap(), 0.1));
        assert_eq!((token.top[0].0, token.top[1].0), (1, 3));
        assert!(near(token.top[0].1, 0.4) && near(token.top[1].1, 0.3));
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let run = |seed| {
            let mut sampler = sampler(|s| s.seed = seed);
            let mut next = || sampler.next(&mut four()).unwrap().id;
            (0..50).map(|_| next()).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn a_constraint_masks_and_hears_what_was_chosen() {
        struct Next(u32);
        impl Constraint for Next {
            fn mask(&mut self, logits: &mut [f32]) {
                for (id, logit) in logits.iter_mut().enumerate() {
                    if id as u32 != self.0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            fn accept(&mut self, id: u32) {
                self.0 = (id + 1) % 4;
            }
        }
        let mut sampler = Sampler::new(Sampling::default(), Some(Box::new(Next(2))));
        let mut next = || sampler.next(&mut four()).unwrap().id;
        assert_eq!([next(), next(), next()], [2, 3, 0]);
    }

    #[test]
    fn logits_that_are_no_numbers_give_no_token() {
        let mut sampler = sampler(|_| ());
        assert_eq!(sampler.next(&mut [0.0, f32::NAN]), None);
        assert_eq!(sampler.next(&mut [0.0, f32::INFINITY]), None);
        assert_eq!(sampler.next(&mut [f32::NEG_INFINITY; 3]), None);
        assert_eq!(sampler.next(&mut [f32::NEG_INFINITY, 0.0]).unwrap().id, 1);
    }

    #[test]
    fn parameters_outside_their_range_are_named() {
        let name = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            match sampling.check() {
                Err(EngineError::Sampling { name, .. }) => name,
                _ => "",
            }
        };
        assert_eq!(name(|s| s.temperature = -0.1), "temperature");
        assert_eq!(name(|s| s.temperature = f32::NAN), "temperature");
        assert_eq!(name(|s| s.top_p = 0.0), "top_p");
        assert_eq!(name(|s| s.top_p = f32::NAN), "top_p");
        assert_eq!(name(|s| s.min_p = 1.5), "min_p");
        assert_eq!(
            name(|s| s.presence_penalty = f32::INFINITY),
            "presence_penalty"
        );
        assert_eq!(
            name(|s| s.frequency_penalty = f32::NAN),
            "frequency_penalty"
        );
        assert_eq!(name(|s| s.bias = vec![(0, f32::NAN)]), "bias");
        assert_eq!(name(|_| ()), "");
    }
}
