//! From config files to checked configurations.
//!
//! A file mirrors what `transformers` writes; [`ModelConfig`] and [`HeadConfig`] are this program's own. Each function
//! either succeeds or says everything that is wrong with its file.

use serde_json::{Value, json};

use crate::config::{AttentionConfig, HeadConfig, LayerKind, LinearConfig, ModelConfig};
use crate::error::LoadError;
use crate::fields::{Faults, Fields};
use crate::source::Source;

/// `config.json`.
pub(crate) const CONFIG: &str = "config.json";
/// `generation_config.json`, which a release may lack.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// `joint_head_config.json`, which a backbone lacks.
pub(crate) const HEAD_CONFIG: &str = "joint_head_config.json";

/// What `config.json` says.
pub(crate) struct BackboneFile {
    pub(crate) config: ModelConfig,
    /// What stands before `layers.0.…` in the names of the text model's tensors.
    pub(crate) prefix: &'static str,
}

/// Reads `config.json` and, where there is one, `generation_config.json`. Faults go to `faults`.
pub(crate) fn read_backbone(source: &Source, faults: &mut Vec<LoadError>) -> Option<BackboneFile> {
    let config = collect(source, CONFIG, faults, backbone_from_fields);
    let generation = match source.has(GENERATION_CONFIG) {
        true => collect(source, GENERATION_CONFIG, faults, |fields| {
            Some(eos_from_fields(fields, None))
        }),
        false => Some(None),
    };
    let (mut config, generation) = (config?, generation?);
    let mut eos_file = CONFIG;
    if let Some(eos) = generation {
        config.config.eos = eos;
        eos_file = GENERATION_CONFIG;
    }
    let vocab = config.config.vocab;
    if let Some(id) = config.config.eos.iter().find(|id| **id as usize >= vocab) {
        faults.push(LoadError::Field {
            file: source.path(eos_file),
            field: "eos_token_id".to_owned(),
            found: id.to_string(),
            wanted: format!("an id below vocab_size, {vocab}"),
        });
    }
    Some(config)
}

/// Reads `joint_head_config.json`. Faults go to `faults`.
pub(crate) fn read_head(
    source: &Source,
    backbone: Option<&ModelConfig>,
    faults: &mut Vec<LoadError>,
) -> Option<HeadConfig> {
    collect(source, HEAD_CONFIG, faults, |fields| {
        Some(head_from_fields(fields, backbone))
    })
}

/// Parses a file and turns its fields into a value; with a fault there is no value.
fn collect<T>(
    source: &Source,
    name: &str,
    faults: &mut Vec<LoadError>,
    from_fields: impl FnOnce(&Fields<'_>) -> Option<T>,
) -> Option<T> {
    let text = match source.text(name, CONFIG_BYTES_MAX) {
        Ok(text) => text,
        Err(error) => {
            faults.push(error);
            return None;
        }
    };
    let own = Faults::new(source.path(name));
    let object = own.parse(&text);
    let value = object
        .as_ref()
        .and_then(|object| from_fields(&Fields::new(object, &own)));
    let value = value.filter(|_| own.is_empty());
    faults.extend(own.into_list());
    value
}

fn backbone_from_fields(fields: &Fields<'_>) -> Option<BackboneFile> {
    let (text, prefix) = match fields.value("model_type").and_then(Value::as_str) {
        Some("qwen3_5") => (fields.inner("text_config")?, "model.language_model."),
        Some("qwen3_5_text") => (fields.clone(), "model."),
        _ => {
            fields.fault(
                "model_type",
                "\"qwen3_5\" or \"qwen3_5_text\", the model family that is served",
            );
            return None;
        }
    };
    check_fixed(&text);
    check_quantisation(fields);
    if prefix == "model.language_model." {
        check_quantisation(&text);
    }
    let attention = attention_from_fields(&text);
    let linear = linear_from_fields(&text);
    // The reference lets the outermost flag decide.
    let tied = fields
        .flag("tie_word_embeddings")
        .or_else(|| text.flag("tie_word_embeddings"));
    let config = ModelConfig {
        hidden: text.size("hidden_size", 1..=1 << 16),
        intermediate: text.size("intermediate_size", 1..=1 << 20),
        vocab: text.size("vocab_size", 1..=1 << 22),
        layers: layers_from_fields(&text),
        attention,
        linear,
        norm_eps: text.number("rms_norm_eps", 0.0, 1.0) as f32,
        tied: tied.unwrap_or(false),
        positions_max: text.size("max_position_embeddings", 1..=1 << 24),
        eos: eos_from_fields(&text, Some(fields)).unwrap_or_default(),
    };
    Some(BackboneFile { config, prefix })
}

/// Fields with one servable value; it is also the default of the reference.
fn check_fixed(text: &Fields<'_>) {
    text.only("model_type", &json!("qwen3_5_text"));
    text.only("attention_bias", &json!(false));
    text.only("attn_output_gate", &json!(true));
    text.only("hidden_act", &json!("silu"));
}

/// `compressed-tensors` may mean plain bf16 weights; whether they are packed shows in their names.
fn check_quantisation(fields: &Fields<'_>) {
    if let Some(quantisation) = fields.inner_if_present("quantization_config")
        && quantisation.value("quant_method") != Some(&json!("compressed-tensors"))
    {
        let wanted = "\"compressed-tensors\" with plain weights, or no quantization_config";
        quantisation.fault("quant_method", wanted);
    }
    if fields.value("quantization").is_some() {
        fields.fault(
            "quantization",
            "no such field: weights are read as BF16, F16 or F32 only",
        );
    }
}

fn attention_from_fields(text: &Fields<'_>) -> AttentionConfig {
    let heads = text.size("num_attention_heads", 1..=1024);
    let kv_heads = text.size("num_key_value_heads", 1..=1024);
    if !heads.is_multiple_of(kv_heads) {
        text.fault(
            "num_key_value_heads",
            &format!("a divisor of num_attention_heads, {heads}"),
        );
    }
    let head_dim = text.size("head_dim", 2..=1024);
    let rope = text
        .inner_if_present("rope_parameters")
        .or_else(|| text.inner_if_present("rope_scaling"));
    let rope = rope.as_ref();
    if let Some(rope) = rope {
        rope.only("rope_type", &json!("default"));
        rope.only("mrope_interleaved", &json!(true));
    }
    // `rope_parameters` is where transformers 5 keeps both numbers; older files have them one level up.
    let place = |field| {
        rope.filter(|rope| rope.value(field).is_some())
            .unwrap_or(text)
    };
    let share = "partial_rotary_factor";
    let factor = place(share).number(share, 0.0, 1.0);
    let rotary_dims = (head_dim as f64 * factor) as usize;
    if rotary_dims == 0 || !rotary_dims.is_multiple_of(2) {
        let wanted = format!(
            "a share of head_dim, {head_dim}, that gives an even number of dimensions, not {rotary_dims}"
        );
        place(share).fault(share, &wanted);
    }
    AttentionConfig {
        heads,
        kv_heads,
        head_dim,
        rotary_dims,
        rope_theta: place("rope_theta").number("rope_theta", 0.0, 1e30),
        mrope_section: rope.map_or(MROPE_SECTION, mrope_from_fields),
    }
}

fn mrope_from_fields(rope: &Fields<'_>) -> [usize; 3] {
    let Some(value) = rope.value("mrope_section") else {
        return MROPE_SECTION;
    };
    let sections: Option<Vec<usize>> = value.as_array().and_then(|sections| {
        let sections = sections
            .iter()
            .map(|section| section.as_u64().filter(|n| *n <= 1024));
        sections
            .map(|section| section.map(|n| n as usize))
            .collect()
    });
    match sections.and_then(|sections| <[usize; 3]>::try_from(sections).ok()) {
        Some(sections) => sections,
        None => {
            rope.fault("mrope_section", "three whole numbers of 0 to 1024");
            MROPE_SECTION
        }
    }
}

fn linear_from_fields(text: &Fields<'_>) -> LinearConfig {
    let key_heads = text.size("linear_num_key_heads", 1..=1024);
    let value_heads = text.size("linear_num_value_heads", 1..=1024);
    if !value_heads.is_multiple_of(key_heads) {
        text.fault(
            "linear_num_value_heads",
            &format!("a multiple of linear_num_key_heads, {key_heads}"),
        );
    }
    LinearConfig {
        key_heads,
        value_heads,
        key_dim: text.size("linear_key_head_dim", 1..=1024),
        value_dim: text.size("linear_value_head_dim", 1..=1024),
        conv_kernel: text.size("linear_conv_kernel_dim", 2..=64),
    }
}

/// `layer_types` says each layer's mixer; without it every `full_attention_interval`-th is full attention.
fn layers_from_fields(text: &Fields<'_>) -> Vec<LayerKind> {
    let count = text.size("num_hidden_layers", 1..=1024);
    if text.value("layer_types").is_none() {
        let interval = text.size("full_attention_interval", 1..=1024);
        let kind = |layer: usize| match (layer + 1).is_multiple_of(interval) {
            true => LayerKind::FullAttention,
            false => LayerKind::LinearAttention,
        };
        return (0..count).map(kind).collect();
    }
    let kinds = text
        .value("layer_types")
        .and_then(Value::as_array)
        .and_then(|kinds| {
            let kind = |value: &Value| match value.as_str()? {
                "full_attention" => Some(LayerKind::FullAttention),
                "linear_attention" => Some(LayerKind::LinearAttention),
                _ => None,
            };
            kinds.iter().map(kind).collect::<Option<Vec<_>>>()
        });
    kinds
        .filter(|kinds| kinds.len() == count)
        .unwrap_or_else(|| {
            let wanted = format!(
                "num_hidden_layers, {count}, times \"linear_attention\" or \"full_attention\""
            );
            text.fault("layer_types", &wanted);
            Vec::new()
        })
}

/// `eos_token_id`, one id or several, of the first of two places that has it.
fn eos_from_fields(fields: &Fields<'_>, second: Option<&Fields<'_>>) -> Option<Vec<u32>> {
    let field = "eos_token_id";
    let place = match second {
        Some(second) if fields.value(field).is_none() => second,
        _ => fields,
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match place.value(field)? {
        Value::Array(ids) if ids.len() <= EOS_MAX => ids.iter().map(id).collect(),
        value => id(value).map(|id| vec![id]),
    };
    if ids.is_none() {
        place.fault(field, &format!("a token id, or at most {EOS_MAX}"));
    }
    ids
}

fn head_from_fields(fields: &Fields<'_>, backbone: Option<&ModelConfig>) -> HeadConfig {
    for name in fields.names().filter(|name| !HEAD_KEYS.contains(name)) {
        fields.fault(name, &format!("only {}", HEAD_KEYS.join(", ")));
    }
    let config = HeadConfig {
        hidden: fields.size("hidden_size", 1..=1 << 16),
        width: fields.size("width", 1..=1 << 16),
        routing_layers: fields.size("routing_layers", 1..=256),
        layers: fields.size("layers", 1..=256),
        heads: fields.size("heads", 1..=1024),
        feedforward: fields.size("feedforward", 1..=1 << 20),
    };
    if !config.width.is_multiple_of(config.heads) {
        fields.fault("width", &format!("a multiple of heads, {}", config.heads));
    }
    if let Some(backbone) = backbone.filter(|backbone| backbone.hidden != config.hidden) {
        fields.fault(
            "hidden_size",
            &format!("{}, the backbone's hidden_size", backbone.hidden),
        );
    }
    config
}

/// Keys of `joint_head_config.json`. Dropout matters in training only.
const HEAD_KEYS: [&str; 7] = [
    "hidden_size",
    "width",
    "routing_layers",
    "layers",
    "heads",
    "feedforward",
    "dropout",
];
/// Sections of the rotary frequencies where a config does not say.
const MROPE_SECTION: [usize; 3] = [11, 11, 10];
/// Greatest number of end-of-turn ids.
const EOS_MAX: usize = 64;
/// Greatest size of a config file.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
