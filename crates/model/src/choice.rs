//! One next token from its logits: a pure function of the logits, the parameters and one random number.
//!
//! The steps, in order: what is added to and taken from some logits, `top_k`, temperature, `top_p`, `min_p`, one draw.
//! Tokens are ranked by logit, equal ones by id; a token whose logit is negative infinity is none. The draw inverts the
//! cumulative sum of the kept tokens' weights `exp((logit - greatest) / temperature)`, summed in f64 in the order of their
//! ids. At temperature 0 the first-ranked token is taken.
//!
//! This is what [`Backend::sample`](crate::Backend::sample) means; a device that chooses on its own is compared with it.

use std::cmp::Ordering;

/// Most [adjustments](Choice::adjustments) of a choice that a backend is asked to make. What has more is chosen from the
/// logits themselves.
pub const ADJUSTMENTS_MAX: usize = 4096;

/// What is done to the logit of a token: `(logit + add) - subtract`, in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The token. One that the vocabulary has not is passed over.
    pub id: u32,
    /// Added first; finite.
    pub add: f32,
    /// Taken off then.
    pub subtract: f32,
}

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<'a> {
    /// Divides the logits; finite, from 0. 0 takes the first-ranked token.
    pub temperature: f32,
    /// Keeps so many of the first-ranked tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the first-ranked tokens whose weights reach this share of what `top_k` left; above 0, and 1 keeps all.
    pub top_p: f32,
    /// Keeps the tokens whose weight is at least this one; from 0 to 1. The greatest weight is 1.
    pub min_p: f32,
    /// Where in the cumulative sum the token lies: a multiple of 2⁻⁵³ in `[0, 1)`.
    pub number: f64,
    /// What is done to some logits first: ids ascending, each at most once, at most [`ADJUSTMENTS_MAX`] for a backend.
    pub adjustments: &'a [Adjustment],
}

/// A token with its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

/// A token with its logit and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weighted {
    token: Ranked,
    weight: f64,
}

impl Choice<'_> {
    /// Whether the first-ranked token is taken, whatever the number.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Adjusts logits `[vocab]`.
    pub fn adjust(&self, logits: &mut [f32]) {
        for Adjustment { id, add, subtract } in self.adjustments {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = (*logit + add) - subtract;
            }
        }
    }

    /// Chooses among logits `[vocab]` that were adjusted; `None` if the greatest is not finite.
    pub fn choose(&self, logits: &[f32]) -> Option<u32> {
        let best = *ranked(logits, 1).first()?;
        if !best.logit.is_finite() {
            return None;
        }
        if self.is_greedy() {
            return Some(best.id);
        }
        let tokens = if self.top_k == 0 {
            possible(logits)
        } else {
            ranked(logits, self.top_k)
        };
        let temperature = f64::from(self.temperature);
        let weigh = |token: Ranked| Weighted {
            token,
            weight: (f64::from(token.logit - best.logit) / temperature).exp(),
        };
        let mut kept: Vec<Weighted> = tokens.into_iter().map(weigh).collect();
        cut_top_p(&mut kept, f64::from(self.top_p));
        kept.retain(|token| token.weight >= f64::from(self.min_p));
        kept.sort_unstable_by_key(|token| token.token.id);
        Some(draw(&kept, self.number))
    }
}

/// Whether logits are those of a sound model: none is NaN or positive infinity.
pub fn are_sound(logits: &[f32]) -> bool {
    !logits
        .iter()
        .any(|logit| logit.is_nan() || *logit == f32::INFINITY)
}

/// The tokens that are possible at all, in the order of their ids.
fn possible(logits: &[f32]) -> Vec<Ranked> {
    let possible = |(id, logit): (usize, &f32)| {
        (*logit > f32::NEG_INFINITY).then_some(Ranked {
            id: id as u32,
            logit: *logit,
        })
    };
    logits.iter().enumerate().filter_map(possible).collect()
}

/// The `count` first-ranked tokens that are possible at all, first-ranked first.
pub fn ranked(logits: &[f32], count: usize) -> Vec<Ranked> {
    let count = count.min(logits.len());
    if count == 0 {
        return Vec::new();
    }
    let mut best: Vec<Ranked> = Vec::with_capacity(2 * count);
    // No token from here on that is not above the bar can be among the best: an equal one has a greater id.
    let mut bar = f32::NEG_INFINITY;
    for (id, logit) in logits.iter().copied().enumerate() {
        if logit > bar {
            best.push(Ranked {
                id: id as u32,
                logit,
            });
            if best.len() == 2 * count {
                best.select_nth_unstable_by(count - 1, rank);
                best.truncate(count);
                bar = best[count - 1].logit;
            }
        }
    }
    best.sort_unstable_by(rank);
    best.truncate(count);
    best
}

/// Greater logits first, equal ones in the order of their ids.
fn rank(a: &Ranked, b: &Ranked) -> Ordering {
    let by_logit = b
        .logit
        .partial_cmp(&a.logit)
        .expect("what is not above negative infinity was left out");
    by_logit.then(a.id.cmp(&b.id))
}

/// Keeps the first-ranked tokens whose weights reach the share `top_p` of the sum. `kept` comes in the order of ids or
/// of rank and leaves in the order of rank if it was cut.
fn cut_top_p(kept: &mut Vec<Weighted>, top_p: f64) {
    if top_p >= 1.0 {
        return;
    }
    let by_rank = |a: &Weighted, b: &Weighted| rank(&a.token, &b.token);
    let goal = top_p * kept.iter().map(|token| token.weight).sum::<f64>();
    let mut mass = 0.0;
    let mut ranked = 0;
    // Few tokens hold most of the mass, so the list is sorted from its front only as far as needed.
    while ranked < kept.len() {
        let block = (4 * ranked).max(256).min(kept.len() - ranked);
        let rest = &mut kept[ranked..];
        if block < rest.len() {
            rest.select_nth_unstable_by(block - 1, by_rank);
        }
        rest[..block].sort_unstable_by(by_rank);
        for index in ranked..ranked + block {
            mass += kept[index].weight;
            if mass >= goal {
                kept.truncate(index + 1);
                return;
            }
        }
        ranked += block;
    }
}

/// The token at the share `number` of the cumulative sum. `kept` is not empty; `number` lies in `[0, 1)`.
fn draw(kept: &[Weighted], number: f64) -> u32 {
    let goal = number * kept.iter().map(|token| token.weight).sum::<f64>();
    let mut mass = 0.0;
    for token in kept {
        mass += token.weight;
        if mass > goal {
            return token.token.id;
        }
    }
    // Not reached: the last mass is the sum itself, and the goal is below it.
    kept[kept.len() - 1].token.id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_p_over_a_long_list_equals_a_full_sort() {
        // 2000 tokens, logits spread by a multiplicative hash, so that several blocks are sorted.
        let hash = |id: u32| id.wrapping_mul(2_654_435_761) >> 8;
        let logits: Vec<f32> = (0..2000).map(|id| hash(id) as f32 / 1e7).collect();
        let mut kept: Vec<Weighted> = possible(&logits)
            .into_iter()
            .map(|token| Weighted {
                token,
                weight: f64::from(token.logit).exp(),
            })
            .collect();
        let mut sorted = kept.clone();
        sorted.sort_by(|a, b| rank(&a.token, &b.token));
        let goal = 0.9 * kept.iter().map(|token| token.weight).sum::<f64>();
        let mut mass = 0.0;
        let below = sorted.iter().take_while(|token| {
            mass += token.weight;
            mass < goal
        });
        let count = below.count() + 1;
        cut_top_p(&mut kept, 0.9);
        assert!(count > 1280, "{count} tokens do not need a third block");
        assert_eq!(kept, sorted[..count]);
    }

    const PLAIN: Choice<'_> = Choice {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        number: 0.0,
        adjustments: &[],
    };

    /// 5 and the number after it are both 1e9 less than the greatest, to f32's precision: equal weights, but not equal ranks.
    #[test]
    fn tokens_of_equal_weight_are_ranked_by_logit() {
        let after = f32::from_bits(5f32.to_bits() + 1);
        let logits = [5.0, after, 1e9];
        let choice = Choice {
            temperature: 1e9,
            top_p: 0.6,
            ..PLAIN
        };
        // The weights are 1/e, 1/e and 1; a share of 0.6 takes the greatest and the one that is ranked next.
        let least = choice.choose(&logits);
        assert_eq!(least, Some(1));
    }

    #[test]
    fn adjustments_are_added_then_taken_and_strange_ids_passed_over() {
        let adjustments = [
            Adjustment {
                id: 1,
                add: 0.25,
                subtract: 0.5,
            },
            Adjustment {
                id: 9,
                add: 100.0,
                subtract: 0.0,
            },
        ];
        let choice = Choice {
            adjustments: &adjustments,
            ..PLAIN
        };
        let mut logits = [1.0, 2.0, 3.0];
        choice.adjust(&mut logits);
        assert_eq!(
            logits.map(f32::to_bits),
            [1.0f32, 1.75, 3.0].map(f32::to_bits)
        );
    }

    #[test]
    fn an_adjustment_past_all_numbers_gives_no_token() {
        let adjustments = [Adjustment {
            id: 0,
            add: f32::MAX,
            subtract: 0.0,
        }];
        let choice = Choice {
            adjustments: &adjustments,
            ..PLAIN
        };
        let mut logits = [f32::MAX, 0.0];
        choice.adjust(&mut logits);
        assert_eq!(choice.choose(&logits), None);
    }
}
