#!/usr/bin/env python3
"""Makes `fixtures/golden/hidden/NAME.{json,safetensors}`: the reference backbone's numbers for random token ids.

The text model runs as the release's `ClefModel.forward` runs it for a request without media: alone, without a cache.
`fixtures/README.md` describes the fields.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch

import release

LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 200, 321)
BF16_LENGTHS = (65, 130)
CHAT_LENGTHS = (1, 2, 63, 64, 65, 130)
CHAT_TOKENS = 24
# A greedy choice is only worth comparing where rounding cannot turn it: the logits agree to about 1e-4.
MARGIN_MIN = 5e-3


def hidden_rows(backbone: Any, ids: list[int]) -> torch.Tensor:
    """Returns the rows after the final norm, `[len(ids), hidden]` in the model's dtype."""
    tokens = torch.tensor([ids])
    output = backbone.model.language_model(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, return_dict=True
    )
    return output.last_hidden_state[0]


def last_logits(backbone: Any, ids: list[int]) -> torch.Tensor:
    """Returns the LM head's logits after the last token, `[vocab]`."""
    return hidden_rows(backbone, ids)[-1] @ backbone.get_output_embeddings().weight.T


def greedy(backbone: Any, prompt: list[int]) -> tuple[list[int], float]:
    """Continues a prompt by the top token, recomputing the whole prompt each time; returns the tokens and the least margin."""
    ids = list(prompt)
    margin = float("inf")
    for _ in range(CHAT_TOKENS):
        top = last_logits(backbone, ids).topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        ids.append(int(top.indices[0]))
    return ids[len(prompt) :], margin


def draw(name: str, purpose: str, length: int, attempt: int, vocab: int) -> list[int]:
    """Draws token ids over the whole embedding, rows past the tokenizer's included."""
    rng = random.Random(f"{name} {purpose} {length} {attempt}")
    return [rng.randrange(vocab) for _ in range(length)]


def chat(backbone: Any, name: str, length: int, vocab: int) -> dict[str, Any]:
    """Returns the first drawn prompt whose greedy continuation has clear margins."""
    for attempt in range(1000):
        prompt = draw(name, "chat", length, attempt, vocab)
        continuation, margin = greedy(backbone, prompt)
        if margin >= MARGIN_MIN and len(set(continuation)) > 2:
            return {"prompt": prompt, "continuation": continuation, "margin_min": margin}
    raise SystemExit(f"{name}: no prompt of {length} tokens has margins of {MARGIN_MIN}")


@torch.inference_mode()
def make(module: Any, name: str, lengths: tuple[int, ...], folder: Path) -> None:
    """Writes both files of one release."""
    model, _ = module.load_release_model(release.RELEASES[name], device="cpu", dtype=torch.float32)
    backbone = model.language_model
    vocab = backbone.config.text_config.vocab_size
    tensors: dict[str, torch.Tensor] = {}
    prompts = []
    for length in lengths:
        ids = draw(name, "hidden", length, 0, vocab)
        rows = hidden_rows(backbone, ids)
        tensors[f"hidden.{length}"] = rows
        tensors[f"logits.{length}"] = rows[-1] @ backbone.get_output_embeddings().weight.T
        prompts.append({"length": length, "ids": ids})
    chats = [chat(backbone, name, length, vocab) for length in CHAT_LENGTHS]

    model, _ = module.load_release_model(release.RELEASES[name], device="cpu", dtype=torch.bfloat16)
    bf16_prompts = []
    for length in BF16_LENGTHS:
        ids = draw(name, "bf16", length, 0, vocab)
        tensors[f"bf16_hidden.{length}"] = hidden_rows(model.language_model, ids).float()
        bf16_prompts.append({"length": length, "ids": ids})

    record = {"release": name, "prompts": prompts, "bf16_prompts": bf16_prompts, "chats": chats}
    release.write_bytes(folder / f"{name}.json", (json.dumps(record, separators=(",", ":")) + "\n").encode())
    release.write_safetensors(folder / f"{name}.safetensors", tensors)
    scale = tensors[f"hidden.{lengths[-1]}"].abs().mean().item()
    print(f"{name}: mean |hidden| {scale:.3f}, least chat margins {[round(c['margin_min'], 4) for c in chats]}")


def main() -> None:
    """Writes the files of each release named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(release.RELEASES))
    torch.set_num_threads(1)
    module = release.module()
    for name in parser.parse_args().names:
        lengths = LENGTHS if name != "tiny-random" else (1, 65, 130)
        make(module, name, lengths, release.FIXTURES / "golden/hidden")


if __name__ == "__main__":
    main()
