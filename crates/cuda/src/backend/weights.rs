//! What the model knows: its weights on the device, from a release's files or made there.
//!
//! Linear maps that read the same rows are one: queries, keys and values; the delta net's four; gate and up, in turns of 8 rows,
//! so that SwiGLU can follow in a product's registers. Outputs are filled up to a multiple of 8 with zero rows.

use descant_release::{
    AttentionConfig, Dtype, LayerKind, LinearConfig, ModelConfig, Release, Tensor,
};

use crate::driver::{Arena, Block, Gpu, Staging};
use crate::error::CudaError;
use crate::launch::Kernels;

/// All layers, both embeddings and the final norm.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab, H]`, filled up.
    pub(crate) embedding: Block<u16>,
    pub(crate) layers: Vec<LayerWeights>,
    /// `[H]`, as `1 + w`.
    pub(crate) norm: Block<f32>,
    pub(crate) lm_head: Linear,
}

/// A linear map: `[outputs, inputs]` bf16.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Block<u16>,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

/// A layer: `h += Mixer(norm h); h += MLP(norm h)`.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    /// `[H]`, as `1 + w`.
    pub(crate) mixer_norm: Block<f32>,
    pub(crate) mixer: Mixer,
    /// `[H]`, as `1 + w`.
    pub(crate) mlp_norm: Block<f32>,
    /// `[2 · intermediate, H]`: 8 rows of the gate, 8 of up, and so on.
    pub(crate) gate_up: Linear,
    /// `[H, intermediate]`.
    pub(crate) down: Linear,
}

#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(AttentionWeights),
    Delta(DeltaWeights),
}

#[derive(Debug)]
pub(crate) struct AttentionWeights {
    /// Per head query and gate, then keys, then values.
    pub(crate) inputs: Linear,
    /// `[D]`, as `1 + w`.
    pub(crate) query_norm: Block<f32>,
    /// `[D]`, as `1 + w`.
    pub(crate) key_norm: Block<f32>,
    /// `[H, heads · D]`.
    pub(crate) output: Linear,
}

#[derive(Debug)]
pub(crate) struct DeltaWeights {
    /// Queries, keys, values, then z, b, a.
    pub(crate) inputs: Linear,
    /// `[4, channels]`, oldest first; taps that the kernel has not are zero.
    pub(crate) taps: Block<f32>,
    /// `[value_heads]`: `−e^(A_log)`.
    pub(crate) rates: Block<f32>,
    /// `[value_heads]`: `dt_bias`.
    pub(crate) biases: Block<f32>,
    /// `[V]`.
    pub(crate) norm: Block<f32>,
    /// `[H, value_heads · V]`.
    pub(crate) output: Linear,
}

/// Width of a projected row of full attention.
pub(crate) fn attention_width(config: &AttentionConfig) -> usize {
    2 * (config.heads + config.kv_heads) * config.head_dim
}

/// Width of a projected row of the delta net, filled up.
pub(crate) fn delta_width(config: &LinearConfig) -> usize {
    (config.conv_channels() + config.value_heads * config.value_dim + 2 * config.value_heads)
        .next_multiple_of(8)
}

/// Outputs and inputs of a layer's four linear maps.
fn shapes(config: &ModelConfig, kind: LayerKind) -> [[usize; 2]; 4] {
    let (attention, linear) = (&config.attention, &config.linear);
    let (inputs, outputs) = match kind {
        LayerKind::FullAttention => (
            attention_width(attention),
            attention.heads * attention.head_dim,
        ),
        LayerKind::LinearAttention => (delta_width(linear), linear.value_heads * linear.value_dim),
    };
    [
        [inputs, config.hidden],
        [config.hidden, outputs],
        [2 * config.intermediate, config.hidden],
        [config.hidden, config.intermediate],
    ]
}

/// Lengths of a layer's vectors: two norms, then those of its mixer.
fn vectors(config: &ModelConfig, kind: LayerKind) -> Vec<usize> {
    let (attention, linear) = (&config.attention, &config.linear);
    let mixer = match kind {
        LayerKind::FullAttention => vec![attention.head_dim; 2],
        LayerKind::LinearAttention => vec![
            4 * linear.conv_channels(),
            linear.value_heads,
            linear.value_heads,
            linear.value_dim,
        ],
    };
    [vec![config.hidden; 2], mixer].concat()
}

impl Weights {
    /// Bytes of all weights.
    pub(crate) fn bytes(config: &ModelConfig) -> usize {
        let embeddings = if config.tied { 1 } else { 2 };
        let mut bytes =
            embeddings * Arena::bytes_for::<u16>(config.vocab.next_multiple_of(8) * config.hidden);
        bytes += Arena::bytes_for::<f32>(config.hidden);
        for kind in &config.layers {
            bytes += shapes(config, *kind)
                .iter()
                .map(|[n, k]| Arena::bytes_for::<u16>(n * k))
                .sum::<usize>();
            bytes += vectors(config, *kind)
                .iter()
                .map(|len| Arena::bytes_for::<f32>(*len))
                .sum::<usize>();
        }
        bytes
    }

    /// Copies a release's backbone to the device.
    pub(crate) fn load(
        gpu: &Gpu,
        config: &ModelConfig,
        release: &Release,
    ) -> Result<Weights, CudaError> {
        let mut store = Store::new(gpu, config)?;
        let mut reader = Reader {
            gpu,
            release,
            staging: Staging::new(gpu)?,
        };
        let vocab = config.vocab.next_multiple_of(8);
        let embedding = store.linear(vocab, config.hidden);
        reader.rows(&embedding, 0, &release.embedding()?)?;
        let lm_head = match config.tied {
            true => embedding.clone(),
            false => {
                let lm_head = store.linear(vocab, config.hidden);
                reader.rows(&lm_head, 0, &release.output_embedding()?)?;
                lm_head
            }
        };
        let mut layers = Vec::with_capacity(config.layers.len());
        for (index, kind) in config.layers.iter().enumerate() {
            let weights = store.layer(config, *kind);
            reader.layer(config, index, &weights)?;
            layers.push(weights);
            // What was copied is not read again; its pages need not stay.
            release.discard_pages();
        }
        let norm = store.vector(config.hidden);
        reader.norm(&norm, "norm.weight")?;
        Ok(Weights {
            embedding: embedding.weight,
            layers,
            norm,
            lm_head,
        })
    }

    /// Makes random weights on the device: linear maps that keep the size of what goes through them, norms near one.
    pub(crate) fn dummy(
        gpu: &Gpu,
        kernels: &Kernels,
        config: &ModelConfig,
        seed: u32,
    ) -> Result<Weights, CudaError> {
        let mut store = Store::new(gpu, config)?;
        let mut maker = Maker { gpu, kernels, seed };
        let vocab = config.vocab.next_multiple_of(8);
        let embedding = store.linear(vocab, config.hidden);
        maker.values(&embedding.weight, 1.0)?;
        let lm_head = match config.tied {
            true => embedding.clone(),
            false => {
                let lm_head = store.linear(vocab, config.hidden);
                maker.linear(&lm_head)?;
                lm_head
            }
        };
        let mut layers = Vec::with_capacity(config.layers.len());
        for kind in &config.layers {
            let weights = store.layer(config, *kind);
            maker.layer(&weights)?;
            layers.push(weights);
        }
        let norm = store.vector(config.hidden);
        maker.vector(&norm, (0.1, 1.0))?;
        Ok(Weights {
            embedding: embedding.weight,
            layers,
            norm,
            lm_head,
        })
    }
}

/// One allocation for all weights.
struct Store {
    arena: Arena,
}

impl Store {
    fn new(gpu: &Gpu, config: &ModelConfig) -> Result<Store, CudaError> {
        Ok(Store {
            arena: Arena::new(gpu, "weights", Weights::bytes(config))?,
        })
    }

    fn linear(&mut self, outputs: usize, inputs: usize) -> Linear {
        Linear {
            weight: self.arena.take(outputs * inputs),
            outputs,
            inputs,
        }
    }

    fn vector(&mut self, len: usize) -> Block<f32> {
        self.arena.take(len)
    }

    /// Room for a layer's weights; all zero.
    fn layer(&mut self, config: &ModelConfig, kind: LayerKind) -> LayerWeights {
        let [inputs, output, gate_up, down] = shapes(config, kind).map(|[n, k]| self.linear(n, k));
        let mut vectors = vectors(config, kind)
            .into_iter()
            .map(|len| self.vector(len));
        let mut next = || vectors.next().expect("`vectors` lists a layer's");
        let (mixer_norm, mlp_norm) = (next(), next());
        let mixer = match kind {
            LayerKind::FullAttention => Mixer::Attention(AttentionWeights {
                inputs,
                query_norm: next(),
                key_norm: next(),
                output,
            }),
            LayerKind::LinearAttention => Mixer::Delta(DeltaWeights {
                inputs,
                taps: next(),
                rates: next(),
                biases: next(),
                norm: next(),
                output,
            }),
        };
        LayerWeights {
            mixer_norm,
            mixer,
            mlp_norm,
            gate_up,
            down,
        }
    }
}

/// Copies tensors of a release.
struct Reader<'a> {
    gpu: &'a Gpu,
    release: &'a Release,
    staging: Staging<'a>,
}

impl Reader<'_> {
    fn layer(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        weights: &LayerWeights,
    ) -> Result<(), CudaError> {
        let at = format!("layers.{layer}");
        self.norm(&weights.mixer_norm, &format!("{at}.input_layernorm.weight"))?;
        self.norm(
            &weights.mlp_norm,
            &format!("{at}.post_attention_layernorm.weight"),
        )?;
        for (turn, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let tensor = self
                .release
                .backbone_tensor(&format!("{at}.mlp.{name}.weight"))?;
            self.turns(&weights.gate_up, turn, &tensor)?;
        }
        self.rows(
            &weights.down,
            0,
            &self
                .release
                .backbone_tensor(&format!("{at}.mlp.down_proj.weight"))?,
        )?;
        match &weights.mixer {
            Mixer::Attention(mixer) => {
                let at = format!("{at}.self_attn");
                self.stack(&mixer.inputs, &at, &["q_proj", "k_proj", "v_proj"])?;
                self.stack(&mixer.output, &at, &["o_proj"])?;
                self.norm(&mixer.query_norm, &format!("{at}.q_norm.weight"))?;
                self.norm(&mixer.key_norm, &format!("{at}.k_norm.weight"))
            }
            Mixer::Delta(mixer) => {
                let at = format!("{at}.linear_attn");
                self.stack(
                    &mixer.inputs,
                    &at,
                    &["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"],
                )?;
                self.stack(&mixer.output, &at, &["out_proj"])?;
                self.taps(&mixer.taps, &config.linear, &format!("{at}.conv1d.weight"))?;
                let rates = self.values(&format!("{at}.A_log"))?;
                let rates: Vec<f32> = rates
                    .into_iter()
                    .map(|rate| -(f64::from(rate).exp() as f32))
                    .collect();
                self.gpu.upload(&mixer.rates, &rates)?;
                self.gpu
                    .upload(&mixer.biases, &self.values(&format!("{at}.dt_bias"))?)?;
                self.gpu
                    .upload(&mixer.norm, &self.values(&format!("{at}.norm.weight"))?)
            }
        }
    }

    /// A tensor as f32, rounded to bf16, as the reference's cast does.
    fn values(&self, name: &str) -> Result<Vec<f32>, CudaError> {
        let mut values = self.release.backbone_tensor(name)?.to_f32()?;
        values
            .iter_mut()
            .for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        Ok(values)
    }

    /// A norm that multiplies by `1 + w`.
    fn norm(&self, to: &Block<f32>, name: &str) -> Result<(), CudaError> {
        let values: Vec<f32> = self.values(name)?.into_iter().map(|w| 1.0 + w).collect();
        self.gpu.upload(to, &values)
    }

    /// The taps of all channels, `[channels, 1, kernel]` in the file.
    fn taps(&self, to: &Block<f32>, config: &LinearConfig, name: &str) -> Result<(), CudaError> {
        let (channels, kernel) = (config.conv_channels(), config.conv_kernel);
        let mut taps = vec![0.0; 4 * channels];
        for (at, tap) in self.values(name)?.into_iter().enumerate() {
            let (channel, k) = (at / kernel, at % kernel);
            taps[(4 - kernel + k) * channels + channel] = tap;
        }
        self.gpu.upload(to, &taps)
    }

    /// Linear maps one below the other.
    fn stack(&mut self, to: &Linear, at: &str, names: &[&str]) -> Result<(), CudaError> {
        let mut row = 0;
        for name in names {
            let tensor = self
                .release
                .backbone_tensor(&format!("{at}.{name}.weight"))?;
            self.rows(to, row, &tensor)?;
            row += tensor.shape[0];
        }
        Ok(())
    }

    /// A tensor's rows from row `row` of a map on.
    fn rows(&mut self, to: &Linear, row: usize, tensor: &Tensor<'_>) -> Result<(), CudaError> {
        let block = to
            .weight
            .part(row * to.inputs..row * to.inputs + tensor.len());
        with_bytes(tensor, |from| self.staging.upload(&block, from))
    }

    /// A tensor's rows in turns of 8, of which this is the first (0) or the second (1) of two.
    fn turns(&mut self, to: &Linear, turn: usize, tensor: &Tensor<'_>) -> Result<(), CudaError> {
        let eight = 8 * to.inputs;
        let block = to.weight.part(turn * eight..to.weight.len());
        with_bytes(tensor, |from| {
            self.staging
                .upload_lines(&block, from, 2 * eight, 4 * eight)
        })
    }
}

/// A tensor's values as bytes of bf16: where they lie in the file, or rounded.
fn with_bytes(
    tensor: &Tensor<'_>,
    run: impl FnOnce(&[u8]) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    if tensor.dtype == Dtype::BF16 {
        return run(tensor.bytes);
    }
    let values = tensor.to_bf16()?;
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    run(&bytes)
}

/// Makes random weights, each from the next seed.
struct Maker<'a> {
    gpu: &'a Gpu,
    kernels: &'a Kernels,
    seed: u32,
}

impl Maker<'_> {
    fn values(&mut self, to: &Block<u16>, scale: f32) -> Result<(), CudaError> {
        self.seed = self.seed.wrapping_add(1);
        self.kernels.rows.fill_bf16(self.gpu, to, self.seed, scale)
    }

    fn linear(&mut self, to: &Linear) -> Result<(), CudaError> {
        self.values(&to.weight, 1.0 / (to.inputs as f32).sqrt())
    }

    fn vector(&mut self, to: &Block<f32>, (scale, base): (f32, f32)) -> Result<(), CudaError> {
        self.seed = self.seed.wrapping_add(1);
        self.kernels
            .rows
            .fill_f32(self.gpu, to, self.seed, (scale, base))
    }

    fn layer(&mut self, weights: &LayerWeights) -> Result<(), CudaError> {
        self.vector(&weights.mixer_norm, (0.1, 1.0))?;
        self.vector(&weights.mlp_norm, (0.1, 1.0))?;
        self.linear(&weights.gate_up)?;
        self.linear(&weights.down)?;
        match &weights.mixer {
            Mixer::Attention(mixer) => {
                self.linear(&mixer.inputs)?;
                self.linear(&mixer.output)?;
                self.vector(&mixer.query_norm, (0.1, 1.0))?;
                self.vector(&mixer.key_norm, (0.1, 1.0))
            }
            Mixer::Delta(mixer) => {
                self.linear(&mixer.inputs)?;
                self.linear(&mixer.output)?;
                self.vector(&mixer.taps, (0.5, 0.0))?;
                self.vector(&mixer.rates, (0.02, -0.1))?;
                self.vector(&mixer.biases, (0.5, -1.0))?;
                self.vector(&mixer.norm, (0.1, 1.0))
            }
        }
    }
}
