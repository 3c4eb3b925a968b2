//! Releases as they are, whole and damaged: what opens, and what every fault says.

use std::path::{Path, PathBuf};

use descant_decision::Tokenize;
use descant_release::{LayerKind, Release};

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
        assert!(tokenizer.encode("").is_empty());
    }
}
