//! What the model knows: its weights, packed once into one arena.

use descant_model::CHUNK_ROWS;
use descant_release::{LayerKind, LoadError, ModelConfig, Release, Tensor};

use crate::arch::{Arena, Pool};
use crate::linear::{Form, Linear, Source, exact_form};
use crate::ops::Precision;
use crate::ops::conv::Taps;
use crate::ops::norm::RmsNorm;

/// All layers and the final norm.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) layers: Vec<LayerWeights>,
    pub(super) norm: RmsNorm,
}

/// A layer: `h += Mixer(norm h); h += MLP(norm h)`.
#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) mixer_norm: RmsNorm,
    pub(super) mixer: Mixer,
    pub(super) mlp_norm: RmsNorm,
    /// `[2 · intermediate, H]`: gate, then up.
    pub(super) gate_up: Linear,
    /// `[H, intermediate]`.
    pub(super) down: Linear,
}

#[derive(Debug)]
pub(super) enum Mixer {
    Attention(AttentionWeights),
    Delta(DeltaWeights),
}

#[derive(Debug)]
pub(super) struct AttentionWeights {
    /// `[2 · heads · D + 2 · kv_heads · D, H]`: per head query and gate, then keys, then values.
    pub(super) inputs: Linear,
    /// `[D]`
    pub(super) query_norm: RmsNorm,
    /// `[D]`
    pub(super) key_norm: RmsNorm,
    /// `[H, heads · D]`
    pub(super) output: Linear,
}

#[derive(Debug)]
pub(super) struct DeltaWeights {
    /// `[channels + value_heads · V + 2 · value_heads, H]`: queries, keys, values, then z, b, a.
    pub(super) inputs: Linear,
    pub(super) taps: Taps,
    /// `[value_heads]`: `−e^(A_log)`.
    pub(super) rates: Vec<f32>,
    /// `[value_heads]`: `dt_bias`.
    pub(super) biases: Vec<f32>,
    /// `[V]`
    pub(super) norm: RmsNorm,
    /// `[H, value_heads · V]`
    pub(super) output: Linear,
}

impl Weights {
    /// Packs a release's backbone. The linear maps go straight from the mapped files into one arena.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if there is no memory.
    pub(super) fn load(
        release: &Release,
        precision: Precision,
        pool: &Pool,
    ) -> Result<Weights, LoadError> {
        let reader = Reader { release, precision };
        let mut packer = Packer::new(&reader, pool)?;
        let mut layers = Vec::new();
        for (index, kind) in release.config().layers.iter().enumerate() {
            layers.push(reader.layer(&mut packer, index, *kind)?);
            // What was packed is not read again; its pages need not stay.
            release.discard_pages();
        }
        Ok(Weights {
            layers,
            norm: reader.norm("norm.weight")?,
        })
    }

    /// Bytes of the packed linear maps, if the file keeps them as bf16.
    pub(super) fn bytes(config: &ModelConfig) -> usize {
        let shapes = config.layers.iter().flat_map(|kind| shapes(config, *kind));
        shapes
            .map(|(outputs, inputs)| Linear::bytes(Form::Pairs, outputs, inputs))
            .sum()
    }
}

/// Outputs and inputs of a layer's four linear maps.
fn shapes(config: &ModelConfig, kind: LayerKind) -> [(usize, usize); 4] {
    let (attention, linear) = (&config.attention, &config.linear);
    let (queries, keys) = (
        attention.heads * attention.head_dim,
        attention.kv_heads * attention.head_dim,
    );
    let values = linear.value_heads * linear.value_dim;
    let (inputs, outputs) = match kind {
        LayerKind::FullAttention => (2 * queries + 2 * keys, queries),
        LayerKind::LinearAttention => (
            linear.conv_channels() + values + 2 * linear.value_heads,
            values,
        ),
    };
    [
        (inputs, config.hidden),
        (config.hidden, outputs),
        (2 * config.intermediate, config.hidden),
        (config.hidden, config.intermediate),
    ]
}

/// Names of the tensors of a layer's four linear maps, each stacked from one or more.
fn names(kind: LayerKind) -> [&'static [&'static str]; 4] {
    let (inputs, output): (&[&str], &[&str]) = match kind {
        LayerKind::FullAttention => (
            &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            &["self_attn.o_proj"],
        ),
        LayerKind::LinearAttention => (
            &[
                "linear_attn.in_proj_qkv",
                "linear_attn.in_proj_z",
                "linear_attn.in_proj_b",
                "linear_attn.in_proj_a",
            ],
            &["linear_attn.out_proj"],
        ),
    };
    [
        inputs,
        output,
        &["mlp.gate_proj", "mlp.up_proj"],
        &["mlp.down_proj"],
    ]
}

/// Reads small tensors of a release.
struct Reader<'a> {
    release: &'a Release,
    precision: Precision,
}

impl<'a> Reader<'a> {
    /// A tensor as f32; in bf16 its values are rounded, as the reference's cast does.
    fn values(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let mut values = self.release.backbone_tensor(name)?.to_f32()?;
        if self.precision.is_bf16() {
            values
                .iter_mut()
                .for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        }
        Ok(values)
    }

    /// A norm that multiplies by `1 + w`.
    fn norm(&self, name: &str) -> Result<RmsNorm, LoadError> {
        let mut norm = self.plain_norm(name)?;
        norm.weight.iter_mut().for_each(|w| *w += 1.0);
        Ok(norm)
    }

    /// A norm that multiplies by `w`.
    fn plain_norm(&self, name: &str) -> Result<RmsNorm, LoadError> {
        Ok(RmsNorm {
            weight: self.values(name)?,
            eps: self.release.config().norm_eps,
        })
    }

    fn tensors(&self, layer: usize, names: &[&str]) -> Result<Vec<Tensor<'a>>, LoadError> {
        names
            .iter()
            .map(|name| {
                self.release
                    .backbone_tensor(&format!("layers.{layer}.{name}.weight"))
            })
            .collect()
    }

    fn layer(
        &self,
        packer: &mut Packer<'_>,
        layer: usize,
        kind: LayerKind,
    ) -> Result<LayerWeights, LoadError> {
        let [inputs, output, gate_up, down] =
            names(kind).map(|names| packer.pack(self, layer, names));
        let (inputs, output) = (inputs?, output?);
        let at = format!("layers.{layer}");
        let mixer = match kind {
            LayerKind::FullAttention => Mixer::Attention(AttentionWeights {
                inputs,
                query_norm: self.norm(&format!("{at}.self_attn.q_norm.weight"))?,
                key_norm: self.norm(&format!("{at}.self_attn.k_norm.weight"))?,
                output,
            }),
            LayerKind::LinearAttention => {
                let kernel = self.release.config().linear.conv_kernel;
                let rates = self.values(&format!("{at}.linear_attn.A_log"))?;
                Mixer::Delta(DeltaWeights {
                    inputs,
                    taps: Taps::new(
                        &self.values(&format!("{at}.linear_attn.conv1d.weight"))?,
                        kernel,
                    ),
                    rates: rates
                        .into_iter()
                        .map(|rate| -(f64::from(rate).exp() as f32))
                        .collect(),
                    biases: self.values(&format!("{at}.linear_attn.dt_bias"))?,
                    norm: self.plain_norm(&format!("{at}.linear_attn.norm.weight"))?,
                    output,
                })
            }
        };
        Ok(LayerWeights {
            mixer_norm: self.norm(&format!("{at}.input_layernorm.weight"))?,
            mixer,
            mlp_norm: self.norm(&format!("{at}.post_attention_layernorm.weight"))?,
            gate_up: gate_up?,
            down: down?,
        })
    }
}

/// Packs linear maps, in the order in which it measured them.
struct Packer<'a> {
    pool: &'a Pool,
    arena: Arena,
    forms: std::vec::IntoIter<Form>,
}

impl<'a> Packer<'a> {
    /// Allocates for all linear maps of the backbone.
    fn new(reader: &Reader<'_>, pool: &'a Pool) -> Result<Packer<'a>, LoadError> {
        let (mut forms, mut bytes) = (Vec::new(), 0usize);
        for (layer, kind) in reader.release.config().layers.iter().enumerate() {
            for names in names(*kind) {
                let tensors = reader.tensors(layer, names)?;
                let source = Source::new(&tensors);
                let form = match reader.precision {
                    Precision::Bf16 => Form::PairsFlushed,
                    Precision::F32 => exact_form(pool, &source),
                };
                bytes =
                    bytes.saturating_add(Linear::bytes(form, source.outputs(), source.inputs()));
                forms.push(form);
            }
        }
        Ok(Packer {
            pool,
            arena: Arena::new("weights", bytes)?,
            forms: forms.into_iter(),
        })
    }

    fn pack(
        &mut self,
        reader: &Reader<'_>,
        layer: usize,
        names: &[&str],
    ) -> Result<Linear, LoadError> {
        let tensors = reader.tensors(layer, names)?;
        let form = self.forms.next().expect("`new` walked over the same maps");
        Ok(Linear::pack_into(
            self.pool,
            &mut self.arena,
            &Source::new(&tensors),
            form,
        ))
    }
}

// Pieces of a prompt begin at chunks, so the attention's blocks of keys need no other border.
const _: () = assert!(CHUNK_ROWS.is_multiple_of(crate::ops::attention::KEY_BLOCK));

/// Packs the output embedding.
///
/// # Errors
/// [`LoadError::Memory`] if there is no memory.
pub(super) fn pack_lm_head(
    release: &Release,
    precision: Precision,
    pool: &Pool,
) -> Result<Linear, LoadError> {
    let tensors = [release.output_embedding()?];
    let source = Source::new(&tensors);
    let form = match precision {
        Precision::Bf16 => Form::PairsFlushed,
        Precision::F32 => exact_form(pool, &source),
    };
    let mut arena = Arena::new(
        "LM head",
        Linear::bytes(form, source.outputs(), source.inputs()),
    )?;
    let linear = Linear::pack_into(pool, &mut arena, &source, form);
    release.discard_pages();
    Ok(linear)
}
