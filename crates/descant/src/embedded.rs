//! The release that is part of the program.

use descant_release::EmbeddedFiles;

/// What it is called in replies and messages.
pub(crate) const NAME: &str = "demo";

/// What must be said whenever it is used.
pub(crate) const WARNING: &str = "no MODEL given: using the built-in demo model; it knows software packages only, on anything else its answers mean nothing";

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_bytes!(concat!("../../../models/demo/", $name)) as &[u8])),*]
    };
}

/// Its files.
pub(crate) const FILES: EmbeddedFiles = files![
    "chat_template.jinja"
    "config.json"
    "generation_config.json"
    "joint_head.safetensors"
    "joint_head_config.json"
    "model.safetensors"
    "tokenizer.json"
    "tokenizer_config.json"
];
