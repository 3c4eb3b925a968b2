"""Compare this folder's code with the release's own Python on one release, in f32.

    python check.py MODEL corpus.jsonl.xz

Token ids and spans must be equal; hidden rows and logits must agree within f32 rounding. Needs the
packages of requirements.txt's second part (the reference). Exits with 1 if a bound is passed.
"""

import argparse
import random
import sys
from pathlib import Path

import torch
from clef_finetune.jsm import load_jsm
from tokenizers import Tokenizer

import batches
import corpus
import labels
import prompts
import records
from model import Shape, load

# Observed with trained weights: about 2e-5 and 2e-5. A real mistake is larger than 1e-2.
HIDDEN_MAX, LOGIT_MAX = 1e-3, 5e-4


@torch.inference_mode()
def compare(path, rows, count, seed, shape):
    """The largest differences in hidden rows and logits over `count` records."""
    jsm = load_jsm()
    reference, processor = jsm.load_release_model(path, device="cpu", dtype=torch.float32)
    model = load(path, shape)
    encoder = prompts.Encoder(Tokenizer.from_file(str(Path(path) / "tokenizer.json")))
    counts = labels.subject_counts([row for row in rows if row["split"] == "train"])
    pool = records.Pool(rows, "test", counts)
    rng = random.Random(seed)
    made = [records.package_record(rng, pool) for _ in range(count - 2)]
    made += [records.list_record(rng, pool, 12), records.list_record(rng, pool, 30)]
    ours, theirs = [], []
    for record in made:
        encoded = encoder.record(record)
        wanted = jsm.encode_record(processor.tokenizer, record)
        assert tuple(encoded.ids) == wanted.input_ids, "token ids differ"
        assert [q.question_span for q in wanted.questions] == encoded.spans, "question spans differ"
        assert [list(q.option_spans) for q in wanted.questions] == encoded.options, "spans differ"
        ours.append(encoded)
        theirs.append(wanted)
    batch = batches.collate(ours)  # one padded batch for us, record by record for the reference
    hidden, logits = model(batch)
    worst_hidden = worst_logit = 0.0
    text_model = reference.language_model.model.language_model
    for index, wanted in enumerate(theirs):
        single = jsm.collate_records([wanted], 0, torch.device("cpu"))
        rows_out = text_model(input_ids=single["input_ids"]).last_hidden_state[0]
        worst_hidden = max(worst_hidden, float(
            (rows_out - hidden[index, : len(rows_out)]).abs().max()))
        for question, expected in enumerate(reference(single)[0]):
            found = logits[index, question, : len(expected)]
            worst_logit = max(worst_logit, float((found - expected).abs().max()))
    return worst_hidden, worst_logit


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("--records", type=int, default=12)
    args = parser.parse_args()
    hidden, logit = compare(args.model, corpus.load(args.corpus), args.records, 3, Shape())
    print(f"max difference to the reference in f32: hidden rows {hidden:.2e}, logits {logit:.2e}")
    sys.exit(hidden > HIDDEN_MAX or logit > LOGIT_MAX)


if __name__ == "__main__":
    main()
