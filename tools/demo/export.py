"""Write a trained model as a release: the folder that the release's own Python loads.

    python export.py CHECKPOINT TOKENIZER_DIR OUT

CHECKPOINT holds `backbone.safetensors` and `joint_head.safetensors` as `train.py` writes them. The
vision tower has the family's layout and random weights: the model is not trained on images.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from model import Shape

HERE = Path(__file__).parent
MAX_POSITIONS = 32768


def text_config(shape, ids):
    """The text half of config.json."""
    pattern = ["linear_attention"] * (shape.attention_every - 1) + ["full_attention"]
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "full_attention_interval": shape.attention_every,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.mlp,
        "layer_types": pattern * (shape.layers // shape.attention_every),
        "linear_conv_kernel_dim": shape.conv,
        "linear_key_head_dim": shape.key_dim,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_value_head_dim": shape.value_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": MAX_POSITIONS,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 0,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": ids["<|endoftext|>"],
        "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
            "rope_theta": shape.rope_theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def config(shape, ids):
    """config.json."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "dtype": "bfloat16",
        "image_token_id": ids["<|image_pad|>"],
        "model_type": "qwen3_5",
        "text_config": text_config(shape, ids),
        "tie_word_embeddings": False,
        "transformers_version": "5.10.2",
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": {
            "depth": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 64,
            "model_type": "qwen3_5_vision",
            "num_heads": 2,
            "num_position_embeddings": 64,
            "out_hidden_size": shape.hidden,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }


TOKENIZER_CONFIG = {
    "add_prefix_space": False,
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "audio_token": "<|audio_pad|>",
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "errors": "replace",
    "image_token": "<|image_pad|>",
    "model_max_length": MAX_POSITIONS,
    "pad_token": "<|endoftext|>",
    "processor_class": "Qwen3VLProcessor",
    "split_special_tokens": False,
    "tokenizer_class": "Qwen2Tokenizer",
    "unk_token": None,
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}


def pixels(longest, shortest, **more):
    """The shared part of the image and video settings."""
    return {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "merge_size": 2,
        "patch_size": 16, "resample": 3, "rescale_factor": 1 / 255, "temporal_patch_size": 2,
        "size": {"longest_edge": longest, "shortest_edge": shortest}, **more,
    }


PROCESSOR_CONFIG = {
    "image_processor": pixels(16777216, 65536, image_processor_type="Qwen2VLImageProcessor"),
    "processor_class": "Qwen3VLProcessor",
    "video_processor": pixels(
        25165824, 4096, do_sample_frames=True, fps=2, max_frames=768, min_frames=4,
        return_metadata=False, video_processor_type="Qwen3VLVideoProcessor"),
}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def vision_weights(settings, seed):
    """Random weights of the vision tower, bf16."""
    torch.manual_seed(seed)
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**settings)).to(torch.bfloat16)
    return {k: v.contiguous() for k, v in model.state_dict().items() if ".visual." in k}


def export(checkpoint, tokenizer_dir, out, shape, seed=0):
    """Write the release folder."""
    checkpoint, out = Path(checkpoint), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(Path(tokenizer_dir) / "tokenizer.json"))
    ids = tokenizer.get_vocab()
    settings = config(shape, ids)
    weights = load_file(checkpoint / "backbone.safetensors")
    weights |= vision_weights(settings, seed)
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    head = load_file(checkpoint / "joint_head.safetensors")
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in head.items()},
              out / "joint_head.safetensors")
    write_json(out / "config.json", settings)
    write_json(out / "joint_head_config.json", {
        "hidden_size": shape.hidden, "width": shape.width, "routing_layers": shape.routing_layers,
        "layers": shape.head_layers, "heads": shape.field_heads, "feedforward": shape.feedforward})
    write_json(out / "tokenizer_config.json", TOKENIZER_CONFIG)
    write_json(out / "processor_config.json", PROCESSOR_CONFIG)
    write_json(out / "generation_config.json", {
        "do_sample": False, "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"], "transformers_version": "5.10.2"})
    shutil.copyfile(Path(tokenizer_dir) / "tokenizer.json", out / "tokenizer.json")
    shutil.copyfile(HERE / "chat_template.jinja", out / "chat_template.jinja")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    args = parser.parse_args()
    export(args.checkpoint, args.tokenizer, args.out, Shape())
    size = sum(path.stat().st_size for path in Path(args.out).iterdir())
    print(f"{args.out}: {size:,} bytes")


if __name__ == "__main__":
    main()
