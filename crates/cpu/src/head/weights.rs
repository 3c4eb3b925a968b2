//! What the head knows: its weights, packed once.

use descant_model::HeadWeights;
use descant_release::{HeadConfig, LoadError, Tensor};

use super::norm::LayerNorm;
use crate::{Linear, Pool};

/// All weights of a head. Linear maps keep the file's values: bf16, or f32 where bf16 would not be exact.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) hidden_norm: LayerNorm,
    /// `[W, H]`, as the next five
    pub(super) memory: Linear,
    pub(super) question: Linear,
    pub(super) option_question: Linear,
    pub(super) global: Linear,
    pub(super) option_context: Linear,
    pub(super) option_lexical: Linear,
    /// A row a kind of question, `[3, W]`
    pub(super) types: Vec<f32>,
    pub(super) evidence: Vec<EvidenceLayer>,
    pub(super) summary_norm: LayerNorm,
    pub(super) decoder: Vec<DecoderLayer>,
    pub(super) field_norm: LayerNorm,
    pub(super) option_norm: LayerNorm,
    /// 4 W to W to 1
    pub(super) scorer: FeedForward,
    /// `exp(min(prior_logit_scale, ln 100))`
    pub(super) prior_scale: f64,
    /// `exp(min(joint_logit_scale, ln 100))`
    pub(super) joint_scale: f64,
    /// `sigmoid(residual_gate)`
    pub(super) gate: f64,
}

/// A layer in which the options read the memory.
#[derive(Debug)]
pub(super) struct EvidenceLayer {
    pub(super) query_norm: LayerNorm,
    pub(super) memory_norm: LayerNorm,
    pub(super) attention: Projections,
    pub(super) feedforward_norm: LayerNorm,
    pub(super) feedforward: FeedForward,
}

/// A layer in which the questions read each other and the memory.
#[derive(Debug)]
pub(super) struct DecoderLayer {
    pub(super) norm1: LayerNorm,
    pub(super) self_attention: Projections,
    pub(super) norm2: LayerNorm,
    pub(super) cross_attention: Projections,
    pub(super) norm3: LayerNorm,
    pub(super) feedforward: FeedForward,
}

/// The linear maps of a multi-head attention.
#[derive(Debug)]
pub(super) struct Projections {
    /// `[W, W]`
    pub(super) query: Linear,
    /// Keys, then values, `[2 W, W]`
    pub(super) memory: Linear,
    /// `[W, W]`
    pub(super) out: Linear,
}

/// Linear, GELU, linear.
#[derive(Debug)]
pub(super) struct FeedForward {
    pub(super) first: Linear,
    pub(super) second: Linear,
}

impl Weights {
    pub(super) fn load(
        config: &HeadConfig,
        weights: &dyn HeadWeights,
        pool: &Pool,
    ) -> Result<Weights, LoadError> {
        let load = Loader { weights, pool };
        let evidence = (0..config.routing_layers)
            .map(|layer| load.evidence(&format!("evidence_layers.{layer}")));
        let decoder = (0..config.layers).map(|layer| load.decoder(&format!("layers.{layer}")));
        Ok(Weights {
            hidden_norm: load.norm("hidden_norm")?,
            memory: load.projection("memory_projection")?,
            question: load.projection("question_projection")?,
            option_question: load.projection("option_question_projection")?,
            global: load.projection("global_projection")?,
            option_context: load.projection("option_context_projection")?,
            option_lexical: load.projection("option_lexical_projection")?,
            types: weights.tensor("type_embedding.weight")?.to_f32()?,
            evidence: evidence.collect::<Result<_, _>>()?,
            summary_norm: load.norm("option_summary_norm")?,
            decoder: decoder.collect::<Result<_, _>>()?,
            field_norm: load.norm("field_norm")?,
            option_norm: load.norm("option_norm")?,
            scorer: load.feedforward(["residual_scorer.0", "residual_scorer.3"])?,
            prior_scale: load.scale("prior_logit_scale")?,
            joint_scale: load.scale("joint_logit_scale")?,
            gate: 1.0 / (1.0 + (-load.scalar("residual_gate")?).exp()),
        })
    }
}

struct Loader<'a> {
    weights: &'a dyn HeadWeights,
    pool: &'a Pool,
}

impl Loader<'_> {
    fn evidence(&self, at: &str) -> Result<EvidenceLayer, LoadError> {
        Ok(EvidenceLayer {
            query_norm: self.norm(&format!("{at}.query_norm"))?,
            memory_norm: self.norm(&format!("{at}.memory_norm"))?,
            attention: self.projections(&format!("{at}.attention"))?,
            feedforward_norm: self.norm(&format!("{at}.feedforward_norm"))?,
            feedforward: self.feedforward([
                &format!("{at}.feedforward.0"),
                &format!("{at}.feedforward.3"),
            ])?,
        })
    }

    fn decoder(&self, at: &str) -> Result<DecoderLayer, LoadError> {
        Ok(DecoderLayer {
            norm1: self.norm(&format!("{at}.norm1"))?,
            self_attention: self.projections(&format!("{at}.self_attn"))?,
            norm2: self.norm(&format!("{at}.norm2"))?,
            cross_attention: self.projections(&format!("{at}.multihead_attn"))?,
            norm3: self.norm(&format!("{at}.norm3"))?,
            feedforward: self.feedforward([&format!("{at}.linear1"), &format!("{at}.linear2")])?,
        })
    }

    /// The maps of a packed attention: a third of `in_proj` each for queries, keys and values.
    fn projections(&self, at: &str) -> Result<Projections, LoadError> {
        let weight = self.weights.tensor(&format!("{at}.in_proj_weight"))?;
        let bias = self.weights.tensor(&format!("{at}.in_proj_bias"))?;
        let width = bias.len() / 3;
        let part = |start: usize, rows: usize| {
            let shapes = ([rows, width], [rows]);
            let weight = Tensor {
                shape: &shapes.0,
                bytes: weight.row_bytes(start..start + rows),
                ..weight
            };
            let bias = Tensor {
                shape: &shapes.1,
                bytes: bias.row_bytes(start..start + rows),
                ..bias
            };
            Linear::pack_with_bias(self.pool, &[weight], &bias)
        };
        Ok(Projections {
            query: part(0, width)?,
            memory: part(width, 2 * width)?,
            out: self.linear(&format!("{at}.out_proj"))?,
        })
    }

    fn feedforward(&self, [first, second]: [&str; 2]) -> Result<FeedForward, LoadError> {
        Ok(FeedForward {
            first: self.linear(first)?,
            second: self.linear(second)?,
        })
    }

    fn linear(&self, at: &str) -> Result<Linear, LoadError> {
        let weight = self.weights.tensor(&format!("{at}.weight"))?;
        let bias = self.weights.tensor(&format!("{at}.bias"))?;
        Linear::pack_with_bias(self.pool, &[weight], &bias)
    }

    /// One of the six maps from hidden rows, which have no bias.
    fn projection(&self, at: &str) -> Result<Linear, LoadError> {
        Linear::pack(self.pool, &[self.weights.tensor(&format!("{at}.weight"))?])
    }

    fn norm(&self, at: &str) -> Result<LayerNorm, LoadError> {
        LayerNorm::load(self.weights, at)
    }

    fn scale(&self, name: &str) -> Result<f64, LoadError> {
        Ok(self.scalar(name)?.min(SCALE_MAX.ln()).exp())
    }

    fn scalar(&self, name: &str) -> Result<f64, LoadError> {
        Ok(f64::from(self.weights.tensor(name)?.to_f32()?[0]))
    }
}

/// The greatest factor of a cosine.
const SCALE_MAX: f64 = 100.0;
