//! Numbers drawn by name, seed and index: the weights of heads too large to store.
//!
//! `tools/seeded.py` draws the same numbers; `fixtures/README.md` states the rule.

use half::bf16;

/// `count` values of the sequence of a name and a seed from `element` on, uniform in `centre ± reach`.
pub fn uniform(name: &str, seed: u64, element: usize, count: usize, rule: Rule) -> Vec<f32> {
    let key = fnv1a64(name).wrapping_add(seed.wrapping_mul(GOLDEN));
    let value = |element: usize| rule.centre + rule.reach * unit(key, element as u64);
    (element..element + count).map(value).collect()
}

/// The same values rounded to bf16, ties to even.
pub fn uniform_bf16(name: &str, seed: u64, element: usize, count: usize, rule: Rule) -> Vec<bf16> {
    uniform(name, seed, element, count, rule)
        .into_iter()
        .map(bf16::from_f32)
        .collect()
}

/// Where a tensor's values lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Their middle.
    pub centre: f32,
    /// Their greatest distance from it.
    pub reach: f32,
}

impl Rule {
    /// The rule of hidden rows.
    pub const HIDDEN: Rule = Rule {
        centre: 0.0,
        reach: 2.0,
    };
    /// The rule of the output embedding.
    pub const LM_HEAD: Rule = Rule {
        centre: 0.0,
        reach: 0.0625,
    };

    /// The rule of a head's tensor.
    pub fn of_head(name: &str, shape: &[usize]) -> Rule {
        let (centre, reach) = match (name, shape) {
            ("prior_logit_scale", _) => (1.0, 0.0),
            ("joint_logit_scale", _) => (1.5, 0.0),
            ("residual_gate", _) => (0.5, 0.0),
            ("type_embedding.weight", _) => (0.0, 0.5),
            (_, [_, columns]) => (0.0, 1.5 / f32::from(1_u16 << (columns.ilog2() / 2))),
            (name, _) if name.ends_with("bias") => (0.0, 0.125),
            _ => (1.0, 0.25),
        };
        Rule { centre, reach }
    }
}

/// A value in (−1, 1), exact in f32: splitmix64's output at a place of its sequence.
fn unit(key: u64, element: u64) -> f32 {
    let mut z = key.wrapping_add((element + 1).wrapping_mul(GOLDEN));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    // 25 bits and a sign at most, of which the last is never zero: f32's 24 bits hold every odd number below 2^24.
    ((2 * (z >> 40) + 1) as i64 - (1 << 24)) as f32 / (1 << 24) as f32
}

fn fnv1a64(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
