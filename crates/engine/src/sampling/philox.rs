//! Philox 4x32-10: random numbers that are a function of a key and a counter, with no state between them.
//!
//! Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key after each round: the golden ratio and the square root of 3, less one.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// A number in `[0, 1)` with 53 random bits, for a stream's seed and the position of a token in it.
pub(super) fn uniform(seed: u64, position: u64) -> f64 {
    let [low, high] = halves(position);
    let [first, second, _, _] = philox([low, high, 0, 0], halves(seed));
    let bits = (u64::from(first) << 32 | u64::from(second)) >> 11;
    // Exact: 53 bits fit a f64, and the factor is a power of two.
    bits as f64 * 2f64.powi(-53)
}

/// Low half, high half.
fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// Four random words.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [low_0, high_0] = halves(u64::from(MULTIPLIERS[0]) * u64::from(counter[0]));
        let [low_1, high_1] = halves(u64::from(MULTIPLIERS[1]) * u64::from(counter[2]));
        counter = [
            high_1 ^ counter[1] ^ key[0],
            low_1,
            high_0 ^ counter[3] ^ key[1],
            low_0,
        ];
        key = [
            key[0].wrapping_add(KEY_STEPS[0]),
            key[1].wrapping_add(KEY_STEPS[1]),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their library Random123.
    #[test]
    fn the_words_are_the_published_ones() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn numbers_depend_on_seed_and_position_and_lie_below_one() {
        let numbers: Vec<f64> = (0..1000).map(|position| uniform(5, position)).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 1000.0;
        // The mean of 1000 uniform numbers has a standard deviation of 0.0091; five of them.
        assert!((mean - 0.5).abs() < 0.046, "mean {mean}");
        assert_ne!(uniform(5, 0).to_bits(), uniform(6, 0).to_bits());
        assert_ne!(uniform(5, 0).to_bits(), uniform(5 << 32, 0).to_bits());
    }
}
