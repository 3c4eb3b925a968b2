//! Releases as they are, whole and damaged: what opens, and what every fault says.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a fixture that cannot be copied fails its test; a table of faults is one function"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use descant_decision::{Detokenize, Tokenize};
use descant_release::{
    AttentionConfig, FileFault, Foreign, HeadConfig, LayerKind, LinearConfig, LoadError, LoadPlan,
    ModelConfig, Part, Release, Tokenizer,
};
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/releases")
        .join(name)
}

#[test]
fn the_tiny_releases_open_as_their_configs_say() {
    let a = Release::open(&fixture("tiny-a"), None).unwrap();
    assert_eq!(
        (a.config().hidden, a.config().vocab, a.config().layers.len()),
        (64, 512, 4)
    );
    assert_eq!(a.config().attention.rotary_dims, 4);
    assert_eq!(a.config().attention.mrope_section, [11, 11, 10]);
    assert_eq!(a.config().eos, [258]);
    assert_eq!(a.head().unwrap().width, 32);
    let b = Release::open(&fixture("tiny-b"), None).unwrap();
    assert_eq!(b.config().attention.mrope_section, [2, 1, 1]);
    assert_eq!(
        b.backbone_tensor("layers.0.linear_attn.in_proj_qkv.weight")
            .unwrap()
            .shape,
        [208, 96]
    );
    assert_eq!(b.tensor("residual_gate").unwrap().shape, [0_usize; 0]);
    let tied = Release::open(&fixture("tiny-tied"), None).unwrap();
    assert!(tied.config().tied);
    assert_eq!(tied.config().layers[1], LayerKind::FullAttention);
    assert_eq!(tied.config().attention.rotary_dims, 8);
    assert_eq!(
        tied.output_embedding().unwrap().name,
        "model.language_model.embed_tokens.weight"
    );
}

#[test]
fn the_tokenizers_give_ids_below_the_vocabulary() {
    for name in ["tiny-a", "tiny-b", "tiny-tied"] {
        let release = Release::open(&fixture(name), None).unwrap();
        let tokenizer = release.tokenizer().unwrap();
        let text = "Hello, wörld 你好 <|im_end|> \u{0} 🙂\n";
        let ids = tokenizer.encode(text);
        assert!(ids.iter().all(|id| (*id as usize) < release.config().vocab));
        assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| tokenizer.token_bytes(*id).unwrap())
            .collect();
        assert_eq!(bytes, text.as_bytes(), "{name}");
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        assert!(tokenizer.is_special(end) && !tokenizer.is_special(ids[0]));
        assert_eq!(tokenizer.token_bytes(tokenizer.id_max() + 1), None);
        assert!(tokenizer.encode("").is_empty());
    }
}

/// A copy of a fixture that may be damaged.
struct Copy(TempDir);

impl Copy {
    fn of(name: &str) -> Copy {
        let copy = Copy(TempDir::new().unwrap());
        for file in fs::read_dir(fixture(name)).unwrap() {
            let file = file.unwrap();
            fs::write(
                copy.at(file.file_name().to_str().unwrap()),
                fs::read(file.path()).unwrap(),
            )
            .unwrap();
        }
        copy
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self) -> Result<Release, LoadError> {
        Release::open(self.path(), None)
    }

    /// What opening says.
    fn fault(&self) -> String {
        match self.open() {
            Ok(_) => "it opens".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Sets a field of a JSON file, by its JSON pointer; null removes it.
    fn set(&self, file: &str, pointer: &str, value: Value) {
        let mut json: Value = serde_json::from_slice(&fs::read(self.at(file)).unwrap()).unwrap();
        let (object, field) = pointer.rsplit_once('/').unwrap();
        let object = json.pointer_mut(object).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => drop(object.remove(field)),
            value => drop(object.insert(field.to_owned(), value)),
        }
        fs::write(self.at(file), json.to_string()).unwrap();
    }

    /// Changes the tensors of a weight file.
    fn rewrite(&self, file: &str, change: impl FnOnce(&mut Tensors)) {
        let bytes = fs::read(self.at(file)).unwrap();
        let mut tensors: Tensors = safetensors::SafeTensors::deserialize(&bytes)
            .unwrap()
            .iter()
            .map(|(name, view)| {
                let (shape, data) = (view.shape().to_vec(), view.data().to_vec());
                (name.to_owned(), (view.dtype(), shape, data))
            })
            .collect();
        change(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, data))| {
            (
                name,
                safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap(),
            )
        });
        fs::write(self.at(file), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const MODEL: &str = "model.safetensors";
const HEAD: &str = "joint_head.safetensors";
const CONFIG: &str = "config.json";
const HEAD_CONFIG: &str = "joint_head_config.json";
const INDEX: &str = "model.safetensors.index.json";
const UP: &str = "model.language_model.layers.0.mlp.up_proj.weight";

fn head_at_release_size(hidden: usize) -> HeadConfig {
    HeadConfig {
        hidden,
        width: 1024,
        routing_layers: 2,
        layers: 4,
        heads: 16,
        feedforward: 4096,
    }
}

#[test]
fn the_plan_of_the_published_heads_has_their_size() {
    let model = |hidden, intermediate, layers, heads, value_heads| ModelConfig {
        hidden,
        intermediate,
        vocab: 248_320,
        layers: (1..=layers)
            .map(|layer| match layer % 4 {
                0 => LayerKind::FullAttention,
                _ => LayerKind::LinearAttention,
            })
            .collect(),
        attention: AttentionConfig {
            heads,
            kv_heads: 4,
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
    };
    // Parameters of the heads and of the whole backbones as published; a backbone's include its vision tower, which
    // has 456 million (Flash) and 461 million (27B) of them and is not planned.
    for (config, head_wanted, whole) in [
        (
            model(4096, 12_288, 32, 16, 32),
            121_762_820,
            9_409_813_744_usize,
        ),
        (model(5120, 17_408, 64, 24, 48), 128_056_324, 27_356_728_560),
    ] {
        let head = head_at_release_size(config.hidden);
        let plan = LoadPlan::new("model.language_model.", &config, Some(&head));
        assert_eq!(plan.part(Part::Head).count(), 122);
        let parameters = |part| {
            plan.part(part)
                .map(descant_release::Wanted::parameters)
                .sum::<usize>()
        };
        assert_eq!(parameters(Part::Head), head_wanted);
        let vision = whole - parameters(Part::Backbone) - parameters(Part::OutputEmbedding);
        assert!((455_000_000..462_000_000).contains(&vision), "{vision}");
    }
}

#[test]
fn a_config_that_cannot_be_served_is_refused_by_field() {
    let cases = [
        (
            "/model_type",
            json!("llama"),
            "model_type is \"llama\", wanted \"qwen3_5\"",
        ),
        ("/model_type", json!("qwen3_5_moe"), "wanted \"qwen3_5\""),
        ("/model_type", Value::Null, "model_type is not there"),
        (
            "/text_config",
            json!([]),
            "text_config is [], wanted an object",
        ),
        ("/text_config", Value::Null, "text_config is not there"),
        (
            "/text_config/model_type",
            json!("qwen3"),
            "text_config.model_type is \"qwen3\"",
        ),
        (
            "/text_config/hidden_size",
            json!(0),
            "text_config.hidden_size is 0, wanted a whole number of 1 to 65536",
        ),
        (
            "/text_config/hidden_size",
            json!(-64),
            "text_config.hidden_size is -64",
        ),
        (
            "/text_config/hidden_size",
            json!(64.5),
            "text_config.hidden_size is 64.5",
        ),
        (
            "/text_config/hidden_size",
            json!("64"),
            "text_config.hidden_size is \"64\"",
        ),
        (
            "/text_config/intermediate_size",
            json!(u64::MAX),
            "intermediate_size is 18446744073709551615",
        ),
        (
            "/text_config/vocab_size",
            Value::Null,
            "text_config.vocab_size is not there",
        ),
        ("/text_config/num_hidden_layers", json!(5), "layer_types"),
        (
            "/text_config/num_hidden_layers",
            json!(1_000_000),
            "num_hidden_layers is 1000000",
        ),
        (
            "/text_config/layer_types",
            json!(vec!["sliding_attention"; 4]),
            "layer_types",
        ),
        (
            "/text_config/layer_types",
            json!("full_attention"),
            "layer_types",
        ),
        (
            "/text_config/num_key_value_heads",
            json!(3),
            "num_key_value_heads is 3, wanted a divisor of num_attention_heads, 4",
        ),
        (
            "/text_config/linear_num_value_heads",
            json!(3),
            "a multiple of linear_num_key_heads, 2",
        ),
        (
            "/text_config/linear_conv_kernel_dim",
            json!(1),
            "linear_conv_kernel_dim is 1, wanted a whole number of 2 to 64",
        ),
        ("/text_config/head_dim", json!(0), "head_dim is 0"),
        (
            "/text_config/rope_parameters/partial_rotary_factor",
            json!(0.2),
            "rope_parameters.partial_rotary_factor is 0.2",
        ),
        (
            "/text_config/rope_parameters/partial_rotary_factor",
            json!(1.5),
            "a number above 0, at most 1",
        ),
        (
            "/text_config/rope_parameters/rope_type",
            json!("yarn"),
            "rope_parameters.rope_type is \"yarn\", wanted \"default\"",
        ),
        (
            "/text_config/rope_parameters/rope_theta",
            json!(0),
            "rope_theta is 0",
        ),
        (
            "/text_config/rope_parameters/rope_theta",
            json!("1e4"),
            "rope_theta",
        ),
        (
            "/text_config/rope_parameters/mrope_section",
            json!([1, 2]),
            "mrope_section is [1,2]",
        ),
        (
            "/text_config/hidden_act",
            json!("gelu"),
            "hidden_act is \"gelu\", wanted \"silu\"",
        ),
        (
            "/text_config/attention_bias",
            json!(true),
            "attention_bias is true, wanted false",
        ),
        (
            "/text_config/attn_output_gate",
            json!(false),
            "attn_output_gate is false, wanted true",
        ),
        ("/text_config/rms_norm_eps", json!(0.0), "rms_norm_eps is 0"),
        (
            "/tie_word_embeddings",
            json!("no"),
            "tie_word_embeddings is \"no\", wanted true or false",
        ),
        (
            "/quantization_config",
            json!({"quant_method": "fp8"}),
            "quantization_config.quant_method is \"fp8\"",
        ),
        (
            "/quantization_config",
            json!({}),
            "quantization_config.quant_method is not there",
        ),
        (
            "/text_config/quantization_config",
            json!({"quant_method": "gptq"}),
            "quant_method is \"gptq\"",
        ),
        (
            "/quantization",
            json!({"bits": 4}),
            "quantization is {\"bits\":4}",
        ),
    ];
    let wrong = cases.into_iter().filter_map(|(pointer, value, wanted)| {
        let copy = Copy::of("tiny-a");
        copy.set(CONFIG, pointer, value.clone());
        let fault = copy.fault();
        let right = fault.contains(wanted) && fault.contains("config.json");
        (!right).then(|| format!("{pointer} {value}: {fault}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_head_config_that_does_not_fit_is_refused_by_field() {
    let cases = [
        (
            "/width",
            json!(33),
            "width is 33, wanted a multiple of heads",
        ),
        ("/heads", json!(0), "heads is 0"),
        ("/layers", Value::Null, "layers is not there"),
        ("/routing_layers", json!(1.0), "routing_layers is 1.0"),
        (
            "/hidden_size",
            json!(128),
            "hidden_size is 128, wanted 64, the backbone's hidden_size",
        ),
        (
            "/activation",
            json!("relu"),
            "activation is \"relu\", wanted only hidden_size, width",
        ),
    ];
    for (pointer, value, wanted) in cases {
        let copy = Copy::of("tiny-a");
        copy.set(HEAD_CONFIG, pointer, value);
        let fault = copy.fault();
        assert!(
            fault.contains(wanted) && fault.contains(HEAD_CONFIG),
            "{pointer}: {fault}"
        );
    }
    let copy = Copy::of("tiny-a");
    copy.set(HEAD_CONFIG, "/dropout", json!(0.1));
    copy.open().unwrap();
}

#[test]
fn the_faults_of_both_configs_come_at_once() {
    let copy = Copy::of("tiny-a");
    copy.set(CONFIG, "/text_config/hidden_act", json!("relu"));
    copy.set(CONFIG, "/text_config/head_dim", json!(0));
    copy.set(HEAD_CONFIG, "/depth", json!(1));
    let Err(LoadError::Several { faults, .. }) = copy.open() else {
        panic!("several")
    };
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(
        faults
            .iter()
            .all(|fault| matches!(fault, LoadError::Field { .. }))
    );
}

#[test]
fn json_that_is_none_is_refused_by_file() {
    for (file, text, wanted) in [
        (CONFIG, "{", "config.json: EOF"),
        (
            CONFIG,
            "[1]",
            "config.json: the file is [1], wanted an object",
        ),
        (HEAD_CONFIG, "", "joint_head_config.json is empty"),
        (
            HEAD_CONFIG,
            "\u{feff}{}",
            "joint_head_config.json: expected value",
        ),
        ("generation_config.json", "nul", "generation_config.json: "),
        (
            "generation_config.json",
            "{\"eos_token_id\": [\"x\"]}",
            "eos_token_id is [\"x\"]",
        ),
        (
            "generation_config.json",
            "{\"eos_token_id\": 512}",
            "wanted an id below vocab_size, 512",
        ),
    ] {
        let copy = Copy::of("tiny-a");
        fs::write(copy.at(file), text).unwrap();
        assert!(copy.fault().contains(wanted), "{file}: {}", copy.fault());
    }
    let copy = Copy::of("tiny-a");
    fs::write(copy.at(CONFIG), [0xff, 0xfe]).unwrap();
    assert!(
        copy.fault().contains("is not UTF-8 text"),
        "{}",
        copy.fault()
    );
    let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
    fs::write(copy.at(CONFIG), deep).unwrap();
    assert!(copy.fault().contains("recursion limit"), "{}", copy.fault());
    fs::File::create(copy.at(CONFIG))
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    assert!(
        copy.fault().contains("has 1073741824 bytes"),
        "{}",
        copy.fault()
    );
}

#[test]
fn older_places_of_fields_are_read() {
    let copy = Copy::of("tiny-a");
    copy.set(CONFIG, "/text_config/layer_types", Value::Null);
    copy.set(CONFIG, "/text_config/rope_parameters", Value::Null);
    copy.set(CONFIG, "/text_config/rope_theta", json!(10_000.0));
    copy.set(
        CONFIG,
        "/quantization_config",
        json!({"quant_method": "compressed-tensors"}),
    );
    copy.set("generation_config.json", "/eos_token_id", json!([258, 256]));
    let release = copy.open().unwrap();
    let config = release.config();
    assert_eq!(config.layers[3], LayerKind::FullAttention);
    assert_eq!(
        (config.attention.rotary_dims, config.eos.as_slice()),
        (4, [258, 256].as_slice())
    );
}

#[test]
fn a_text_only_checkpoint_has_its_own_prefix() {
    let copy = Copy::of("tiny-a");
    let config: Value = serde_json::from_slice(&fs::read(copy.at(CONFIG)).unwrap()).unwrap();
    fs::write(copy.at(CONFIG), config["text_config"].to_string()).unwrap();
    copy.rewrite(MODEL, |tensors| {
        tensors.retain(|name, _| !name.starts_with("model.visual."));
        let rename =
            |(name, tensor): (String, _)| (name.replace("model.language_model.", "model."), tensor);
        *tensors = std::mem::take(tensors).into_iter().map(rename).collect();
    });
    let release = copy.open().unwrap();
    let whole = Release::open(&fixture("tiny-a"), None).unwrap();
    assert_eq!(release.config(), whole.config());
    assert_eq!(
        release.embedding().unwrap().bytes,
        whole.embedding().unwrap().bytes
    );
}

#[test]
fn every_wrong_tensor_is_named_at_once() {
    let copy = Copy::of("tiny-a");
    copy.rewrite(MODEL, |tensors| {
        tensors.remove("model.language_model.norm.weight").unwrap();
        tensors.get_mut(UP).unwrap().1.swap(0, 1);
        tensors.get_mut("lm_head.weight").unwrap().0 = Dtype::I16;
        let stray = tensors[UP].clone();
        tensors.insert(
            "model.language_model.layers.4.mlp.up_proj.weight".to_owned(),
            stray.clone(),
        );
        tensors.insert("mtp.layers.0.anything".to_owned(), stray.clone());
        tensors.insert("model.visual.anything".to_owned(), stray);
    });
    copy.rewrite(HEAD, |tensors| {
        tensors.remove("residual_gate").unwrap();
        let weight = tensors.get_mut("layers.0.linear1.weight").unwrap();
        weight.0 = Dtype::F8_E4M3;
        weight.2.truncate(weight.2.len() / 2);
    });
    let error = copy.open().unwrap_err();
    let text = error.to_string();
    let LoadError::Several { faults, .. } = error else {
        panic!("{text}")
    };
    assert_eq!(faults.len(), 6, "{text}");
    for wanted in [
        "model.safetensors: model.language_model.norm.weight [64] is missing",
        "model.safetensors: model.language_model.layers.0.mlp.up_proj.weight is [64, 128], config.json asks for [128, 64]",
        "model.safetensors: lm_head.weight (I16) is packed or scaled",
        "layers.4.mlp.up_proj.weight is not part of a qwen3_5 release with this config",
        "joint_head.safetensors: residual_gate [] is missing",
        "joint_head.safetensors: layers.0.linear1.weight is F8_E4M3, the head is read as BF16, F16 or F32 only: a quantised \
         head flattens every distribution",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

#[test]
fn a_checkpoint_of_another_size_is_told_in_few_lines() {
    let copy = Copy::of("tiny-b");
    for file in [CONFIG, "generation_config.json"] {
        fs::copy(fixture("tiny-a").join(file), copy.at(file)).unwrap();
    }
    fs::remove_file(copy.at(HEAD)).unwrap();
    fs::remove_file(copy.at(HEAD_CONFIG)).unwrap();
    let error = copy.open().unwrap_err();
    let LoadError::Several { faults, .. } = &error else {
        panic!("{error}")
    };
    assert!(faults.len() > 50, "{}", faults.len());
    let text = error.to_string();
    assert_eq!(text.lines().count(), 22);
    assert!(
        text.ends_with(&format!("and {} more", faults.len() - 20)),
        "{text}"
    );
}

#[test]
fn packed_weights_are_refused_by_name() {
    let copy = Copy::of("tiny-a");
    copy.set(
        CONFIG,
        "/quantization_config",
        json!({"quant_method": "compressed-tensors"}),
    );
    copy.rewrite(MODEL, |tensors| {
        let (_, _, data) = tensors.remove(UP).unwrap();
        let stem = UP.strip_suffix(".weight").unwrap();
        tensors.insert(
            format!("{stem}.weight_packed"),
            (Dtype::I32, vec![128, 32], data),
        );
        tensors.insert(
            format!("{stem}.weight_scale"),
            (Dtype::BF16, vec![2], vec![0; 4]),
        );
    });
    let error = copy.open().unwrap_err();
    let LoadError::Several { faults, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(faults.len(), 2, "{error}");
    assert!(
        faults
            .iter()
            .all(|fault| matches!(fault, LoadError::TensorQuantised { .. })),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("up_proj.weight_packed (I32) is packed or scaled"),
        "{error}"
    );
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let first = "model-00001-of-00005.safetensors";
    let weight_map = |copy: &Copy| -> Value {
        serde_json::from_slice::<Value>(&fs::read(copy.at(INDEX)).unwrap()).unwrap()["weight_map"]
            .take()
    };
    let in_first = |copy: &Copy| -> String {
        let map = weight_map(copy);
        map.as_object()
            .unwrap()
            .iter()
            .find(|(_, shard)| *shard == first)
            .unwrap()
            .0
            .clone()
    };
    let copy = Copy::of("tiny-tied");
    let name = in_first(&copy);
    copy.set(
        INDEX,
        &format!("/weight_map/{name}"),
        json!("model-00002-of-00005.safetensors"),
    );
    let fault = copy.fault();
    assert!(
        fault.contains(&format!(
            "{first}: {name} is here, {INDEX} says model-00002"
        )),
        "{fault}"
    );
    assert!(
        fault.contains(&format!(
            "model-00002-of-00005.safetensors: {name} is not here"
        )),
        "{fault}"
    );

    let copy = Copy::of("tiny-tied");
    copy.set(INDEX, &format!("/weight_map/{name}"), Value::Null);
    assert!(
        copy.fault()
            .contains(&format!("{name} is here, {INDEX} does not list it")),
        "{}",
        copy.fault()
    );

    let copy = Copy::of("tiny-tied");
    fs::remove_file(copy.at(first)).unwrap();
    assert!(
        copy.fault().contains(&format!("{first} does not exist")),
        "{}",
        copy.fault()
    );

    for (text, wanted) in [
        ("{}", "missing field `weight_map`"),
        ("[]", "expected an object with weight_map"),
        ("{\"weight_map\": {}}", "is empty"),
        ("{\"weight_map\": {\"a\": 1}}", "expected a string"),
        (
            "{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"x.safetensors\"}}",
            "stands twice in weight_map",
        ),
        (
            "{\"weight_map\": {\"a\": \"../x.safetensors\"}}",
            "no name of a safetensors file beside the index",
        ),
        (
            "{\"weight_map\": {\"a\": \"x.bin\"}}",
            "no name of a safetensors file beside the index",
        ),
        (
            "{\"weight_map\": {}, \"weight_map\": {}}",
            "duplicate field",
        ),
    ] {
        fs::write(copy.at(INDEX), text).unwrap();
        assert!(copy.fault().contains(wanted), "{text}: {}", copy.fault());
    }
}

#[test]
fn a_backbone_without_a_head_opens_and_says_what_is_missing() {
    let copy = Copy::of("tiny-a");
    fs::remove_file(copy.at(HEAD)).unwrap();
    assert!(
        copy.fault()
            .contains("joint_head.safetensors does not exist"),
        "{}",
        copy.fault()
    );
    fs::remove_file(copy.at(HEAD_CONFIG)).unwrap();
    let release = copy.open().unwrap();
    assert!(release.head().is_none());
    let message = release.require_head().unwrap_err().to_string();
    assert!(
        message.contains("--clef DIR") && message.contains(HEAD_CONFIG),
        "{message}"
    );

    let with = Release::open(copy.path(), Some(&fixture("tiny-a"))).unwrap();
    assert_eq!(with.head().unwrap().width, 32);
    assert!(with.sizes().iter().any(|size| size.part == Part::Head));

    let error = Release::open(&fixture("tiny-a"), Some(copy.path())).unwrap_err();
    assert!(
        matches!(
            error,
            LoadError::File {
                fault: FileFault::Missing,
                ..
            }
        ),
        "{error}"
    );
    let error = Release::open(&fixture("tiny-a"), Some(&fixture("tiny-b"))).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("wanted 64, the backbone's hidden_size"),
        "{error}"
    );
}

#[test]
fn output_rows_beside_the_head_stand_in_for_the_backbones() {
    let copy = Copy::of("tiny-a");
    let rows = "lm_head_rows.safetensors";
    fs::copy(copy.at(MODEL), copy.at(rows)).unwrap();
    copy.rewrite(rows, |tensors| {
        tensors.retain(|name, _| name == "lm_head.weight")
    });
    let whole = copy.open().unwrap();
    assert!(whole.lexical_embedding().unwrap().name == "lm_head.weight");
    assert!(whole.sizes().iter().any(|size| size.part == Part::HeadRows));
    copy.rewrite(MODEL, |tensors| drop(tensors.remove("lm_head.weight")));
    let alone = copy.open().unwrap();
    let original = Release::open(&fixture("tiny-a"), None).unwrap();
    assert_eq!(
        alone.output_embedding().unwrap().bytes,
        original.output_embedding().unwrap().bytes
    );
    copy.rewrite(rows, |tensors| {
        tensors.get_mut("lm_head.weight").unwrap().1 = vec![64, 512]
    });
    assert!(
        copy.fault()
            .contains("lm_head.weight is [64, 512], config.json asks for [512, 64]"),
        "{}",
        copy.fault()
    );
    fs::remove_file(copy.at(rows)).unwrap();
    assert!(
        copy.fault().contains("lm_head.weight [512, 64] is missing"),
        "{}",
        copy.fault()
    );
}

#[test]
fn what_is_no_release_is_told_for_what_it_is() {
    let folder = TempDir::new().unwrap();
    let cases = [
        ("gguf", vec!["model-Q4.gguf"], Foreign::Gguf),
        (
            "gguf-with-config",
            vec![CONFIG, "model-Q4.gguf"],
            Foreign::Gguf,
        ),
        (
            "adapter",
            vec!["adapter_config.json", "adapter_model.safetensors"],
            Foreign::Adapter,
        ),
        ("pickle", vec![CONFIG, "pytorch_model.bin"], Foreign::Pickle),
        ("head", vec![HEAD_CONFIG, HEAD], Foreign::HeadOnly),
        ("nothing", vec![], Foreign::Directory),
    ];
    for (name, files, wanted) in cases {
        let directory = folder.path().join(name);
        fs::create_dir(&directory).unwrap();
        for file in files {
            fs::write(directory.join(file), "{}").unwrap();
        }
        let error = Release::open(&directory, None).unwrap_err();
        assert!(
            matches!(error, LoadError::NotARelease { found, .. } if found == wanted),
            "{name}: {error}"
        );
    }
    for (file, wanted) in [
        ("x.gguf", Foreign::Gguf),
        ("x.safetensors", Foreign::SingleFile),
    ] {
        fs::write(folder.path().join(file), "GGUF").unwrap();
        let error = Release::open(&folder.path().join(file), None).unwrap_err();
        assert!(
            matches!(error, LoadError::NotARelease { found, .. } if found == wanted),
            "{file}: {error}"
        );
    }
    let error = Release::open(&folder.path().join("absent"), None).unwrap_err();
    assert!(
        error.to_string().ends_with("absent does not exist"),
        "{error}"
    );
    let copy = Copy::of("tiny-a");
    fs::remove_file(copy.at(MODEL)).unwrap();
    assert!(
        copy.fault().contains("model.safetensors does not exist"),
        "{}",
        copy.fault()
    );
}

#[test]
fn an_embedded_release_is_the_same_as_its_directory() {
    let files: Vec<(&'static str, &'static [u8])> = fs::read_dir(fixture("tiny-tied"))
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let name: &'static str = file.file_name().into_string().unwrap().leak();
            (name, &*fs::read(file.path()).unwrap().leak())
        })
        .collect();
    let embedded = Release::embedded(files.leak()).unwrap();
    let directory = Release::open(&fixture("tiny-tied"), None).unwrap();
    assert_eq!(
        (embedded.config(), embedded.head()),
        (directory.config(), directory.head())
    );
    assert_eq!(
        (embedded.plan(), embedded.sizes()),
        (directory.plan(), directory.sizes())
    );
    for wanted in &directory.plan().tensors {
        let bytes = |release: &Release| release.tensor(&wanted.name).unwrap().bytes.to_vec();
        assert_eq!(bytes(&embedded), bytes(&directory), "{}", wanted.name);
    }
    assert!(embedded.chat_template().unwrap().is_some());
    embedded.tokenizer().unwrap();
    let error = Release::embedded(&[]).unwrap_err();
    assert!(
        error.to_string().contains("config.json does not exist"),
        "{error}"
    );
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let copy = Copy::of("tiny-a");
    fs::copy(
        fixture("tiny-b").join("tokenizer.json"),
        copy.at("tokenizer.json"),
    )
    .unwrap();
    let error = copy.open().unwrap().tokenizer().unwrap_err();
    assert!(
        matches!(error, LoadError::TokenizerIds { vocab: 512, .. }),
        "{error}"
    );
    for text in [
        "",
        "{",
        "{}",
        r#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#,
    ] {
        let error =
            Tokenizer::from_bytes(Path::new("tokenizer.json"), text.as_bytes()).unwrap_err();
        assert!(
            error.to_string().starts_with("tokenizer.json: "),
            "{text}: {error}"
        );
    }
    fs::remove_file(copy.at("tokenizer.json")).unwrap();
    let error = copy.open().unwrap().tokenizer().unwrap_err();
    assert!(
        error.to_string().ends_with("tokenizer.json does not exist"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// The byte-level tokenizer without normalisation gives back any text.
    #[test]
    fn any_text_has_ids_and_comes_back(text in "(\\PC|[\\x00-\\x7f]|<\\|im_end\\|>|\u{301}|\u{feff}){0,60}") {
        thread_local! {
            static TOKENIZER: Tokenizer = Tokenizer::open(&fixture("tiny-a").join("tokenizer.json")).expect("a fixture");
        }
        TOKENIZER.with(|tokenizer| {
            let ids = tokenizer.encode(&text);
            assert!(ids.iter().all(|id| *id <= tokenizer.id_max()));
            assert_eq!(tokenizer.decode(&ids, false), text);
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).expect("its own id")).collect();
            assert_eq!(bytes, text.as_bytes());
        });
    }
}
