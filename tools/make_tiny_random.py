#!/usr/bin/env python3
"""Makes `models/tiny-random/`: a complete release in the published layout, with random weights, small enough to embed in a program.

    .oracle/venv/bin/python tools/make_tiny_random.py [--out DIR] [--seed N]

Shapes, names and files are those of a real release; the numbers are drawn by `seeded.py`, so the same seed gives the same bytes. The
tokenizer has the released one's stages and added tokens around a small vocabulary, trained on the sentences below.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, trainers

import seeded

REPOSITORY = Path(__file__).resolve().parents[1]
BPE_TOKENS = 500  # 256 bytes and 244 merges
VOCAB = 576  # wider than the tokenizer, as in the real releases
HEAD = {"hidden_size": 48, "width": 32, "routing_layers": 2, "layers": 4, "heads": 4, "feedforward": 64}
CORPUS = """
Read the complete state and schema. Decide every field jointly. Each answer must be exactly one of that field's allowed options.
SCHEMA FIELDS: FIELD ID: TYPE: noul TYPE: choice TYPE: score INSTRUCTION: ALLOWED OPTIONS: OPTION END FIELD JOINT SCHEMA DECISIONS: STATE:
{"description":"The proposition is true or the answer is yes.","option_id":"true"}
{"description":"The proposition is false or the answer is no.","option_id":"false"}
system user assistant
The customer writes that the export button does nothing since the update of yesterday, and that the quarterly numbers are needed today.
Which team should take this message? Platform handles defects and outages, billing handles invoices and refunds, success answers questions.
How badly is the customer blocked? Not blocked, partly blocked with a workaround, fully blocked. How urgent is the request?
Is the writer angry, neutral or pleased? Does the text ask for a refund? Should a person look at this before anything is sent?
Please cancel my order, the parcel arrived broken and nobody has answered my last three messages. Thank you for the quick reply.
The server returned an error when the file was uploaded; after a restart the service was available again within ten minutes.
Our meeting moves to the second week of next month. The contract has to be signed before the first of January.
This package contains the shared library and the documentation. It depends on the network and is used by other programs.
The patient reports a headache for two days, no fever, and takes no other medicine. The temperature was normal this morning.
A payment of 1,250.00 was made on 2026-03-14 from an account that had not been used for more than a year.
{"subject":"Re: invoice","from":"anna@example.org","amount":199.5,"currency":"EUR","paid":false,"tags":["billing","open"],"notes":null}
She said that they were not sure whether it would work, but that it should be tried again with more care and less haste.
What is the language of the text: English, German, French, Spanish or another one? Is the statement supported by the source?
There are many reasons for which something like this could have happened, and it is not always the first one that is right.
Der Knopf zum Exportieren macht seit dem Update nichts mehr. Le bouton ne fait plus rien. El paquete llegó roto. Bitte um Antwort.
"""
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
<think>

</think>

{% endif -%}
"""
CARD = """\
---
license: apache-2.0
library_name: descant
tags: [clef, decision-model, random-weights]
---

# tiny-random

**This model knows nothing.** Its weights are random numbers; its answers mean nothing and must not be used for anything but trying out
software.

It is a complete release in the layout of Cloudflare's Clef models, made so that a Clef server can be started, tested and measured without
a download: the same files, tensor names, layer kinds and head layout, at a small size.

| | |
|---|---|
| backbone | Qwen3.5 architecture: {layers} layers, every 4th with full attention; hidden size {hidden}; {parameters:,} parameters, vision tower included |
| joint schema head | the released layout ({routing} routing and {decoder} decoder layers) at width {width}; {head_parameters:,} parameters |
| tokenizer | the stages and added tokens of the released tokenizer around {tokens} byte-pair tokens, trained on two dozen sentences |
| weights | uniform random numbers from seed {seed}, bf16 |
| training data, evaluation | none |

Made by `tools/make_tiny_random.py`; the same seed gives the same files.
"""


def tokenizer() -> Tokenizer:
    """Returns the released tokenizer's stages around a vocabulary trained on `CORPUS`."""
    released = json.loads(gzip.decompress((REPOSITORY / "fixtures/tokenizer/clef_tokenizer.json.gz").read_bytes()))
    released["model"] |= {"vocab": {}, "merges": []}
    added, released["added_tokens"] = released["added_tokens"], []
    trained = Tokenizer.from_str(json.dumps(released))
    alphabet = sorted(byte_characters())
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_TOKENS, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    trained.train_from_iterator(CORPUS.strip().splitlines(), trainer)
    model = json.loads(trained.to_str())["model"]
    released["model"] |= {"vocab": model["vocab"], "merges": model["merges"]}
    first = len(model["vocab"])
    released["added_tokens"] = [token | {"id": first + i} for i, token in enumerate(added)]
    return Tokenizer.from_str(json.dumps(released, ensure_ascii=False))


def byte_characters() -> list[str]:
    """Returns the 256 characters by which a byte-level vocabulary writes bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def config(ids: dict[str, int]) -> Any:
    """Returns the configuration: a Clef-Flash in miniature."""
    from transformers import Qwen3_5Config

    text = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 48,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=False,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def draw(state: dict[str, torch.Tensor], seed: int, rule: Any) -> dict[str, torch.Tensor]:
    """Replaces every tensor by seeded bf16 numbers of its shape."""
    drawn = {}
    for name, tensor in state.items():
        shape = tuple(tensor.shape)
        centre, reach = rule(name, shape)
        values = torch.from_numpy(seeded.uniform(name, seed, 0, math.prod(shape), centre, reach))
        drawn[name] = values.to(torch.bfloat16).reshape(shape)
    return drawn


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    """Writes the release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "models/tiny-random")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    from clef_finetune.jsm import load_jsm
    from transformers import Qwen3_5ForConditionalGeneration

    made = tokenizer()
    ids = made.get_vocab()
    configuration = config(ids)
    with torch.device("meta"):
        backbone = Qwen3_5ForConditionalGeneration(configuration).state_dict()
        head = load_jsm().JointSchemaHead(**HEAD).state_dict()
    weights = draw(backbone, arguments.seed, seeded.backbone_rule)
    head_weights = draw(head, arguments.seed, seeded.head_rule)
    (out / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (out / "joint_head.safetensors").write_bytes(save(head_weights, metadata={"format": "pt"}))
    configuration.architectures = ["Qwen3_5ForConditionalGeneration"]
    configuration.dtype = torch.bfloat16
    configuration.save_pretrained(out)
    write_json(out / "joint_head_config.json", HEAD)
    (out / "tokenizer.json").write_text(made.to_str())
    shared = REPOSITORY / "fixtures/releases/tiny-b"
    write_json(out / "tokenizer_config.json", json.loads((shared / "tokenizer_config.json").read_text()))
    write_json(out / "processor_config.json", json.loads((shared / "processor_config.json").read_text()))
    write_json(
        out / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "pad_token_id": ids["<|endoftext|>"],
        },
    )
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (out / "README.md").write_text(
        CARD.format(
            layers=configuration.text_config.num_hidden_layers,
            hidden=HEAD["hidden_size"],
            parameters=sum(t.numel() for t in weights.values()),
            routing=HEAD["routing_layers"],
            decoder=HEAD["layers"],
            width=HEAD["width"],
            head_parameters=sum(t.numel() for t in head_weights.values()),
            tokens=len(ids) - 33,
            seed=arguments.seed,
        )
    )
    total = sum(path.stat().st_size for path in out.iterdir())
    print(f"{out.name}: {total:,} bytes in {sum(1 for _ in out.iterdir())} files, {len(head_weights)} head tensors")


if __name__ == "__main__":
    main()
