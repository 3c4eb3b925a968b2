#!/usr/bin/env python3
"""Makes `fixtures/golden/head/`: the release's joint schema head alone, on given hidden rows.

Three small heads with stored weights, and the two published widths with weights drawn by `tools/seeded.py` instead of stored.
`fixtures/README.md` describes the fields.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from pathlib import Path
from typing import Any, Callable

import torch

import release

sys.path.insert(0, str(release.REPOSITORY / "tools"))
import seeded  # noqa: E402

SMALL = {
    "small-1": {"hidden_size": 40, "width": 24, "routing_layers": 1, "layers": 2, "heads": 3, "feedforward": 56},
    "small-2": {"hidden_size": 64, "width": 32, "routing_layers": 3, "layers": 1, "heads": 2, "feedforward": 48},
    "small-3": {"hidden_size": 72, "width": 20, "routing_layers": 2, "layers": 3, "heads": 5, "feedforward": 28},
}
SMALL_VOCAB = 40
# Scales past ln 100: the head clamps them.
CLAMPED = {"small-2": {"prior_logit_scale": 6.0, "joint_logit_scale": 5.5}}
REAL = {
    width: {"hidden_size": width, "width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
    for width in (4096, 5120)
}
REAL_VOCAB = 248320
REAL_ROWS = 200
KINDS = ("noul", "choice", "score")


def layout(rng: random.Random, rows: int, kinds: list[tuple[str, int]], length_max: int) -> list[dict[str, Any]]:
    """Draws spans that follow one another from the start, as a prompt's do: (kind, options) for each question."""
    questions, at = [], rng.randint(0, 3)
    for kind, options in kinds:
        spans = []
        for _ in range(1 + options):
            length = rng.randint(1, length_max)
            spans.append([at, at + length])
            at += length + rng.randint(0, 1)
        questions.append({"type": kind, "question_span": spans[0], "option_spans": spans[1:]})
    assert at < rows, f"{at} rows are needed, {rows} given"
    return questions


def encoded(module: Any, ids: list[int], questions: list[dict[str, Any]]) -> Any:
    """Spells spans as the `EncodedRecord` the head takes."""
    made = [
        module.EncodedQuestion(
            question_id=str(i),
            question_type=KINDS.index(q["type"]),
            question_span=tuple(q["question_span"]),
            option_spans=tuple(map(tuple, q["option_spans"])),
            option_ids=tuple(str(j) for j in range(len(q["option_spans"]))),
        )
        for i, q in enumerate(questions)
    ]
    return module.EncodedRecord(input_ids=tuple(ids), questions=tuple(made), record_id="unknown")


@torch.inference_mode()
def logits(
    module: Any, head: Any, hidden: torch.Tensor, ids: list[int], questions: list[dict[str, Any]], lm_head: torch.Tensor
) -> list[list[float]]:
    """Runs the head in the dtype of its weights; `ids` are rows of `lm_head`."""
    dtype = next(head.parameters()).dtype
    record = encoded(module, ids, questions)
    out = head(
        hidden.to(dtype)[None],
        torch.tensor([ids]),
        torch.ones(1, len(ids), dtype=torch.long),
        [record],
        lm_head.to(dtype),
    )
    return [question.tolist() for question in out[0]]


def both(module: Any, head: Any, *inputs: Any) -> dict[str, Any]:
    """Returns the f32 logits and, from the same weights and rows, the f64 ones."""
    single = logits(module, head.float(), *inputs)
    double = logits(module, head.double(), *inputs)
    worst = max(abs(a - b) for s, d in zip(single, double) for a, b in zip(s, d))
    return {"logits_f32": single, "logits_f64": double, "worst": worst}


def load_head(module: Any, config: dict[str, int], fill: Callable[[str, tuple[int, ...]], torch.Tensor]) -> Any:
    """Builds a head whose tensors come from `fill`."""
    head = module.JointSchemaHead(**config).eval()
    head.load_state_dict({name: fill(name, tuple(t.shape)) for name, t in head.state_dict().items()}, strict=True)
    return head


def small(module: Any, name: str, folder: Path) -> None:
    """Writes one small head: its weights as a release has them, the inputs, and the logits."""
    config = SMALL[name]
    torch.manual_seed(config["hidden_size"])

    def fill(tensor: str, shape: tuple[int, ...]) -> torch.Tensor:
        centre, reach = seeded.head_rule(tensor, shape)
        if not shape:
            return torch.tensor(CLAMPED.get(name, {}).get(tensor, centre)).bfloat16().float()
        return (centre + reach / math.sqrt(3) * torch.randn(shape)).bfloat16().float()

    head = load_head(module, config, fill)
    release.write_safetensors(
        folder / name / "joint_head.safetensors", {k: v.bfloat16() for k, v in head.state_dict().items()}
    )
    release.write_bytes(folder / name / "joint_head_config.json", (json.dumps(config, indent=2) + "\n").encode())

    hidden_size = config["hidden_size"]
    lm_head = torch.randn(SMALL_VOCAB, hidden_size).bfloat16()
    lm_head[0] = 0
    tensors = {"lm_head.weight": lm_head}
    rng = random.Random(name)
    plans = {
        "one_noul": (17, [("noul", 2)], 3),
        "mixed": (70, [("choice", 4), ("noul", 2), ("score", 3), ("choice", 1), ("noul", 2)], 5),
        "spans_of_one_row": (50, [("score", 5), ("choice", 7)], 1),
        "many_options": (180, [("choice", 33), ("score", 10), ("noul", 2)], 3),
    }
    cases = []
    for case, (rows, kinds, length_max) in plans.items():
        hidden = torch.randn(rows, hidden_size)
        tensors[f"{case}.hidden"] = hidden
        ids = [rng.randrange(1, SMALL_VOCAB) for _ in range(rows)]
        questions = layout(rng, rows, kinds, length_max)
        cases.append(
            {"name": case, "hidden": f"{case}.hidden", "ids": ids, "questions": questions}
            | both(module, head, hidden, ids, questions, lm_head)
        )

    base = next(c for c in cases if c["name"] == "mixed")
    rows, ids, questions = tensors["mixed.hidden"], base["ids"], base["questions"]
    first, last = questions[0]["option_spans"][1]
    zero_ids = [0 if first <= i < last else t for i, t in enumerate(ids)]
    cases.append(
        {"name": "option_with_a_zero_lexical_vector", "hidden": "mixed.hidden", "ids": zero_ids, "questions": questions}
        | both(module, head, rows, zero_ids, questions, lm_head)
    )
    tensors["zeros.hidden"] = torch.zeros_like(rows)
    cases.append(
        {"name": "zero_rows", "hidden": "zeros.hidden", "ids": ids, "questions": questions}
        | both(module, head, tensors["zeros.hidden"], ids, questions, lm_head)
    )
    print(name, {c["name"]: f"{c.pop('worst'):.1e}" for c in cases})
    cases += [
        poisoned(module, head, rows, ids, questions, lm_head, row, value)
        for row, value in [(0, "NaN"), (first, "inf"), (len(ids) - 1, "-inf"), (len(ids) - 2, "NaN")]
    ]
    release.write_safetensors(folder / name / "inputs.safetensors", tensors)
    release.write_jsonl(folder / name / "cases.jsonl", cases)


def poisoned(
    module: Any,
    head: Any,
    hidden: torch.Tensor,
    ids: list[int],
    questions: list[dict[str, Any]],
    lm_head: torch.Tensor,
    row: int,
    value: str,
) -> dict[str, Any]:
    """Returns the case `mixed` with one number of one row that is not finite, after seeing that every logit is NaN."""
    bad = hidden.clone()
    bad[row, 3] = float(value)
    out = logits(module, head.float(), bad, ids, questions, lm_head)
    assert all(math.isnan(x) for question in out for x in question)
    return {
        "name": f"{value}_in_row_{row}",
        "hidden": "mixed.hidden",
        "ids": ids,
        "questions": questions,
        "poison": {"row": row, "column": 3, "value": value},
    }


def drawn(name: str, seed: int, shape: tuple[int, ...], centre: float, reach: float) -> torch.Tensor:
    """Draws a whole tensor rounded to bf16, widened to f32."""
    values = seeded.uniform(name, seed, 0, math.prod(shape), centre, reach)
    return torch.from_numpy(seeded.from_bf16(seeded.to_bf16(values))).reshape(shape)


def real(module: Any, width: int) -> dict[str, Any]:
    """Returns the record of one published width; the seed is the hidden size."""
    config, seed = REAL[width], width
    head = load_head(module, config, lambda name, shape: drawn(name, seed, shape, *seeded.head_rule(name, shape)))
    rng = random.Random(f"head {width}")
    questions = layout(rng, REAL_ROWS, [("noul", 2), ("choice", 5), ("score", 4), ("choice", 1), ("score", 10)], 10)
    ids = [rng.randrange(REAL_VOCAB) for _ in range(REAL_ROWS)]
    hidden = torch.from_numpy(seeded.uniform("hidden", seed, 0, REAL_ROWS * width, 0.0, 2.0)).reshape(REAL_ROWS, width)
    lm_rows = [seeded.uniform("lm_head.weight", seed, token * width, width, 0.0, 0.0625) for token in ids]
    lm_head = torch.stack([torch.from_numpy(seeded.from_bf16(seeded.to_bf16(row))) for row in lm_rows])
    result = both(module, head, hidden, list(range(REAL_ROWS)), questions, lm_head)
    print(f"width {width}: f32 differs from f64 by {result.pop('worst'):.1e}")
    return {
        "name": f"hidden_{width}",
        "config": config,
        "seed": seed,
        "rows": REAL_ROWS,
        "ids": ids,
        "questions": questions,
        "checks": checks(head.float().state_dict(), hidden, ids[0], lm_head[0]),
    } | result


def checks(
    state: dict[str, torch.Tensor], hidden: torch.Tensor, token: int, lm_row: torch.Tensor
) -> list[dict[str, Any]]:
    """Returns a few drawn elements as f32 bit patterns, by which another language's generator is checked first."""

    def bits(value: torch.Tensor) -> str:
        return f"{value.reshape(1).float().view(torch.int32).item() & 0xFFFFFFFF:08x}"

    names = [
        "memory_projection.weight",
        "type_embedding.weight",
        "hidden_norm.weight",
        "layers.3.self_attn.in_proj_bias",
        "joint_logit_scale",
        "residual_scorer.3.weight",
    ]
    found = [
        {"tensor": n, "element": e, "bits": bits(state[n].flatten()[e])}
        for n in names
        for e in sorted({0, state[n].numel() // 2, state[n].numel() - 1})
    ]
    found += [{"tensor": "hidden", "element": e, "bits": bits(hidden.flatten()[e])} for e in (0, 1, hidden.numel() - 1)]
    return [*found, {"tensor": "lm_head.weight", "element": token * lm_row.numel(), "bits": bits(lm_row[0])}]


def main() -> None:
    """Writes all heads."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    module = release.module()
    folder = release.FIXTURES / "golden/head"
    for name in SMALL:
        small(module, name, folder)
    release.write_jsonl(folder / "real.jsonl", [real(module, width) for width in REAL])


if __name__ == "__main__":
    main()
