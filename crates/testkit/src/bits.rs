//! Equality where the promise says equality.

/// Checks that two matrices of `width` columns have the same bits; a NaN equals a NaN of the same bits.
///
/// # Panics
/// At the first value that differs, with its coordinates; or if the lengths differ.
#[track_caller]
pub fn assert_same_bits(what: &str, width: usize, found: &[f32], wanted: &[f32]) {
    assert_eq!(
        found.len(),
        wanted.len(),
        "{what}: another number of values"
    );
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    if let Some(at) = found.iter().zip(wanted).position(differs) {
        let (a, b) = (found[at], wanted[at]);
        let count = found
            .iter()
            .zip(wanted)
            .filter(|&pair| differs(pair))
            .count();
        panic!(
            "{what}: row {}, column {} is {a:e} ({:#010x}), wanted {b:e} ({:#010x}); {count} of {} values differ",
            at / width,
            at % width,
            a.to_bits(),
            b.to_bits(),
            found.len(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bits_pass() {
        assert_same_bits(
            "equal",
            2,
            &[1.0, f32::NAN, -0.0, 3.0],
            &[1.0, f32::NAN, -0.0, 3.0],
        );
    }

    #[test]
    #[should_panic(
        expected = "row 1, column 0 is 0e0 (0x00000000), wanted -0e0 (0x80000000); 1 of 4"
    )]
    fn the_first_difference_is_named() {
        assert_same_bits("zeros", 2, &[1.0, 2.0, 0.0, 3.0], &[1.0, 2.0, -0.0, 3.0]);
    }
}
