//! What the head knows, on the device.
//!
//! Linear maps keep the file's values: bf16, or f32 where bf16 would not be exact. The memory projection, which multiplies
//! many rows, is kept as f16 times a power of two: one part holds a bf16 (or f16) weight exactly unless it is below 2^-38 of
//! the greatest, two hold 22 bits of an f32 weight.

use std::ops::Range;

use descant_model::HeadWeights;
use descant_release::{Dtype, HeadConfig, Tensor};
use half::f16;

use crate::driver::{Arena, Block, Gpu};
use crate::error::CudaError;
use crate::launch::WeightBlock;

/// All weights of a head.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) hidden_norm: Norm,
    /// What normed hidden rows are multiplied by, so that the greatest possible value lies in 2^13 .. 2^14.
    pub(super) hidden_factor: f32,
    pub(super) memory: Projection,
    pub(super) question: Linear,
    pub(super) option_question: Linear,
    pub(super) global: Linear,
    pub(super) option_context: Linear,
    pub(super) option_lexical: Linear,
    /// A row a kind of question, `[3, W]`
    pub(super) types: Block<f32>,
    pub(super) evidence: Vec<EvidenceLayer>,
    pub(super) summary_norm: Norm,
    pub(super) decoder: Vec<DecoderLayer>,
    pub(super) field_norm: Norm,
    pub(super) option_norm: Norm,
    /// 4 W to W to 1, without a norm.
    pub(super) scorer: [Linear; 2],
    /// `exp(min(prior_logit_scale, ln 100))`
    pub(super) prior_scale: f64,
    /// `exp(min(joint_logit_scale, ln 100))`
    pub(super) joint_scale: f64,
    /// `sigmoid(residual_gate)`
    pub(super) gate: f64,
}

/// A LayerNorm.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Block<f32>,
    bias: Block<f32>,
}

impl Norm {
    /// Weight and bias.
    pub(super) fn both(&self) -> [&Block<f32>; 2] {
        [&self.weight, &self.bias]
    }
}

/// The projection of the memory rows.
#[derive(Debug)]
pub(super) struct Projection {
    /// `[W, hidden pitch]`, times 2^-exponent of `scale`.
    pub(super) high: Block<u16>,
    pub(super) low: Option<Block<u16>>,
    /// What a product is multiplied by.
    pub(super) scale: f32,
}

/// A linear map of few rows; rows of weights lie at multiples of 32 values.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    pub(super) weight: WeightBlock,
    pub(super) bias: Option<Block<f32>>,
    /// What the rows go through first.
    pub(super) norm: Option<Folded>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Linear {
    /// Some of its outputs.
    fn part(&self, rows: Range<usize>) -> Linear {
        let pitch = self.inputs.next_multiple_of(32);
        Linear {
            weight: self.weight.part(rows.start * pitch..rows.end * pitch),
            bias: self.bias.as_ref().map(|bias| bias.part(rows.clone())),
            norm: None,
            inputs: self.inputs,
            outputs: rows.len(),
        }
    }
}

/// A LayerNorm of which only what depends on the row is left to do; see `Map` in the kernel.
#[derive(Clone, Debug)]
pub(super) struct Folded {
    pub(super) weight: Block<f32>,
    /// `[2, outputs]`: of each output the sum of its weights times the norm's, and of its weights times the norm's bias and its
    /// own.
    pub(super) sums: Block<f64>,
}

/// A layer in which the options read the memory.
#[derive(Debug)]
pub(super) struct EvidenceLayer {
    pub(super) memory_norm: Norm,
    pub(super) attention: Attention,
    pub(super) feedforward: FeedForward,
}

/// A layer in which the questions read each other and the memory.
#[derive(Debug)]
pub(super) struct DecoderLayer {
    pub(super) self_attention: SelfAttention,
    pub(super) cross_attention: Attention,
    pub(super) feedforward: FeedForward,
}

/// The linear maps of rows that attend one another.
#[derive(Debug)]
pub(super) struct SelfAttention {
    /// Queries, keys, values of normed rows, `[3 W, W]`
    pub(super) all: Linear,
    pub(super) out: Linear,
}

/// The linear maps of rows that attend the memory.
#[derive(Debug)]
pub(super) struct Attention {
    /// Of normed rows.
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) out: Linear,
}

/// Linear, GELU, linear, of normed rows.
#[derive(Debug)]
pub(super) struct FeedForward {
    pub(super) first: Linear,
    pub(super) second: Linear,
}

impl Weights {
    pub(super) fn load(
        gpu: &Gpu,
        config: &HeadConfig,
        weights: &dyn HeadWeights,
    ) -> Result<Weights, CudaError> {
        let load = Loader { gpu, weights };
        let evidence = (0..config.routing_layers)
            .map(|layer| load.evidence(&format!("evidence_layers.{layer}")));
        let decoder = (0..config.layers).map(|layer| load.decoder(&format!("layers.{layer}")));
        let loaded = Weights {
            hidden_norm: load.norm("hidden_norm")?,
            hidden_factor: load.hidden_factor()?,
            memory: load.memory_projection()?,
            question: load.projection("question_projection")?,
            option_question: load.projection("option_question_projection")?,
            global: load.projection("global_projection")?,
            option_context: load.projection("option_context_projection")?,
            option_lexical: load.projection("option_lexical_projection")?,
            types: load.vector("type_embedding.weight")?,
            evidence: evidence.collect::<Result<_, _>>()?,
            summary_norm: load.norm("option_summary_norm")?,
            decoder: decoder.collect::<Result<_, _>>()?,
            field_norm: load.norm("field_norm")?,
            option_norm: load.norm("option_norm")?,
            scorer: [
                load.linear("residual_scorer.0")?,
                load.linear("residual_scorer.3")?,
            ],
            prior_scale: load.scale("prior_logit_scale")?,
            joint_scale: load.scale("joint_logit_scale")?,
            gate: 1.0 / (1.0 + (-load.scalar("residual_gate")?).exp()),
        };
        gpu.wait()?;
        Ok(loaded)
    }

    /// Bytes of all weights of a head of these sizes in bf16; maps in f32 take twice as much.
    pub(super) fn bytes(config: &HeadConfig) -> usize {
        let (h, w, ff) = (config.hidden, config.width, config.feedforward);
        let map = |outputs: usize, inputs: usize| 2 * outputs * inputs.next_multiple_of(32);
        let attention = map(4 * w, w);
        let feedforward = map(ff, w) + map(w, ff);
        let layers = config.routing_layers * (attention + feedforward)
            + config.layers * (2 * attention + feedforward);
        // Vectors are a few per mille; each tensor begins at a multiple of the allocator's.
        let vectors =
            4 * (2 * h + (config.routing_layers + config.layers) * (16 * w + ff) + 16 * w);
        6 * map(w, h) + layers + map(w, 4 * w) + map(1, w) + vectors
    }
}

struct Loader<'a> {
    gpu: &'a Gpu,
    weights: &'a dyn HeadWeights,
}

impl Loader<'_> {
    fn evidence(&self, at: &str) -> Result<EvidenceLayer, CudaError> {
        Ok(EvidenceLayer {
            memory_norm: self.norm(&format!("{at}.memory_norm"))?,
            attention: self.attention(&format!("{at}.attention"), &format!("{at}.query_norm"))?,
            feedforward: self.feedforward(
                &format!("{at}.feedforward_norm"),
                [
                    &format!("{at}.feedforward.0"),
                    &format!("{at}.feedforward.3"),
                ],
            )?,
        })
    }

    fn decoder(&self, at: &str) -> Result<DecoderLayer, CudaError> {
        let self_attention = format!("{at}.self_attn");
        Ok(DecoderLayer {
            self_attention: SelfAttention {
                all: Linear {
                    norm: Some(self.fold(
                        &format!("{at}.norm1"),
                        [
                            &format!("{self_attention}.in_proj_weight"),
                            &format!("{self_attention}.in_proj_bias"),
                        ],
                        None,
                    )?),
                    ..self.packed(&self_attention)?
                },
                out: self.linear(&format!("{self_attention}.out_proj"))?,
            },
            cross_attention: self
                .attention(&format!("{at}.multihead_attn"), &format!("{at}.norm2"))?,
            feedforward: self.feedforward(
                &format!("{at}.norm3"),
                [&format!("{at}.linear1"), &format!("{at}.linear2")],
            )?,
        })
    }

    /// Queries, keys and values of a packed attention.
    fn packed(&self, at: &str) -> Result<Linear, CudaError> {
        let weight = self.weights.tensor(&format!("{at}.in_proj_weight"))?;
        Ok(Linear {
            weight: self.matrix(&weight)?,
            bias: Some(self.vector(&format!("{at}.in_proj_bias"))?),
            norm: None,
            inputs: weight.shape[1],
            outputs: weight.shape[0],
        })
    }

    /// The maps of a packed attention: a third of it each for queries, of rows that `norm` norms, keys and values.
    fn attention(&self, at: &str, norm: &str) -> Result<Attention, CudaError> {
        let all = self.packed(at)?;
        let width = all.inputs;
        let folded = self.fold(
            norm,
            [
                &format!("{at}.in_proj_weight"),
                &format!("{at}.in_proj_bias"),
            ],
            Some(0..width),
        )?;
        Ok(Attention {
            query: Linear {
                norm: Some(folded),
                ..all.part(0..width)
            },
            key: all.part(width..2 * width),
            value: all.part(2 * width..3 * width),
            out: self.linear(&format!("{at}.out_proj"))?,
        })
    }

    /// Two maps, the first of rows that `norm` norms.
    fn feedforward(
        &self,
        norm: &str,
        [first, second]: [&str; 2],
    ) -> Result<FeedForward, CudaError> {
        let folded = self.fold(
            norm,
            [&format!("{first}.weight"), &format!("{first}.bias")],
            None,
        )?;
        Ok(FeedForward {
            first: Linear {
                norm: Some(folded),
                ..self.linear(first)?
            },
            second: self.linear(second)?,
        })
    }

    /// The sums of a norm before a map, by the host, in f64.
    fn fold(
        &self,
        norm: &str,
        [weight, bias]: [&str; 2],
        outputs: Option<Range<usize>>,
    ) -> Result<Folded, CudaError> {
        let vector = |name: &str| -> Result<Vec<f32>, CudaError> {
            Ok(self.weights.tensor(name)?.to_f32()?)
        };
        let (scale, shift) = (
            vector(&format!("{norm}.weight"))?,
            vector(&format!("{norm}.bias"))?,
        );
        let (weight, bias) = (self.weights.tensor(weight)?, vector(bias)?);
        let outputs = outputs.unwrap_or(0..weight.shape[0]);
        let (mut scaled, mut shifted) = (Vec::new(), Vec::new());
        let mut row = vec![0.0; scale.len()];
        for output in outputs {
            weight.copy_rows_f32_into(output..output + 1, &mut row);
            let sum_with = |other: &[f32]| -> f64 {
                let terms = row.iter().zip(other);
                terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            scaled.push(sum_with(&scale));
            shifted.push(sum_with(&shift) + f64::from(bias[output]));
        }
        scaled.extend(shifted);
        Ok(Folded {
            weight: self.upload(&scale)?,
            sums: self.upload(&scaled)?,
        })
    }

    fn linear(&self, at: &str) -> Result<Linear, CudaError> {
        Ok(Linear {
            bias: Some(self.vector(&format!("{at}.bias"))?),
            ..self.projection(at)?
        })
    }

    /// One of the maps without a bias.
    fn projection(&self, at: &str) -> Result<Linear, CudaError> {
        let weight = self.weights.tensor(&format!("{at}.weight"))?;
        Ok(Linear {
            weight: self.matrix(&weight)?,
            bias: None,
            norm: None,
            inputs: weight.shape[1],
            outputs: weight.shape[0],
        })
    }

    /// A matrix, its rows filled up with zeros to a multiple of 32 values.
    fn matrix(&self, tensor: &Tensor<'_>) -> Result<WeightBlock, CudaError> {
        let (rows, width) = (tensor.shape[0], tensor.shape[1]);
        let pitch = width.next_multiple_of(32);
        if tensor.dtype == Dtype::BF16 {
            let block = self.take(rows * pitch)?;
            self.gpu
                .upload_lines(&block, tensor.bytes, 2 * width, 2 * pitch)?;
            return Ok(WeightBlock::Half(block));
        }
        let mut values = vec![0.0; rows * pitch];
        let from = tensor.to_f32()?;
        for (to, from) in values.chunks_exact_mut(pitch).zip(from.chunks_exact(width)) {
            to[..width].copy_from_slice(from);
        }
        Ok(WeightBlock::Single(self.upload(&values)?))
    }

    fn memory_projection(&self) -> Result<Projection, CudaError> {
        let tensor = self.weights.tensor("memory_projection.weight")?;
        let (rows, width) = (tensor.shape[0], tensor.shape[1]);
        let pitch = width.next_multiple_of(8);
        let values = tensor.to_f32()?;
        let max = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let factor = lift(max);
        let (mut high, mut low) = (vec![0; rows * pitch], vec![0; rows * pitch]);
        for (at, value) in values.into_iter().enumerate() {
            let (at, value) = (at / width * pitch + at % width, value * factor);
            let top = f16::from_f32(value);
            high[at] = top.to_bits();
            low[at] = f16::from_f32(value - top.to_f32()).to_bits();
        }
        // Minus zero is none either.
        let low = match low.iter().any(|bits| bits & 0x7FFF != 0) {
            true => Some(self.upload(&low)?),
            false => None,
        };
        Ok(Projection {
            high: self.upload(&high)?,
            low,
            scale: 1.0 / factor,
        })
    }

    /// The factor of normed hidden rows: no row of a LayerNorm is longer than the root of its width before the weights.
    fn hidden_factor(&self) -> Result<f32, CudaError> {
        let greatest = |name: &str| -> Result<f32, CudaError> {
            let values = self.weights.tensor(name)?.to_f32()?;
            Ok(values.iter().fold(0.0, |max, x| x.abs().max(max)))
        };
        let width = self.weights.tensor("hidden_norm.weight")?.len() as f32;
        Ok(lift(
            width.sqrt() * greatest("hidden_norm.weight")? + greatest("hidden_norm.bias")?,
        ))
    }

    fn norm(&self, at: &str) -> Result<Norm, CudaError> {
        Ok(Norm {
            weight: self.vector(&format!("{at}.weight"))?,
            bias: self.vector(&format!("{at}.bias"))?,
        })
    }

    fn vector(&self, name: &str) -> Result<Block<f32>, CudaError> {
        self.upload(&self.weights.tensor(name)?.to_f32()?)
    }

    fn scale(&self, name: &str) -> Result<f64, CudaError> {
        Ok(self.scalar(name)?.min(SCALE_MAX.ln()).exp())
    }

    fn scalar(&self, name: &str) -> Result<f64, CudaError> {
        Ok(f64::from(self.weights.tensor(name)?.to_f32()?[0]))
    }

    fn take<T: crate::driver::Plain>(&self, len: usize) -> Result<Block<T>, CudaError> {
        let mut arena = Arena::new(self.gpu, "the head's weights", Arena::bytes_for::<T>(len))?;
        Ok(arena.take(len))
    }

    fn upload<T: crate::driver::Plain>(&self, values: &[T]) -> Result<Block<T>, CudaError> {
        let block = self.take(values.len())?;
        self.gpu.upload(&block, values)?;
        Ok(block)
    }
}

/// The power of two that brings a maximum to 2^13 .. 2^14, so that it is below f16's greatest and small values keep their bits;
/// 1 for zero and for what is not finite.
fn lift(max: f32) -> f32 {
    match max > 0.0 && max.is_finite() {
        true => 2.0_f32.powi((13 - max.log2().floor() as i32).clamp(-100, 100)),
        false => 1.0,
    }
}

/// The greatest factor of a cosine.
const SCALE_MAX: f64 = 100.0;
