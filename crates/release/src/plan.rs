//! The load plan: every tensor that a release must hold, from its two configs alone.
//!
//! The names are those of the reference's modules. A shape is written as the file has it: `[out, in]` for a linear map.

use crate::config::{HeadConfig, LayerKind, ModelConfig};

/// What a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The text model: embedding, layers and final norm.
    Backbone,
    /// `lm_head.weight`: a row a token; absent where the embedding is tied.
    OutputEmbedding,
    /// The joint schema head.
    Head,
    /// Output rows beside a head (`lm_head_rows.safetensors`), read in place of the backbone's.
    HeadRows,
    /// The vision tower, which text does not touch.
    Vision,
    /// Layers that guess several tokens ahead, which are not run.
    Mtp,
}

impl Part {
    /// The part's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Part::Backbone => "backbone",
            Part::Head => "head",
            Part::HeadRows => "head rows",
            Part::Mtp => "mtp",
            Part::OutputEmbedding => "output embedding",
            Part::Vision => "vision",
        }
    }
}

/// A tensor that the plan asks for. It may be stored as BF16, F16 or F32, nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its full name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it belongs to: [`Part::Backbone`], [`Part::OutputEmbedding`] or [`Part::Head`].
    pub part: Part,
}

impl Wanted {
    /// Number of values.
    pub fn parameters(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Every tensor that a release must hold, backbone first, then the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    /// The tensors in the order in which they are used.
    pub tensors: Vec<Wanted>,
}

impl LoadPlan {
    /// The plan of a backbone whose text tensors are called `prefix` + `layers.0.…`, and of its head, if it has one.
    pub fn new(prefix: &str, config: &ModelConfig, head: Option<&HeadConfig>) -> LoadPlan {
        let mut list = List {
            tensors: Vec::new(),
            prefix: prefix.to_owned(),
            part: Part::Backbone,
        };
        backbone(&mut list, config);
        if !config.tied {
            list.enter(Part::OutputEmbedding, "");
            list.want(LM_HEAD, &[config.vocab, config.hidden]);
        }
        if let Some(head) = head {
            list.enter(Part::Head, "");
            joint_head(&mut list, head);
        }
        LoadPlan {
            tensors: list.tensors,
        }
    }

    /// The tensors of one part.
    pub fn part(&self, part: Part) -> impl Iterator<Item = &Wanted> {
        self.tensors
            .iter()
            .filter(move |wanted| wanted.part == part)
    }
}

/// Name of the output embedding.
pub(crate) const LM_HEAD: &str = "lm_head.weight";

/// A plan as it grows.
struct List {
    tensors: Vec<Wanted>,
    prefix: String,
    part: Part,
}

impl List {
    fn enter(&mut self, part: Part, prefix: &str) {
        self.part = part;
        prefix.clone_into(&mut self.prefix);
    }

    fn want(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push(Wanted {
            name: format!("{}{name}", self.prefix),
            shape: shape.to_vec(),
            part: self.part,
        });
    }

    /// A linear map with a bias.
    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) {
        self.want(&format!("{name}.weight"), &[outputs, inputs]);
        self.want(&format!("{name}.bias"), &[outputs]);
    }

    /// A LayerNorm.
    fn layer_norm(&mut self, name: &str, width: usize) {
        self.want(&format!("{name}.weight"), &[width]);
        self.want(&format!("{name}.bias"), &[width]);
    }

    /// torch's multi-head attention with packed input projections.
    fn packed_attention(&mut self, name: &str, width: usize) {
        self.want(&format!("{name}.in_proj_weight"), &[3 * width, width]);
        self.want(&format!("{name}.in_proj_bias"), &[3 * width]);
        self.linear(&format!("{name}.out_proj"), width, width);
    }
}

fn backbone(list: &mut List, config: &ModelConfig) {
    list.want("embed_tokens.weight", &[config.vocab, config.hidden]);
    for (layer, kind) in config.layers.iter().enumerate() {
        list.want(
            &format!("layers.{layer}.input_layernorm.weight"),
            &[config.hidden],
        );
        match kind {
            LayerKind::FullAttention => {
                full_attention(list, &format!("layers.{layer}.self_attn"), config)
            }
            LayerKind::LinearAttention => {
                linear_attention(list, &format!("layers.{layer}.linear_attn"), config);
            }
        }
        list.want(
            &format!("layers.{layer}.post_attention_layernorm.weight"),
            &[config.hidden],
        );
        list.want(
            &format!("layers.{layer}.mlp.gate_proj.weight"),
            &[config.intermediate, config.hidden],
        );
        list.want(
            &format!("layers.{layer}.mlp.up_proj.weight"),
            &[config.intermediate, config.hidden],
        );
        list.want(
            &format!("layers.{layer}.mlp.down_proj.weight"),
            &[config.hidden, config.intermediate],
        );
    }
    list.want("norm.weight", &[config.hidden]);
}

/// Queries come with a gate of their own width, so `q_proj` has twice the rows.
fn full_attention(list: &mut List, at: &str, config: &ModelConfig) {
    let sizes = &config.attention;
    let (queries, keys) = (
        sizes.heads * sizes.head_dim,
        sizes.kv_heads * sizes.head_dim,
    );
    list.want(
        &format!("{at}.q_proj.weight"),
        &[2 * queries, config.hidden],
    );
    list.want(&format!("{at}.k_proj.weight"), &[keys, config.hidden]);
    list.want(&format!("{at}.v_proj.weight"), &[keys, config.hidden]);
    list.want(&format!("{at}.q_norm.weight"), &[sizes.head_dim]);
    list.want(&format!("{at}.k_norm.weight"), &[sizes.head_dim]);
    list.want(&format!("{at}.o_proj.weight"), &[config.hidden, queries]);
}

fn linear_attention(list: &mut List, at: &str, config: &ModelConfig) {
    let sizes = &config.linear;
    let (channels, values) = (sizes.conv_channels(), sizes.value_heads * sizes.value_dim);
    list.want(
        &format!("{at}.in_proj_qkv.weight"),
        &[channels, config.hidden],
    );
    list.want(&format!("{at}.in_proj_z.weight"), &[values, config.hidden]);
    list.want(
        &format!("{at}.in_proj_b.weight"),
        &[sizes.value_heads, config.hidden],
    );
    list.want(
        &format!("{at}.in_proj_a.weight"),
        &[sizes.value_heads, config.hidden],
    );
    list.want(
        &format!("{at}.conv1d.weight"),
        &[channels, 1, sizes.conv_kernel],
    );
    list.want(&format!("{at}.A_log"), &[sizes.value_heads]);
    list.want(&format!("{at}.dt_bias"), &[sizes.value_heads]);
    list.want(&format!("{at}.norm.weight"), &[sizes.value_dim]);
    list.want(&format!("{at}.out_proj.weight"), &[config.hidden, values]);
}

fn joint_head(list: &mut List, head: &HeadConfig) {
    let width = head.width;
    list.layer_norm("hidden_norm", head.hidden);
    for projection in PROJECTIONS {
        list.want(&format!("{projection}.weight"), &[width, head.hidden]);
    }
    list.want("type_embedding.weight", &[3, width]);
    for layer in 0..head.routing_layers {
        let at = format!("evidence_layers.{layer}");
        list.layer_norm(&format!("{at}.query_norm"), width);
        list.layer_norm(&format!("{at}.memory_norm"), width);
        list.packed_attention(&format!("{at}.attention"), width);
        list.layer_norm(&format!("{at}.feedforward_norm"), width);
        list.linear(&format!("{at}.feedforward.0"), head.feedforward, width);
        list.linear(&format!("{at}.feedforward.3"), width, head.feedforward);
    }
    list.layer_norm("option_summary_norm", width);
    for layer in 0..head.layers {
        let at = format!("layers.{layer}");
        list.packed_attention(&format!("{at}.self_attn"), width);
        list.packed_attention(&format!("{at}.multihead_attn"), width);
        list.linear(&format!("{at}.linear1"), head.feedforward, width);
        list.linear(&format!("{at}.linear2"), width, head.feedforward);
        for norm in ["norm1", "norm2", "norm3"] {
            list.layer_norm(&format!("{at}.{norm}"), width);
        }
    }
    list.layer_norm("field_norm", width);
    list.layer_norm("option_norm", width);
    list.linear("residual_scorer.0", width, 4 * width);
    list.linear("residual_scorer.3", 1, width);
    for scalar in ["prior_logit_scale", "joint_logit_scale", "residual_gate"] {
        list.want(scalar, &[]);
    }
}

/// The head's maps from hidden rows to its own width; none has a bias.
const PROJECTIONS: [&str; 6] = [
    "memory_projection",
    "question_projection",
    "option_question_projection",
    "global_projection",
    "option_context_projection",
    "option_lexical_projection",
];
