//! Checked model and head configurations: what the rest of the program knows of the config files.

/// What a Qwen3.5-family text model is: every size that its tensors and its arithmetic depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Width of a hidden row (`hidden_size`), H.
    pub hidden: usize,
    /// Width of the SwiGLU (`intermediate_size`).
    pub intermediate: usize,
    /// Rows of the embedding (`vocab_size`); token ids are below it.
    pub vocab: usize,
    /// The mixer of each layer, first to last.
    pub layers: Vec<LayerKind>,
    /// Full-attention sizes.
    pub attention: AttentionConfig,
    /// Linear-attention (gated DeltaNet) sizes.
    pub linear: LinearConfig,
    /// Epsilon of every RMSNorm (`rms_norm_eps`).
    pub norm_eps: f32,
    /// Whether the embedding is also the output embedding (`tie_word_embeddings`).
    pub tied: bool,
    /// Longest sequence the positions were made for (`max_position_embeddings`).
    pub positions_max: usize,
    /// Ids that end a chat turn, from `generation_config.json` or `config.json`; may be empty.
    pub eos: Vec<u32>,
}

/// Which mixer a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention over all earlier rows.
    FullAttention,
    /// Gated DeltaNet: a recurrent state of fixed size.
    LinearAttention,
}

/// Sizes of the full-attention mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head, D.
    pub head_dim: usize,
    /// Leading dimensions of a head that rotary positions turn: `head_dim · partial_rotary_factor`, even.
    pub rotary_dims: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Frequencies of the three position sections (time, height, width); they matter for images only.
    pub mrope_section: [usize; 3],
}

/// Sizes of the linear-attention mixer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearConfig {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head, K.
    pub key_dim: usize,
    /// Width of a value head, V.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
}

impl LinearConfig {
    /// Channels of the convolution: queries, keys and values side by side.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// What a joint schema head is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadConfig {
    /// Width of the hidden rows it reads; equals [`ModelConfig::hidden`].
    pub hidden: usize,
    /// Width of its own rows, W; divisible by `heads`.
    pub width: usize,
    /// Evidence layers over the options.
    pub routing_layers: usize,
    /// Decoder layers over the questions.
    pub layers: usize,
    /// Attention heads of every layer.
    pub heads: usize,
    /// Width of the feed-forward layers.
    pub feedforward: usize,
}
