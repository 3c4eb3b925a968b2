"""Record what the release's own Python answers to the gate's records.

    python record_gate.py MODEL fixtures/gate/records.jsonl OUT.jsonl.gz --dtype f32|bf16

A line of OUT is a System One reply with the record's id and, for every question, a `raw` block:
options in the model's order, f32 probabilities and logits before any rounding. The module is the
one that `tools/oracle/release.py` checks by its sum; one thread, one record at a time. The recorded
answers were made on a CPU; `--device cuda` gives those of a GPU.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import release  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@torch.inference_mode()
def reply(module, model, processor, request, device):
    """The release's reply, its numbers unrounded beside it."""
    tokenizer = processor.tokenizer
    encoded = module.encode_record(tokenizer, request)
    logits = model(module.collate_records([encoded], tokenizer.pad_token_id, torch.device(device)))[0]
    answers = {}
    for question, values in zip(encoded.questions, logits):
        values = values.float()
        if not all(map(math.isfinite, values.tolist())):
            raise SystemExit(f"question {question.question_id}: a logit is not finite")
        options, probabilities = list(question.option_ids), values.softmax(-1).tolist()
        answer = module.systemone_answer(
            request["questions"][question.question_id], dict(zip(options, probabilities)))
        raw = {"options": options, "probabilities": probabilities, "logits": values.tolist()}
        answers[question.question_id] = answer | {"raw": raw}
    usage = {"input_tokens": len(encoded.input_ids), "output_tokens": 0}
    return {"model": request["model"], "answers": answers, "usage": usage}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("records", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    module = release.module()
    model, processor = module.load_release_model(args.model, device=args.device, dtype=DTYPES[args.dtype])
    replies = []
    for line in args.records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found = reply(module, model, processor, record["request"], args.device)
        replies.append({"id": record["id"]} | found)
        print(f"{record['id']}: {found['usage']['input_tokens']} tokens", file=sys.stderr, flush=True)
    release.write_jsonl(args.out.resolve(), replies)


if __name__ == "__main__":
    main()
