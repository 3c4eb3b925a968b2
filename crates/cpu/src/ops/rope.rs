//! Rotary positions: turns the first dimensions of a head by angles that grow with the position.
//!
//! Shapes: `x` `[D]` f32, of which the first `dims` turn: value i with value i + dims / 2. Tables `[positions, dims / 2]`.
//! Angles are f32 products of the position and the frequency, as in the reference; their cosine and sine are taken in
//! f64 and rounded to f32 (in bf16: to bf16, like each of the three steps of a turn).
//! Source: Su et al. 2021; the reference's `rotate_half`. Text positions are equal in all three sections.

use descant_release::{AttentionConfig, LoadError};

use super::Precision;
use super::lanes::round_one;

/// Cosines and sines of all positions.
#[derive(Debug)]
pub(crate) struct Rope {
    /// `[positions, dims / 2]`, the cosine and the sine.
    turns: Vec<[f32; 2]>,
    half: usize,
}

impl Rope {
    /// Tables for `positions` positions.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if there is no memory for them.
    pub(crate) fn new(
        config: &AttentionConfig,
        precision: Precision,
        positions: usize,
    ) -> Result<Rope, LoadError> {
        let half = config.rotary_dims / 2;
        let mut turns = Vec::new();
        turns
            .try_reserve_exact(positions * half)
            .map_err(|_| LoadError::Memory {
                what: "rotary tables".to_owned(),
                bytes: Rope::bytes(config, positions),
            })?;
        let frequencies: Vec<f32> = (0..half).map(|i| frequency(config, i)).collect();
        for position in 0..positions {
            for frequency in &frequencies {
                let angle = f64::from(position as f32 * frequency);
                turns.push(
                    [angle.cos(), angle.sin()].map(|x| round_one(precision.is_bf16(), x as f32)),
                );
            }
        }
        Ok(Rope { turns, half })
    }

    /// Bytes of the tables.
    pub(crate) fn bytes(config: &AttentionConfig, positions: usize) -> usize {
        positions * (config.rotary_dims / 2) * size_of::<[f32; 2]>()
    }

    /// Turns one head's values at a position.
    pub(crate) fn turn(&self, precision: Precision, position: usize, x: &mut [f32]) {
        let bf16 = precision.is_bf16();
        let (low, high) = x[..2 * self.half].split_at_mut(self.half);
        let turns = &self.turns[position * self.half..][..self.half];
        for ((low, high), [cos, sin]) in low.iter_mut().zip(high).zip(turns) {
            let (a, b) = (*low, *high);
            let turned = |x: f32, y: f32| round_one(bf16, round_one(bf16, x) + round_one(bf16, y));
            *low = turned(a * cos, -b * sin);
            *high = turned(b * cos, a * sin);
        }
    }
}

/// `1 / theta^(2 i / dims)`, in f32 as the reference has it.
fn frequency(config: &AttentionConfig, i: usize) -> f32 {
    let exponent = (2 * i) as f32 / config.rotary_dims as f32;
    1.0 / (config.rope_theta.powf(f64::from(exponent)) as f32)
}
