#!/usr/bin/env python3
"""Makes `fixtures/golden/answers/NAME.jsonl.gz`: whole requests and the release's own replies in f32.

`fixtures/README.md` describes the fields.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any, Iterator

import torch

import records
import release

ROOM = 16384
# The long requests are left to the encoder's goldens, where they cost nothing.
NAMES = {
    "ticket",
    "ticket_as_object",
    "empty_state",
    "state_null",
    "state_list",
    "state_number",
    "order_of_questions",
    "unknown_fields",
    "noul_criteria_null",
    "noul_true_only",
    "noul_false_only",
    "noul_both",
    "noul_true_null",
    "noul_both_null",
    "noul_structured",
    "noul_falsy_descriptions",
    "choice_one",
    "choice_null_descriptions",
    "choice_mixed_case",
    "choice_prefixes",
    "choice_astral",
    "choice_accents",
    "choice_duplicate",
    "choice_escapes",
    "choice_kinds",
    "score_one",
    "score_ten",
    "score_twelve",
    "score_objects",
    "score_lists",
    "score_nulls",
    "score_scalars",
    "score_same",
    "instructions_absent",
    "instructions_structured",
    "instructions_in_other_scripts",
    "numbers_in_options",
    "duplicate_question",
    "special_everywhere",
    "special_template",
    "scripts_in_schema_0",
    "nesting_200_mixed",
    "string_controls_rendered",
    *(f"fuzz_{seed:02}" for seed in range(12)),
}


def long_cases(tokenizer: Any) -> Iterator[tuple[str, str, str, int]]:
    """Yields (name, why, body, max_length) of requests of one to three thousand tokens, whole and cut."""
    words = " ".join(f"line {i}: the export of report {i * 7919 % 1000} took {i % 60} s." for i in range(400))
    for wanted in (1000, 2000, 3000):
        share = wanted / len(tokenizer(words, add_special_tokens=False).input_ids)
        body = records.body(words[: int(len(words) * share)], records.TICKET_QUESTIONS)
        yield f"long_{wanted}", f"a state of about {wanted} tokens", body, ROOM
    yield "cut_to_1200", "a long state cut from its end", records.body(words, records.TICKET_QUESTIONS), 1200
    yield "cut_to_1536", "a long state cut from its end", records.body(words, records.TICKET_QUESTIONS), 1536
    kinds: list[dict[str, Any]] = [
        {"type": "noul"},
        {"type": "choice", "criteria": {"b": None, "a": "A", "c": 0}},
        {"type": "score", "criteria": ["low", "mid", "high"]},
    ]
    yield (
        "questions_12",
        "many questions influence one another",
        records.body(records.TICKET, {f"q{i}": kinds[i % 3] for i in range(12)}),
        ROOM,
    )
    many = {"q": {"type": "choice", "criteria": {f"o{i}": None for i in range(40)}}}
    yield "options_40", "many options", records.body("x", many), ROOM


def answered(module: Any, model: Any, processor: Any, body: str, max_length: int) -> dict[str, Any]:
    """Returns the reference's logits, probabilities and reply."""
    request = json.loads(body)
    tokenizer = processor.tokenizer
    encoded = module.encode_record(tokenizer, request, max_length=max_length)
    logits = model(module.collate_records([encoded], tokenizer.pad_token_id, torch.device("cpu")))[0]
    reply = module.systemone(model, processor, request, max_length=max_length)
    assert all(math.isfinite(x) for question in logits for x in question.tolist())
    return {
        "input_tokens": len(encoded.input_ids),
        "questions": [q.question_id for q in encoded.questions],
        "option_ids": [list(q.option_ids) for q in encoded.questions],
        "logits": [question.tolist() for question in logits],
        "probabilities": [question.float().softmax(-1).tolist() for question in logits],
        "reply": json.dumps(reply, ensure_ascii=False, separators=(",", ":")),
    }


@torch.inference_mode()
def lines(module: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of one release's file."""
    model, processor = module.load_release_model(release.RELEASES[name], device="cpu", dtype=torch.float32)
    chosen = [(case.name, case.why, case.body, ROOM) for case in records.all_cases() if case.name in NAMES]
    assert len(chosen) == len(NAMES)
    for case, why, body, max_length in [*chosen, *long_cases(processor.tokenizer)]:
        head = {"name": case, "why": why, "body": body, "max_length": max_length}
        yield head | answered(module, model, processor, body, max_length)


def main() -> None:
    """Writes one file a release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(release.RELEASES))
    torch.set_num_threads(1)
    module = release.module()
    for name in parser.parse_args().names:
        release.write_jsonl(release.FIXTURES / f"golden/answers/{name}.jsonl.gz", lines(module, name))


if __name__ == "__main__":
    main()
