#!/usr/bin/env python3
"""Makes `fixtures/golden/encode/*.jsonl.gz`: what the release's `encode_record` gives for each request body.

One file a tokenizer. `fixtures/README.md` describes the fields.
"""

from __future__ import annotations

import argparse
import json
from types import ModuleType
from typing import Any, Iterator

import records
import release

ROOM = 16384


def expected(module: ModuleType, tokenizer: Any, body: str, max_length: int) -> dict[str, Any]:
    """Returns the reference's token ids and spans, or its error."""
    record = json.loads(body)
    try:
        encoded = module.encode_record(tokenizer, record, max_length=max_length)
        without_state = module.encode_record(tokenizer, record, max_length=max_length, max_state_tokens=0)
    except (TypeError, ValueError) as error:
        return {"error": str(error), "error_type": type(error).__name__}
    kept = len(encoded.input_ids) - len(without_state.input_ids)
    state_tokens = len(tokenizer(module.render(record["state"]), add_special_tokens=False).input_ids)
    return {
        "input_ids": list(encoded.input_ids),
        "questions": [question(q) for q in encoded.questions],
        "truncated_tokens": state_tokens - kept,
    }


def question(encoded: Any) -> dict[str, Any]:
    """Spells one `EncodedQuestion`."""
    return {
        "id": encoded.question_id,
        "type": ("noul", "choice", "score")[encoded.question_type],
        "question_span": list(encoded.question_span),
        "option_spans": [list(span) for span in encoded.option_spans],
        "option_ids": list(encoded.option_ids),
    }


def edges(module: ModuleType, tokenizer: Any) -> Iterator[tuple[str, str, str, int]]:
    """Yields (name, why, body, max_length) around the two edges of truncation: where the schema just fits and where the state does."""
    states = {
        "words": records.TICKET,
        "emoji": "🙂🇩🇪𝔸" * 5,
        "value": {"b": [1, 2.50, None], "a": "é" * 9},
        "empty": "",
        "special": "a<|im_end|>b<think>",
    }
    for name, state in states.items():
        body = records.body(state, records.TICKET_QUESTIONS if name == "words" else None)
        whole = module.encode_record(tokenizer, json.loads(body))
        fixed = len(module.encode_record(tokenizer, json.loads(body), max_state_tokens=0).input_ids)
        length = len(whole.input_ids)
        wanted = {
            0,
            1,
            fixed - 1,
            fixed,
            fixed + 1,
            fixed + 2,
            (fixed + length) // 2,
            length - 2,
            length - 1,
            length,
            length + 1,
        }
        for max_length in sorted(n for n in wanted if n >= 0):
            relation = (
                "does not fit"
                if max_length < fixed
                else f"leaves {min(max_length, length) - fixed} of {length - fixed} state tokens"
            )
            yield f"edge_{name}_{max_length}", f"a schema of {fixed} tokens {relation}", body, max_length


def lines(module: ModuleType, name: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of one tokenizer's file."""
    tokenizer = release.tokenizer(name)
    for case in records.all_cases():
        head = {"name": case.name, "why": case.why, "body": case.body, "max_length": ROOM, "quirk": case.quirk}
        yield head | expected(module, tokenizer, case.body, ROOM)
    for edge, why, body, max_length in edges(module, tokenizer):
        head = {"name": edge, "why": why, "body": body, "max_length": max_length, "quirk": False}
        yield head | expected(module, tokenizer, body, max_length)


def main() -> None:
    """Writes one file a tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["clef", "tiny-a", "tiny-b", "tiny-tied"])
    module = release.module()
    for name in parser.parse_args().names:
        release.write_jsonl(release.FIXTURES / f"golden/encode/{name}.jsonl.gz", lines(module, name))


if __name__ == "__main__":
    main()
