//! GELU in its exact form: `y = x · Φ(x)`, value by value.
//!
//! Precision: f64 from a table of Φ and its slope φ at every sixteenth from −8 to 8 and five terms of Taylor's series
//! between, an error below 5e-12. Beyond 8, Φ is 0 or 1 to within 1e-15.
//! Source: Hendrycks and Gimpel 2016; torch's `GELU`, which is the erf form.
//! Cost: some twenty f64 operations a value.

use std::sync::LazyLock;

use descant_model::reference::ops::erf;

use crate::Pool;

/// Values of a task.
const TASK_VALUES: usize = 4096;
/// Where Φ counts as 0 or 1.
const END: f64 = 8.0;
/// Places of the table in a unit.
const STEPS: f64 = 16.0;

/// Φ and φ at `place / STEPS − END`.
static TABLE: LazyLock<Vec<[f64; 2]>> = LazyLock::new(|| {
    let at = |place: usize| {
        let x = place as f64 / STEPS - END;
        let slope = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        [(1.0 + erf(x / std::f64::consts::SQRT_2)) / 2.0, slope]
    };
    (0..=(2.0 * END * STEPS) as usize).map(at).collect()
});

/// Replaces every value by its GELU; NaN stays NaN.
pub(super) fn gelu_all(pool: &Pool, x: &mut [f64]) {
    let table = TABLE.as_slice();
    pool.chunks(x, TASK_VALUES, |_, x| {
        x.iter_mut().for_each(|x| *x = gelu(table, *x))
    });
}

fn gelu(table: &[[f64; 2]], x: f64) -> f64 {
    if x >= END {
        return x;
    }
    if x <= -END {
        return 0.0;
    }
    // NaN takes place 0 and stays NaN through the distance.
    let place = ((x + END) * STEPS).round() as usize;
    let [value, slope] = table[place];
    let a = place as f64 / STEPS - END;
    let d = x - a;
    // The derivatives of φ are φ times −a, a² − 1, 3a − a³, a⁴ − 6a² + 3.
    let a2 = a * a;
    let terms = [
        1.0,
        -a / 2.0,
        (a2 - 1.0) / 6.0,
        a * (3.0 - a2) / 24.0,
        (a2 * (a2 - 6.0) + 3.0) / 120.0,
    ];
    let series = terms.iter().rev().fold(0.0, |sum, term| sum * d + term);
    x * (value + slope * series * d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_formula_everywhere() {
        for step in -160_000..160_000 {
            let x = f64::from(step) * 6.25e-5 + 1e-6;
            let wanted = descant_model::reference::ops::gelu(x);
            let found = gelu(&TABLE, x);
            assert!(
                (found - wanted).abs() < 5e-12,
                "gelu({x}) is {found:e}, wanted {wanted:e}"
            );
        }
    }

    #[test]
    fn values_without_a_place_pass() {
        let pool = Pool::new(1).unwrap();
        let mut x = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e30,
            -1e30,
            8.0,
            -8.0,
        ];
        gelu_all(&pool, &mut x);
        assert!(x[0].is_nan(), "{x:?}");
        assert_eq!(x[1..], [f64::INFINITY, 0.0, 1e30, 0.0, 8.0, 0.0]);
    }
}
