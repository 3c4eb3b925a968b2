//! The Qwen3.5-family text model.

use descant_release::{LayerKind, LinearConfig, LoadError, Release};

use super::attention::CausalAttention;
use super::delta::{DeltaStep, convolve, delta_rule};
use super::ops::{Matrix, add, rms_norm, rms_normalise, sigmoid, silu, softplus};

/// The text model of a release. Weights are read layer by layer while it runs, so it takes one layer's memory.
#[derive(Debug)]
pub struct Backbone<'a> {
    release: &'a Release,
}

/// What a run over a prompt gives.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The rows after the final norm, `[T, H]`.
    pub hidden: Vec<f64>,
    /// The recurrent state of each linear-attention layer after the last row, `[value_heads, K, V]`; empty for a
    /// full-attention layer.
    pub states: Vec<Vec<f64>>,
}

impl<'a> Backbone<'a> {
    /// The text model of a release.
    pub fn new(release: &'a Release) -> Backbone<'a> {
        Backbone { release }
    }

    /// Runs a prompt of T tokens from an empty state.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    ///
    /// # Panics
    /// If an id has no row in the embedding.
    pub fn run(&self, ids: &[u32]) -> Result<Trace, LoadError> {
        let width = self.release.config().hidden;
        let mut h = self.embed(ids)?;
        let mut states = Vec::new();
        for layer in 0..self.release.config().layers.len() {
            let normed = self.norm_rows(&format!("layers.{layer}.input_layernorm"), &h)?;
            let (mixed, state) = self.mix(layer, &normed)?;
            add(&mut h, &mixed);
            states.push(state);

            let normed = self.norm_rows(&format!("layers.{layer}.post_attention_layernorm"), &h)?;
            add(
                &mut h,
                &self.swiglu(&format!("layers.{layer}.mlp"), &normed)?,
            );
        }
        assert_eq!(h.len(), ids.len() * width);
        Ok(Trace {
            hidden: self.norm_rows("norm", &h)?,
            states,
        })
    }

    /// Next-token logits, `[vocab]`, of one hidden row, `[H]`.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub fn logits(&self, hidden: &[f64]) -> Result<Vec<f64>, LoadError> {
        let embedding = self.release.output_embedding()?;
        let mut row = vec![0.0; hidden.len()];
        let mut logit = |id: usize| {
            embedding.copy_rows_f32_into(id..id + 1, &mut row);
            row.iter().zip(hidden).map(|(&w, x)| f64::from(w) * x).sum()
        };
        Ok((0..self.release.config().vocab).map(&mut logit).collect())
    }

    fn embed(&self, ids: &[u32]) -> Result<Vec<f64>, LoadError> {
        let embedding = self.release.embedding()?;
        let mut row = vec![0.0; self.release.config().hidden];
        let mut rows = Vec::new();
        for &id in ids {
            embedding.copy_rows_f32_into(id as usize..id as usize + 1, &mut row);
            rows.extend(row.iter().map(|&x| f64::from(x)));
        }
        Ok(rows)
    }

    /// The mixer of a layer over all rows, and its recurrent state at the end.
    fn mix(&self, layer: usize, x: &[f64]) -> Result<(Vec<f64>, Vec<f64>), LoadError> {
        match self.release.config().layers[layer] {
            LayerKind::FullAttention => Ok((
                self.full_attention(&format!("layers.{layer}.self_attn"), x)?,
                Vec::new(),
            )),
            LayerKind::LinearAttention => {
                self.linear_attention(&format!("layers.{layer}.linear_attn"), x)
            }
        }
    }

    fn full_attention(&self, at: &str, x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let queries_and_gates = self.linear(&format!("{at}.q_proj"), x)?;
        let keys = self.linear(&format!("{at}.k_proj"), x)?;
        let values = self.linear(&format!("{at}.v_proj"), x)?;
        let config = self.release.config();
        let attention = CausalAttention {
            config: &config.attention,
            q_norm: &self.vector(&format!("{at}.q_norm.weight"))?,
            k_norm: &self.vector(&format!("{at}.k_norm.weight"))?,
            eps: f64::from(config.norm_eps),
        };
        self.linear(
            &format!("{at}.o_proj"),
            &attention.run(&queries_and_gates, &keys, &values),
        )
    }

    fn linear_attention(&self, at: &str, x: &[f64]) -> Result<(Vec<f64>, Vec<f64>), LoadError> {
        let sizes = &self.release.config().linear;
        let mixed = self.linear(&format!("{at}.in_proj_qkv"), x)?;
        let mixed = convolve(
            &mixed,
            &self.vector(&format!("{at}.conv1d.weight"))?,
            sizes.conv_channels(),
        );
        let z = self.linear(&format!("{at}.in_proj_z"), x)?;
        let gates = Gates {
            a: self.linear(&format!("{at}.in_proj_a"), x)?,
            b: self.linear(&format!("{at}.in_proj_b"), x)?,
            a_log: self.vector(&format!("{at}.A_log"))?,
            dt_bias: self.vector(&format!("{at}.dt_bias"))?,
        };
        let (mut out, state) = recur(sizes, &mixed, &gates);

        let weight = self.vector(&format!("{at}.norm.weight"))?;
        let eps = f64::from(self.release.config().norm_eps);
        for (head, z) in out
            .chunks_exact_mut(sizes.value_dim)
            .zip(z.chunks_exact(sizes.value_dim))
        {
            let normed = rms_normalise(head, eps);
            for (dim, out) in head.iter_mut().enumerate() {
                *out = normed[dim] * weight[dim] * silu(z[dim]);
            }
        }
        Ok((self.linear(&format!("{at}.out_proj"), &out)?, state))
    }

    /// `down(silu(gate x) · up x)`.
    fn swiglu(&self, at: &str, x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let gate = self.linear(&format!("{at}.gate_proj"), x)?;
        let up = self.linear(&format!("{at}.up_proj"), x)?;
        let inner: Vec<f64> = gate
            .iter()
            .zip(&up)
            .map(|(gate, up)| silu(*gate) * up)
            .collect();
        self.linear(&format!("{at}.down_proj"), &inner)
    }

    fn norm_rows(&self, at: &str, x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let weight = self.vector(&format!("{at}.weight"))?;
        let eps = f64::from(self.release.config().norm_eps);
        Ok(x.chunks_exact(weight.len())
            .flat_map(|row| rms_norm(row, &weight, eps))
            .collect())
    }

    fn linear(&self, at: &str, x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let weight = self.release.backbone_tensor(&format!("{at}.weight"))?;
        Ok(Matrix::from_tensor(weight)?.apply_rows(x))
    }

    fn vector(&self, name: &str) -> Result<Vec<f64>, LoadError> {
        Ok(Matrix::from_tensor(self.release.backbone_tensor(name)?)?.to_f64())
    }
}

/// What decides how fast each value head forgets and writes.
struct Gates {
    /// `[T, value_heads]`
    a: Vec<f64>,
    /// `[T, value_heads]`
    b: Vec<f64>,
    /// `[value_heads]`
    a_log: Vec<f64>,
    /// `[value_heads]`
    dt_bias: Vec<f64>,
}

/// The delta rule of every value head over all rows. `mixed` is `[T, channels]`: query heads, key heads, value heads;
/// value head h reads key head `h / (value_heads / key_heads)`. Gives `[T, value_heads, V]` and the last states.
fn recur(sizes: &LinearConfig, mixed: &[f64], gates: &Gates) -> (Vec<f64>, Vec<f64>) {
    let LinearConfig {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = *sizes;
    let keys_at = key_heads * key_dim;
    let mut states = vec![0.0; value_heads * key_dim * value_dim];
    let mut out = Vec::new();
    for (row, mixed) in mixed.chunks_exact(sizes.conv_channels()).enumerate() {
        for (head, state) in states.chunks_exact_mut(key_dim * value_dim).enumerate() {
            let key_at = head / (value_heads / key_heads) * key_dim;
            let gate = row * value_heads + head;
            let step = DeltaStep {
                q: &mixed[key_at..][..key_dim],
                k: &mixed[keys_at + key_at..][..key_dim],
                v: &mixed[2 * keys_at + head * value_dim..][..value_dim],
                g: -gates.a_log[head].exp() * softplus(gates.a[gate] + gates.dt_bias[head]),
                beta: sigmoid(gates.b[gate]),
            };
            out.extend(delta_rule(state, step));
        }
    }
    (out, states)
}
