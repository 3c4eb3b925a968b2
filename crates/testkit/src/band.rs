//! A tolerance with its reason.

/// How far numbers may lie from their truth, and why that far.
#[derive(Clone, Copy, Debug)]
pub struct Band {
    /// Greatest distance of any value.
    worst_max: f64,
    /// Greatest mean distance, where one is asked for.
    mean_max: f64,
    /// Why.
    reason: &'static str,
}

impl Band {
    /// A band of a greatest distance.
    pub const fn absolute(worst_max: f64, reason: &'static str) -> Band {
        Band {
            worst_max,
            mean_max: worst_max,
            reason,
        }
    }

    /// The band with a greatest mean distance too.
    #[must_use]
    pub const fn with_mean(self, mean_max: f64) -> Band {
        Band { mean_max, ..self }
    }

    /// The band times a factor, for values of that scale.
    #[must_use]
    pub const fn times(self, factor: f64) -> Band {
        Band {
            worst_max: self.worst_max * factor,
            mean_max: self.mean_max * factor,
            ..self
        }
    }

    /// Checks values against their truth, and prints the worst distance also when it passes.
    ///
    /// # Panics
    /// If a distance exceeds the band or is no number, the lengths differ, or there is no value.
    #[track_caller]
    pub fn check(
        &self,
        what: &str,
        found: impl IntoIterator<Item = f64>,
        wanted: impl IntoIterator<Item = f64>,
    ) {
        let (found, wanted): (Vec<f64>, Vec<f64>) =
            (found.into_iter().collect(), wanted.into_iter().collect());
        assert_eq!(
            found.len(),
            wanted.len(),
            "{what}: another number of values"
        );
        assert!(!found.is_empty(), "{what}: no values");
        let distances: Vec<f64> = found
            .iter()
            .zip(&wanted)
            .map(|(a, b)| (a - b).abs())
            .collect();
        // `total_cmp` puts NaN above all numbers, so that a NaN is the worst.
        let (at, worst) = distances
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1))
            .expect("there is a value");
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        let Band {
            worst_max,
            mean_max,
            reason,
        } = self;
        print(&format!(
            "{what}: worst {worst:.2e} at {at} (band {worst_max:.1e}), mean {mean:.2e} of {}",
            found.len()
        ));
        assert!(
            *worst <= *worst_max && mean <= *mean_max,
            "{what}: value {at} is {}, wanted {}; worst {worst:.3e}, mean {mean:.3e}, band {worst_max:.1e} and \
             {mean_max:.1e} ({reason})",
            found[at],
            wanted[at],
        );
    }

    /// [`Band::check`] for f32 values.
    ///
    /// # Panics
    /// As [`Band::check`].
    #[track_caller]
    pub fn check_f32(&self, what: &str, found: &[f32], wanted: &[f32]) {
        self.check(
            what,
            found.iter().map(|&x| f64::from(x)),
            wanted.iter().map(|&x| f64::from(x)),
        );
    }
}

#[expect(clippy::print_stdout, reason = "the test runner shows it on demand")]
fn print(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAND: Band = Band::absolute(0.5, "a test").with_mean(0.3);

    #[test]
    fn values_inside_pass() {
        BAND.check("inside", [1.0, 2.0], [1.5, 2.0]);
        BAND.times(10.0).check("scaled", [1.0, 2.0], [6.0, 2.0]);
    }

    #[test]
    #[should_panic(expected = "value 1 is 3, wanted 2")]
    fn the_worst_value_is_named() {
        BAND.check("outside", [1.0, 3.0], [1.2, 2.0]);
    }

    #[test]
    #[should_panic(expected = "value 1 is NaN")]
    fn nan_is_outside() {
        BAND.check("NaN", [1.0, f64::NAN], [1.0, 2.0]);
    }

    #[test]
    #[should_panic(expected = "mean 4.000e-1")]
    fn the_mean_counts() {
        BAND.check("mean", [0.4, 0.4], [0.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "another number of values")]
    fn a_missing_value_is_noticed() {
        BAND.check("short", [0.4], [0.4, 0.0]);
    }
}
