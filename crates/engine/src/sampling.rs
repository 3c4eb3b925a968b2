//! Logits into tokens: a pure function of the logits, the parameters, the tokens so far, the seed and the position.
//!
//! The steps, in order: bias and penalties on the logits, the constraint's mask, then `top_k`, temperature, `top_p`,
//! `min_p` and one draw, which [`mod@descant_model::choice`] defines. The draw's random number is a function of the seed and the
//! token's position. A backend that can draws where the logits are; a stream that needs them itself, for log-probabilities or
//! a constraint, draws here.
//!
//! Log-probabilities that are reported are those of the model: of the logits before bias, penalties and temperature.

mod philox;

use std::fmt;

use descant_model::choice::{self, ranked};
use descant_model::{ADJUSTMENTS_MAX, Adjustment, Choice};

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
    adjusted: Adjusted,
    /// Tokens that the stream gave.
    count: u64,
}

/// What bias and penalties do to logits.
#[derive(Default)]
struct Adjusted {
    /// Ids ascending.
    list: Vec<Adjustment>,
    /// Of each, how often the stream gave it, if that matters.
    given: Vec<u32>,
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
        let mut sampler = Sampler {
            adjusted: Adjusted::default(),
            sampling,
            constraint,
            count: 0,
        };
        for (id, bias) in &sampler.sampling.bias {
            sampler.adjusted.of(*id).0.add += bias;
        }
        sampler
    }

    /// The choice of the next token, if it needs the logits alone and may be the device's: a stream that reports
    /// log-probabilities or is bound to a grammar needs more, and so does one that changed very many logits.
    ///
    /// It depends on the stream's parameters and its own tokens, never on company, so a request goes one way always.
    pub(crate) fn device_choice(&self) -> Option<Choice<'_>> {
        let needs_logits = self.sampling.logprobs.is_some()
            || self.constraint.is_some()
            || self.adjusted.list.len() > ADJUSTMENTS_MAX;
        (!needs_logits).then(|| self.choice())
    }

    /// Takes the token that the device chose.
    pub(crate) fn next_chosen(&mut self, id: u32) -> Token {
        self.take(id);
        Token {
            id,
            logprob: None,
            top: Vec::new(),
        }
    }

    /// Chooses the stream's next token. `logits` `[vocab]`; they are changed.
    ///
    /// Gives `None` if a logit is NaN or positive infinity, or none is finite: the weights are damaged or overflow.
    pub(crate) fn next(&mut self, logits: &mut [f32]) -> Option<Token> {
        if !choice::are_sound(logits) {
            return None;
        }
        let report = self.sampling.logprobs.map(|count| report(logits, count));
        let plain = report.as_ref().map(|_| logits.to_vec());
        self.choice().adjust(logits);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits);
        }
        let id = self.choice().choose(logits)?;
        self.take(id);
        let (log_sum, top) = report.unwrap_or_default();
        Some(Token {
            id,
            logprob: plain.map(|plain| logprob(plain[id as usize], log_sum)),
            top,
        })
    }

    /// How the next token is chosen.
    fn choice(&self) -> Choice<'_> {
        let Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            ..
        } = self.sampling;
        Choice {
            temperature,
            top_k,
            top_p,
            min_p,
            number: philox::uniform(seed, self.count),
            adjustments: &self.adjusted.list,
        }
    }

    /// Notes that a token was chosen.
    fn take(&mut self, id: u32) {
        let Sampling {
            presence_penalty,
            frequency_penalty,
            ..
        } = self.sampling;
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            let (adjustment, given) = self.adjusted.of(id);
            *given += 1;
            adjustment.subtract = presence_penalty + frequency_penalty * *given as f32;
        }
        self.count += 1;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id);
        }
    }
}

impl Adjusted {
    /// A token's adjustment and how often the stream gave it; the first time one that changes nothing.
    fn of(&mut self, id: u32) -> (&mut Adjustment, &mut u32) {
        let at = match self.list.binary_search_by_key(&id, |other| other.id) {
            Ok(at) => at,
            Err(at) => {
                let nothing = Adjustment {
                    id,
                    add: 0.0,
                    subtract: 0.0,
                };
                self.list.insert(at, nothing);
                self.given.insert(at, 0);
                at
            }
        };
        (&mut self.list[at], &mut self.given[at])
    }
}

/// The logarithm of the sum of all exponentials, and the `count` most probable tokens with their log-probabilities.
fn report(logits: &[f32], count: usize) -> (f64, Vec<(u32, f32)>) {
    let Some(best) = ranked(logits, 1).first().copied() else {
        return (f64::NEG_INFINITY, Vec::new());
    };
    let greatest = f64::from(best.logit);
    let sum: f64 = logits
        .iter()
        .map(|logit| (f64::from(*logit) - greatest).exp())
        .sum();
    let log_sum = greatest + sum.ln();
    let tokens = ranked(logits, count);
    let reported = tokens
        .iter()
        .map(|token| (token.id, logprob(token.logit, log_sum)));
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
