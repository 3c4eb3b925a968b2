#!/usr/bin/env python3
"""Writes a random release of any size, the published ones included, without holding it in memory.

    .oracle/venv/bin/python tools/make_random_release.py --shape clef-flash --out DIR [--seed N]

Names, shapes, dtypes, shards and the index are those of a real release, vision tower and joint head included; the numbers are seeded and
mean nothing. It is for testing loads, memory and speed at full size: 19 GB for `clef-flash`, 55 GB for `clef`. `--shape` may also be
the `config.json` of another release, whose tokenizer and head config are then taken from beside it. Needs numpy alone; `--check` also compares the list of
tensors with transformers and the release's module.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO, Iterator

import numpy as np

import seeded

REPOSITORY = Path(__file__).resolve().parents[1]
SMALL = REPOSITORY / "models/tiny-random"
TOKENIZER = REPOSITORY / "fixtures/tokenizer/clef_tokenizer.json.gz"
ELEMENTS_AT_ONCE = 1 << 22
HEAD = {"hidden_size": 4096, "width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
SHARDS = {"clef-flash": 4, "clef": 12}
TEXT = {
    "clef-flash": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
TEXT["clef"] = TEXT["clef-flash"] | {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "linear_num_value_heads": 48,
}
Shapes = dict[str, tuple[int, ...]]


def named_config(name: str) -> dict[str, Any]:
    """Returns the `config.json` of a published shape."""
    text = TEXT[name]
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(text["num_hidden_layers"])]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "text_config": text
        | {
            "model_type": "qwen3_5_text",
            "layer_types": kinds,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "vocab_size": 248320,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
            "eos_token_id": 248044,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "model_type": "qwen3_5_vision",
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "in_channels": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "out_hidden_size": text["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 2304,
        },
    }


def linear(name: str, columns_out: int, columns_in: int) -> Shapes:
    """Lists a linear layer with its bias."""
    return {f"{name}.weight": (columns_out, columns_in), f"{name}.bias": (columns_out,)}


def norm(name: str, width: int) -> Shapes:
    """Lists a LayerNorm."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def vision_tensors(vision: dict[str, Any]) -> Shapes:
    """Lists the vision tower."""
    width, ff = vision["hidden_size"], vision["intermediate_size"]
    patch, merged = vision["patch_size"], vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    shapes: Shapes = {
        "patch_embed.proj.weight": (width, vision["in_channels"], vision["temporal_patch_size"], patch, patch),
        "patch_embed.proj.bias": (width,),
        "pos_embed.weight": (vision["num_position_embeddings"], width),
    }
    for i in range(vision["depth"]):
        block = f"blocks.{i}."
        shapes |= norm(block + "norm1", width) | norm(block + "norm2", width)
        shapes |= linear(block + "attn.qkv", 3 * width, width) | linear(block + "attn.proj", width, width)
        shapes |= linear(block + "mlp.linear_fc1", ff, width) | linear(block + "mlp.linear_fc2", width, ff)
    shapes |= (
        norm("merger.norm", width)
        | linear("merger.linear_fc1", merged, merged)
        | linear("merger.linear_fc2", vision["out_hidden_size"], merged)
    )
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def layer_tensors(text: dict[str, Any], kind: str) -> Shapes:
    """Lists one decoder layer."""
    hidden, ff = text["hidden_size"], text["intermediate_size"]
    shapes: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    shapes |= {
        "mlp.gate_proj.weight": (ff, hidden),
        "mlp.up_proj.weight": (ff, hidden),
        "mlp.down_proj.weight": (hidden, ff),
    }
    if kind == "full_attention":
        heads, kv_heads, width = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
        return shapes | {
            "self_attn.q_proj.weight": (2 * heads * width, hidden),
            "self_attn.k_proj.weight": (kv_heads * width, hidden),
            "self_attn.v_proj.weight": (kv_heads * width, hidden),
            "self_attn.o_proj.weight": (hidden, heads * width),
            "self_attn.q_norm.weight": (width,),
            "self_attn.k_norm.weight": (width,),
        }
    value_heads, value_dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
    keys, values = text["linear_num_key_heads"] * text["linear_key_head_dim"], value_heads * value_dim
    return shapes | {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_b.weight": (value_heads, hidden),
        "linear_attn.in_proj_a.weight": (value_heads, hidden),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, text["linear_conv_kernel_dim"]),
        "linear_attn.dt_bias": (value_heads,),
        "linear_attn.A_log": (value_heads,),
        "linear_attn.norm.weight": (value_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def backbone_tensors(config: dict[str, Any]) -> Shapes:
    """Lists the tensors of `model*.safetensors`, in the order they are written."""
    text = config["text_config"]
    interval = text.get("full_attention_interval", 4)
    kinds = text.get("layer_types") or [
        "linear_attention" if (i + 1) % interval else "full_attention" for i in range(text["num_hidden_layers"])
    ]
    shapes: Shapes = {"embed_tokens.weight": (text["vocab_size"], text["hidden_size"])}
    for i, kind in enumerate(kinds):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer_tensors(text, kind).items()}
    shapes["norm.weight"] = (text["hidden_size"],)
    shapes = {f"model.language_model.{name}": shape for name, shape in shapes.items()} | vision_tensors(
        config["vision_config"]
    )
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (text["vocab_size"], text["hidden_size"])
    return shapes


def head_tensors(head: dict[str, int]) -> Shapes:
    """Lists the tensors of `joint_head.safetensors`."""
    hidden, width, ff = head["hidden_size"], head["width"], head["feedforward"]

    def attention(name: str) -> Shapes:
        return {f"{name}.in_proj_weight": (3 * width, width), f"{name}.in_proj_bias": (3 * width,)} | linear(
            f"{name}.out_proj", width, width
        )

    shapes: Shapes = {
        "prior_logit_scale": (),
        "joint_logit_scale": (),
        "residual_gate": (),
        "type_embedding.weight": (3, width),
    } | norm("hidden_norm", hidden)
    for name in ("memory", "question", "option_question", "global", "option_context", "option_lexical"):
        shapes[f"{name}_projection.weight"] = (width, hidden)
    for i in range(head["routing_layers"]):
        layer = f"evidence_layers.{i}."
        shapes |= (
            norm(layer + "query_norm", width) | norm(layer + "memory_norm", width) | attention(layer + "attention")
        )
        shapes |= (
            norm(layer + "feedforward_norm", width)
            | linear(layer + "feedforward.0", ff, width)
            | linear(layer + "feedforward.3", width, ff)
        )
    for i in range(head["layers"]):
        layer = f"layers.{i}."
        shapes |= attention(layer + "self_attn") | attention(layer + "multihead_attn")
        shapes |= linear(layer + "linear1", ff, width) | linear(layer + "linear2", width, ff)
        shapes |= norm(layer + "norm1", width) | norm(layer + "norm2", width) | norm(layer + "norm3", width)
    for name in ("option_summary_norm", "field_norm", "option_norm"):
        shapes |= norm(name, width)
    return shapes | linear("residual_scorer.0", width, 4 * width) | linear("residual_scorer.3", 1, width)


def chunks(name: str, shape: tuple[int, ...], seed: int, rule: tuple[float, float]) -> Iterator[bytes]:
    """Yields a tensor's bf16 bytes: 16 random bits an element, looked up among 65536 evenly spaced values."""
    centre, reach = rule
    steps = (2 * np.arange(65536, dtype=np.float64) + 1) / 65536 - 1
    table = seeded.to_bf16((centre + reach * steps).astype(np.float32))
    random = np.random.Generator(np.random.SFC64([seeded.fnv1a64(name), seed]))
    left = math.prod(shape)
    while left:
        count = min(left, ELEMENTS_AT_ONCE)
        yield table[np.frombuffer(random.bytes(2 * count), dtype="<u2")].tobytes()
        left -= count


def write_shard(path: Path, shapes: Shapes, seed: int, rule: Any) -> None:
    """Streams one safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            write_tensor(out, name, shape, seed, rule(name, shape))


def write_tensor(out: BinaryIO, name: str, shape: tuple[int, ...], seed: int, rule: tuple[float, float]) -> None:
    """Streams one tensor."""
    for chunk in chunks(name, shape, seed, rule):
        out.write(chunk)


def split(shapes: Shapes, shards: int) -> list[Shapes]:
    """Cuts the list into `shards` parts of about equal size, in order."""
    total, done = sum(math.prod(s) for s in shapes.values()), 0
    parts: list[Shapes] = [{} for _ in range(shards)]
    for name, shape in shapes.items():
        parts[min(shards - 1, done * shards // total)][name] = shape
        done += math.prod(shape)
    return [part for part in parts if part]


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_backbone(out: Path, shapes: Shapes, shards: int, seed: int) -> None:
    """Writes `model.safetensors`, or shards and their index."""
    parts = split(shapes, shards)
    if len(parts) == 1:
        write_shard(out / "model.safetensors", parts[0], seed, seeded.backbone_rule)
        return
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        write_shard(out / file, part, seed, seeded.backbone_rule)
        weight_map |= dict.fromkeys(part, file)
        print(f"{file}: {(out / file).stat().st_size:,} bytes", flush=True)
    size = 2 * sum(math.prod(shape) for shape in shapes.values())
    write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))},
    )


def write_text_files(out: Path, beside: Path | None) -> None:
    """Copies the tokenizer and the small files: those beside the given config, else the released tokenizer with its ids."""
    for name in ("tokenizer_config.json", "chat_template.jinja", "processor_config.json"):
        shutil.copyfile((beside or SMALL) / name, out / name)
    if beside:
        for name in ("tokenizer.json", "generation_config.json"):
            shutil.copyfile(beside / name, out / name)
        return
    (out / "tokenizer.json").write_bytes(gzip.decompress(TOKENIZER.read_bytes()))
    write_json(
        out / "generation_config.json", {"do_sample": False, "eos_token_id": [248046, 248044], "pad_token_id": 248044}
    )


def check(config: dict[str, Any], shapes: Shapes, head: dict[str, int]) -> None:
    """Compares names and shapes with what transformers and the release's module build from the same configs."""
    import torch
    from clef_finetune.jsm import load_jsm
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    with torch.device("meta"):
        backbone = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**config)).state_dict()
        module = load_jsm().JointSchemaHead(**head).state_dict()
    if config["tie_word_embeddings"]:
        backbone.pop("lm_head.weight", None)
    for wanted, listed in ((backbone, shapes), (module, head_tensors(head))):
        found = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
        differing = sorted(dict(found.items() ^ listed.items()))
        if differing:
            raise SystemExit(f"{len(differing)} tensors differ from the reference: {differing[:5]}")
    print(f"{len(shapes)} and {len(module)} tensors, as the reference has them")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", required=True, help="clef-flash, clef, or a config.json")
    parser.add_argument("--out", type=Path, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, help="model files; by default as published, 1 for another shape")
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the tensors with transformers first (needs the oracle's environment)",
    )
    arguments = parser.parse_args()
    if arguments.shape in TEXT:
        beside, config = None, named_config(arguments.shape)
        head = HEAD | {"hidden_size": config["text_config"]["hidden_size"]}
    else:
        beside = Path(arguments.shape).parent
        config = json.loads(Path(arguments.shape).read_text())
        head = json.loads((beside / "joint_head_config.json").read_text())
    shapes = backbone_tensors(config)
    total = sum(math.prod(shape) for shape in shapes.values())
    print(f"{total:,} parameters and {sum(math.prod(s) for s in head_tensors(head).values()):,} in the head")
    if arguments.check:
        check(config, shapes, head)
    if arguments.out is None:
        return
    start = time.monotonic()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    write_text_files(out, beside)
    write_json(out / "config.json", config)
    write_json(out / "joint_head_config.json", head)
    write_shard(out / "joint_head.safetensors", head_tensors(head), arguments.seed, seeded.head_rule)
    write_backbone(out, shapes, arguments.shards or SHARDS.get(arguments.shape, 1), arguments.seed)
    (out / "RANDOM_WEIGHTS.txt").write_text(
        f"Random numbers from seed {arguments.seed}. Not a trained model: its answers mean nothing.\n"
    )
    print(f"{out.name}: {sum(p.stat().st_size for p in out.iterdir()):,} bytes in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
