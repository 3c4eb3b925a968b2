//! Weights of a model's shape alone, made on a GPU, for measuring speed and equality of bits where a release's own are not at
//! hand.
//!
//! What such weights answer means nothing, so whatever shows them names them as what they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use descant_cuda::{CudaBackend, CudaHead, HeadOptions, Options};
use descant_model::HeadWeights;
use descant_release::{
    AttentionConfig, Dtype, HeadConfig, LayerKind, LinearConfig, LoadError, LoadPlan, ModelConfig,
    Outline, Part, Tensor,
};

use crate::failure::Failure;

/// Seed of the weights.
const SEED: u32 = 1;

/// A shape whose weights can be made.
#[derive(Clone, Debug)]
pub(crate) struct Dummy {
    shape: String,
    outline: Outline,
    head: HeadConfig,
}

impl Dummy {
    /// The shape of a name, or of a directory's config files; a directory without a head has one of the published sizes.
    ///
    /// # Errors
    /// What is wrong with the config files.
    pub(crate) fn of(shape: &str) -> Result<Dummy, Failure> {
        let (config, head) = match shape {
            "clef-flash" => (clef([4096, 12_288, 32], [16, 4], 32), None),
            "clef" => (clef([5120, 17_408, 64], [24, 4], 48), None),
            directory => {
                let outline = Outline::open(Path::new(directory), None)?;
                (outline.config, outline.head)
            }
        };
        let head = head.unwrap_or_else(|| head_shape(config.hidden));
        Ok(Dummy {
            shape: shape.to_owned(),
            outline: Outline::new(config, Some(head.clone())),
            head,
        })
    }

    /// What it is, by its sizes.
    pub(crate) fn outline(&self) -> &Outline {
        &self.outline
    }

    /// What the model is called.
    pub(crate) fn name(&self) -> String {
        let shape = self.shape.trim_end_matches('/');
        let last = shape.rsplit('/').next().unwrap_or(shape);
        format!("{last}-dummy-weights")
    }

    /// What it is, for people.
    pub(crate) fn label(&self) -> String {
        format!(
            "{} with DUMMY WEIGHTS (seed {SEED}; its answers mean nothing)",
            self.shape
        )
    }

    /// Makes the weights on a device.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn load(
        &self,
        options: Options,
        head_options: HeadOptions,
    ) -> Result<(CudaBackend, CudaHead), Failure> {
        let config = self.outline.config.clone();
        let mut backend = CudaBackend::with_dummy_weights(config, options, SEED)?;
        let source = Arc::new(DummyHead::new(&self.outline.config, &self.head));
        let head = CudaHead::load_beside(&mut backend, &self.head, source, head_options, true)?;
        Ok((backend, head))
    }
}

/// The published sizes of a head.
fn head_shape(hidden: usize) -> HeadConfig {
    HeadConfig {
        hidden,
        width: 1024,
        routing_layers: 2,
        layers: 4,
        heads: 16,
        feedforward: 4096,
    }
}

/// Random weights of a head: maps that keep the size of what goes through them, norms of one.
#[derive(Debug)]
struct DummyHead {
    /// Name, shape and bf16 bytes.
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

impl DummyHead {
    fn new(model: &ModelConfig, head: &HeadConfig) -> DummyHead {
        let plan = LoadPlan::new("", model, Some(head));
        let tensors = plan.part(Part::Head).map(|wanted| {
            let inputs = wanted.shape.last().copied().unwrap_or(1);
            let (scale, base) = match wanted.shape.len() {
                2 => (1.0 / (inputs as f32).sqrt(), 0.0),
                1 if wanted.name.ends_with("weight") => (0.0, 1.0),
                _ => (0.1, 0.0),
            };
            let value = |index: usize| {
                let hash = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let unit = hash as f32 / (1u64 << 23) as f32 - 1.0;
                // The upper half of an f32 is a bf16.
                let [_, _, low, high] = (base + scale * 1.7 * unit).to_le_bytes();
                [low, high]
            };
            let bytes = (0..wanted.parameters()).flat_map(value).collect();
            (wanted.name.clone(), (wanted.shape.clone(), bytes))
        });
        DummyHead {
            tensors: tensors.collect(),
        }
    }
}

impl HeadWeights for DummyHead {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        let missing = || LoadError::TensorMissing {
            file: "dummy weights".into(),
            name: name.to_owned(),
            wanted: Vec::new(),
        };
        let (name, (shape, bytes)) = self.tensors.get_key_value(name).ok_or_else(missing)?;
        Ok(Tensor {
            name,
            dtype: Dtype::BF16,
            shape,
            bytes,
        })
    }

    fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        // The backend has its rows.
        self.tensor("lm_head.weight")
    }
}

/// The two published shapes, which share most sizes.
fn clef(
    [hidden, intermediate, layers]: [usize; 3],
    [heads, kv_heads]: [usize; 2],
    value_heads: usize,
) -> ModelConfig {
    let kind = |layer: usize| match layer % 4 {
        3 => LayerKind::FullAttention,
        _ => LayerKind::LinearAttention,
    };
    ModelConfig {
        hidden,
        intermediate,
        vocab: 248_320,
        layers: (0..layers).map(kind).collect(),
        attention: AttentionConfig {
            heads,
            kv_heads,
            head_dim: 256,
            rotary_dims: 64,
            rope_theta: 1e7,
            mrope_section: [11, 11, 10],
        },
        linear: LinearConfig {
            key_heads: 16,
            value_heads,
            key_dim: 128,
            value_dim: 128,
            conv_kernel: 4,
        },
        norm_eps: 1e-6,
        tied: false,
        positions_max: 262_144,
        eos: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_is() {
        for (shape, name) in [
            ("clef-flash", "clef-flash-dummy-weights"),
            ("clef", "clef-dummy-weights"),
        ] {
            let dummy = Dummy::of(shape).unwrap();
            assert_eq!(dummy.name(), name);
            assert!(dummy.label().contains("DUMMY WEIGHTS"));
            let head = dummy.outline().head.as_ref().unwrap();
            assert_eq!(head.hidden, dummy.outline().config.hidden);
        }
    }

    #[test]
    fn a_directory_gives_its_own_shape() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-random/");
        let dummy = Dummy::of(directory).unwrap();
        assert_eq!(dummy.name(), "tiny-random-dummy-weights");
        let own = Outline::open(Path::new(directory), None).unwrap();
        assert_eq!(
            (&dummy.outline().config, &dummy.outline().head),
            (&own.config, &own.head)
        );
        assert!(Dummy::of("no-such-directory").is_err());
    }
}
