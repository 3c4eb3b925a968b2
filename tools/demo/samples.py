"""Draw the committed records about held-out packages: the evaluation example and the gate's requests.

    python samples.py MODEL corpus.jsonl.xz REPOSITORY

Writes `examples/eval/debian-heldout.jsonl` (`{"request", "expected"}` a line) and
`fixtures/gate/records.jsonl` (`{"id", "request"}` a line). No package of either was trained on.
MODEL is needed for its tokenizer alone: the gate's records are chosen by length.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import Tokenizer

import corpus
import labels
import prompts
import records

MODEL_NAME = "descant-demo"
EVAL_RECORDS, EVAL_SEED = 200, 21
GATE_SEED = 22
# The gate: package records up to this many questions, then lists of about these many tokens.
GATE_QUESTIONS = 500
GATE_LISTS = (1100, 1300, 1600, 2000, 2400, 3000, 3600, 4300, 5000, 6500, 8500, 11000, 15900)
# The shortest prompts, of which the corpus has none.
SHORT = (
    ("", {"q": {"type": "noul"}}),
    ("A text editor.", {"q": {"type": "noul", "instructions": "Is it a game?"}}),
    ("vim", {"kind": {"type": "choice", "criteria": {"editor": None, "game": None}}}),
    (None, {"level": {"type": "score", "criteria": ["low", "high"]}}),
)


def request(state, questions):
    """A System One body."""
    return {"model": MODEL_NAME, "state": state, "questions": questions}


def heldout(pool, rng, count):
    """Yield labelled requests about single packages, one a family at most."""
    families = {row["name"]: row["family"] for row in pool.rows}
    seen = set()
    while len(seen) < count:
        made = records.package_record(rng, pool)
        family = families[made["package"]]
        if family not in seen:
            seen.add(family)
            yield {"request": request(made["state"], made["questions"]),
                   "expected": made["expected"]}


def long_list(pool, rng, encoder, tokens):
    """A list record of 93 to 100 % of `tokens` tokens and at least three questions."""
    while True:
        items = max(4, int(tokens / rng.uniform(30, 250)))
        made = records.list_record(rng, pool, items)
        length = len(encoder.record(made).ids)
        if 0.93 * tokens <= length <= tokens and len(made["questions"]) >= 3:
            return made


def gate(pool, rng, encoder, examples):
    """Yield the gate's requests with ids: short ones, the repository's examples, packages, lists."""
    for number, (state, questions) in enumerate(SHORT, 1):
        yield {"id": f"short-{number}", "request": request(state, questions)}
    for path in sorted(examples.glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        yield {"id": f"example-{path.stem}", "request": request(body["state"], body["questions"])}
    lists = [long_list(pool, rng, encoder, tokens) for tokens in GATE_LISTS]
    asked = number = 0
    while asked < GATE_QUESTIONS:
        made = records.package_record(rng, pool)
        asked, number = asked + len(made["questions"]), number + 1
        yield {"id": f"package-{number}", "request": request(made["state"], made["questions"])}
    for tokens, made in zip(GATE_LISTS, lists):
        yield {"id": f"list-{tokens}", "request": request(made["state"], made["questions"])}


def write_lines(path, lines):
    """Write JSON lines and say how many."""
    lines = list(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    # Descriptions quote paths such as a user's home; spelled so, they do not look like one of ours.
    text = text.replace("/home/", "\\/home\\/")
    path.write_text(text, encoding="utf-8")
    questions = sum(len(line["request"]["questions"]) for line in lines)
    print(f"{path.name}: {len(lines)} records, {questions} questions, {len(text.encode()):,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("repository", type=Path)
    args = parser.parse_args()
    rows = corpus.load(args.corpus)
    counts = labels.subject_counts([row for row in rows if row["split"] == "train"])
    pool = records.Pool(rows, "test", counts)
    encoder = prompts.Encoder(Tokenizer.from_file(str(Path(args.model) / "tokenizer.json")))
    examples = args.repository / "examples"
    write_lines(examples / "eval/debian-heldout.jsonl",
                heldout(pool, random.Random(EVAL_SEED), EVAL_RECORDS))
    write_lines(args.repository / "fixtures/gate/records.jsonl",
                gate(pool, random.Random(GATE_SEED), encoder, examples))


if __name__ == "__main__":
    main()
