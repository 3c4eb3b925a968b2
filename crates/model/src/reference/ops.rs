//! The formulas that both models share, a row or a value at a time.

use descant_release::{LoadError, Tensor};

/// A matrix of a release: `[rows, columns]`, row-major. The values are kept as f32, which is exact, to spare memory.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Number of rows: outputs of a linear map.
    pub rows: usize,
    /// Number of columns: inputs of a linear map.
    pub columns: usize,
    /// The values, `[rows, columns]`.
    pub values: Vec<f32>,
}

impl Matrix {
    /// Reads a tensor; a vector becomes a matrix of one column, a scalar one of one value.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub fn from_tensor(tensor: Tensor<'_>) -> Result<Matrix, LoadError> {
        let rows = tensor.shape.first().copied().unwrap_or(1);
        let columns = tensor.shape.iter().skip(1).product();
        Ok(Matrix {
            rows,
            columns,
            values: tensor.to_f32()?,
        })
    }

    /// Row `index`.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.columns..(index + 1) * self.columns]
    }

    /// Rows `start..start + count` as a matrix of their own.
    #[must_use]
    pub fn part(&self, start: usize, count: usize) -> Matrix {
        let values = self.values[start * self.columns..(start + count) * self.columns].to_vec();
        Matrix {
            rows: count,
            columns: self.columns,
            values,
        }
    }

    /// `W x`, for one row.
    pub fn apply(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.columns, "a row of another width");
        (0..self.rows)
            .map(|row| dot_f32(self.row(row), x))
            .collect()
    }

    /// `x Wᵀ`, for all rows of `x`, `[n, columns]`; gives `[n, rows]`.
    pub fn apply_rows(&self, x: &[f64]) -> Vec<f64> {
        x.chunks_exact(self.columns)
            .flat_map(|row| self.apply(row))
            .collect()
    }

    /// The values as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        self.values.iter().map(|&value| f64::from(value)).collect()
    }
}

/// `Σ aᵢ bᵢ`.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of two widths");
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `Σ aᵢ bᵢ`, in eight sums that a processor adds side by side: f64 leaves room for any order.
fn dot_f32(a: &[f32], b: &[f64]) -> f64 {
    let (a_groups, a_rest) = a.as_chunks::<8>();
    let (b_groups, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a_groups.iter().zip(b_groups) {
        for lane in 0..8 {
            sums[lane] += f64::from(a[lane]) * b[lane];
        }
    }
    let rest: f64 = a_rest
        .iter()
        .zip(b_rest)
        .map(|(&a, b)| f64::from(a) * b)
        .sum();
    sums.iter().sum::<f64>() + rest
}

/// `x += y`.
pub fn add(x: &mut [f64], y: &[f64]) {
    assert_eq!(x.len(), y.len(), "rows of two widths");
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// LayerNorm of one row: `(x − mean) / sqrt(variance + 1e-5) · w + b`, variance over n, not n − 1.
pub fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let scale = (variance + LAYER_NORM_EPS).sqrt().recip();
    x.iter()
        .zip(weight)
        .zip(bias)
        .map(|((x, w), b)| (x - mean) * scale * w + b)
        .collect()
}

/// RMSNorm of one row without its weight: `x / sqrt(mean(x²) + eps)`.
pub fn rms_normalise(x: &[f64], eps: f64) -> Vec<f64> {
    let scale = (dot(x, x) / x.len() as f64 + eps).sqrt().recip();
    x.iter().map(|x| x * scale).collect()
}

/// RMSNorm of the blocks, the final norm and the q and k norms: the weight is stored as its distance from one.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    rms_normalise(x, eps)
        .iter()
        .zip(weight)
        .map(|(x, w)| x * (1.0 + w))
        .collect()
}

/// `x / sqrt(Σ x² + 1e-6)`, the unit length of the delta rule's queries and keys.
pub fn l2_normalise(x: &[f64]) -> Vec<f64> {
    let scale = (dot(x, x) + L2_EPS).sqrt().recip();
    x.iter().map(|x| x * scale).collect()
}

/// `x / max(‖x‖, 1e-12)`.
pub fn unit(x: &[f64]) -> Vec<f64> {
    let length = dot(x, x).sqrt().max(UNIT_EPS);
    x.iter().map(|x| x / length).collect()
}

/// `a · b / (max(‖a‖, 1e-8) max(‖b‖, 1e-8))`.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    dot(a, b) / (dot(a, a).sqrt().max(COSINE_EPS) * dot(b, b).sqrt().max(COSINE_EPS))
}

/// Softmax of one row, in place.
pub fn softmax(x: &mut [f64]) {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f64 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

/// The mean of rows of one width.
pub fn mean_rows(rows: &[f64], width: usize) -> Vec<f64> {
    let mut mean = vec![0.0; width];
    rows.chunks_exact(width).for_each(|row| add(&mut mean, row));
    let count = (rows.len() / width) as f64;
    mean.iter_mut().for_each(|x| *x /= count);
    mean
}

/// `1 / (1 + e^−x)`.
pub fn sigmoid(x: f64) -> f64 {
    (1.0 + (-x).exp()).recip()
}

/// `x · sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + eˣ)`.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// GELU in its exact form: `x · Φ(x) = x / 2 · (1 + erf(x / √2))`.
pub fn gelu(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// The error function, by the series `2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·…·(2n+1))`, whose terms have one sign.
pub fn erf(x: f64) -> f64 {
    // Past 6 the distance from 1 is below 2.2e-17, half the last place.
    if x.abs() > 6.0 {
        return x.signum();
    }
    let mut term = x;
    let mut sum = x;
    let mut odd = 1.0;
    while term.abs() > sum.abs() * f64::EPSILON / 4.0 {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// torch's LayerNorm.
const LAYER_NORM_EPS: f64 = 1e-5;
/// The delta rule's length, inside the root.
const L2_EPS: f64 = 1e-6;
/// torch's `normalize`.
const UNIT_EPS: f64 = 1e-12;
/// torch's `cosine_similarity`, for each length.
const COSINE_EPS: f64 = 1e-8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen units of the last place: sums of up to a hundred terms, most of them far smaller than the first.
    fn close(found: f64, wanted: f64) {
        assert!(
            (found - wanted).abs() <= 16.0 * f64::EPSILON * wanted.abs().max(1.0),
            "{found:e}, wanted {wanted:e}"
        );
    }

    /// Abramowitz and Stegun, tables 7.1 and 7.3; Python's `math.erf` prints the same.
    #[test]
    fn erf_has_its_published_values() {
        for (x, wanted) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
            (7.0, 1.0),
        ] {
            close(erf(x), wanted);
            close(erf(-x), -wanted);
        }
    }

    #[test]
    fn gelu_of_far_values_is_the_value_or_nothing() {
        close(gelu(40.0), 40.0);
        close(gelu(-40.0), 0.0);
        close(gelu(1.0), 0.841_344_746_068_542_9);
    }

    #[test]
    fn softplus_neither_overflows_nor_vanishes() {
        close(softplus(0.0), std::f64::consts::LN_2);
        close(softplus(1000.0), 1000.0);
        assert!(softplus(-40.0) > 4e-18, "{}", softplus(-40.0));
    }

    #[test]
    fn a_layer_norm_of_three_values() {
        let scale = (2.0_f64 / 3.0 + 1e-5).sqrt();
        let found = layer_norm(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], &[0.5, 0.0, 0.0]);
        close(found[0], 0.5 - 1.0 / scale);
        close(found[1], 0.0);
        close(found[2], 3.0 / scale);
    }

    #[test]
    fn rows_that_do_not_fill_the_lanes_are_summed_whole() {
        let matrix = Matrix {
            rows: 1,
            columns: 11,
            values: vec![1.0; 11],
        };
        let x: Vec<f64> = (1..=11).map(f64::from).collect();
        close(matrix.apply(&x)[0], 66.0);
    }

    #[test]
    fn zero_rows_have_no_direction() {
        assert_eq!(unit(&[0.0, 0.0]), [0.0, 0.0]);
        close(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
    }
}
