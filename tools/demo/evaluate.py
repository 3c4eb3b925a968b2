"""Measure an exported model on held-out packages, beside two baselines.

    python evaluate.py MODEL corpus.jsonl.xz OUT

The model runs in f32 over its bf16 weights, as the engine does. Baselines, given the same states
and questions: *majority*, the most frequent allowed answer of the task in the training split, and
*linear*, TF-IDF with logistic regression trained on states of the training split with the same
labels (for matching tasks, TF-IDF cosine; for look-up tasks, a plain string search). OUT gets
`evaluation.json` and `reliability.png`.
"""

import argparse
import collections
import json
import random
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from tokenizers import Tokenizer

import batches
import corpus
import labels
import prompts
import records
from model import Shape, load

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (after the backend is chosen)

FAMILY = {family.name: family for family in labels.FAMILIES}
LOOKUPS = {"depends", "listed", "member"}
MATCHES = {"name", "summary"}
BINS = 15


def make_records(rows, split, count, seed):
    """Records of one split as training draws them, chats left out."""
    counts = labels.subject_counts([row for row in rows if row["split"] == "train"])
    pool, rng, made = records.Pool(rows, split, counts), random.Random(seed), []
    while len(made) < count:
        kind, item = records.training_item(rng, pool)
        if kind == "record":
            made.append(item)
    return made, pool


@torch.inference_mode()
def predict(model, encoder, made, tokens=16384):
    """{record index: [option probabilities of each question]}."""
    encoded = [encoder.record(record) for record in made]
    place = {id(item): index for index, item in enumerate(encoded)}
    found = {}
    for group in batches.cut(encoded, tokens):
        _, logits = model(batches.collate(group))
        probabilities = logits.softmax(-1)
        for row, item in enumerate(group):
            found[place[id(item)]] = [
                probabilities[row, q, : len(spans)].tolist() for q, spans in enumerate(item.options)
            ]
    return found


def asked(record):
    """Yield (task, question, names, about, expected) for every question of a record."""
    for key, question in record["questions"].items():
        names = [name for name, _ in prompts.options_of(question)]
        expected = record["expected"][key]
        expected = str(expected).lower() if isinstance(expected, bool) else str(expected)
        yield record["about"][key]["task"], question, names, record["about"][key], expected


def meaning(name, question, about):
    """The class behind an option: what F1 is counted over, whatever the option was called."""
    if "classes" in about:
        return about["classes"][name]
    if question["type"] == "score" and about.get("turned"):
        return str(len(question["criteria"]) - 1 - int(name))
    if about.get("inverted"):
        return {"true": "false", "false": "true"}[name]
    return name


class Majority:
    """The most frequent answer of a task among the allowed ones."""

    def __init__(self, made):
        self.counts = collections.defaultdict(collections.Counter)
        for record in made:
            for task, question, _, about, expected in asked(record):
                self.counts[task][meaning(expected, question, about)] += 1

    def answer(self, record, task, question, names, about):
        counts = self.counts[task]
        return max(names, key=lambda name: counts[meaning(name, question, about)])


class Linear:
    """TF-IDF and logistic regression, one model a label set."""

    def __init__(self, made, pool):
        self.words = TfidfVectorizer(
            ngram_range=(1, 2), min_df=3, max_features=80_000, sublinear_tf=True,
            token_pattern=r"(?u)[\w+.-]*\w[\w+]*")
        texts = [prompts.render(record["state"]) for record in made]
        matrix = self.words.fit_transform(texts)
        index = {row["name"]: i for i, row in enumerate(pool.rows)}
        self.models = {}
        for label_set in self.label_sets():
            rows, classes = [], []
            for place, record in enumerate(made):
                for value in self.truth(label_set, record, pool, index):
                    rows.append(place)
                    classes.append(value)
            fit = LogisticRegression(C=10.0, max_iter=60, tol=1e-3)
            self.models[label_set] = fit.fit(matrix[rows], classes)
            print(f"linear: {label_set}, {len(rows)} examples", flush=True)

    @staticmethod
    def label_sets():
        return [*FAMILY, "text language", *labels.PROPOSITIONS, *labels.SCORES]

    @staticmethod
    def truth(label_set, record, pool, index):
        """The classes of a record's package in a label set; none if not known."""
        if label_set == "text language":
            return [record["language"]]
        if isinstance(record["state"], list) or record["package"] not in index:
            return []
        place = index[record["package"]]
        row = pool.rows[place]
        if label_set in FAMILY:
            return sorted(pool.known[place][label_set])
        if label_set in labels.PROPOSITIONS:
            answer = labels.PROPOSITIONS[label_set][0](row)
            return [] if answer is None else [str(answer).lower()]
        if label_set == "users":
            return [str(labels.level(row["users"], labels.USERS_BOUNDS))]
        if label_set == "size":
            return [str(labels.level(row["size"], labels.SIZE_BOUNDS))]
        value = labels.specialised_of(row, pool.counts)
        return [] if value is None else [str(value)]

    def scores(self, label_set, vector):
        fit = self.models[label_set]
        return dict(zip(fit.classes_, fit.predict_proba(vector)[0]))

    def answer(self, record, task, question, names, about):
        text = prompts.render(record["state"])
        if task in LOOKUPS:
            if question["type"] == "noul":
                return str(about["asked"] in text).lower()
            return max(names, key=lambda name: about["classes"][name] in text)
        vector = self.words.transform([text])
        if task in MATCHES:
            others = self.words.transform([about["classes"][name] for name in names])
            return names[int(np.argmax((others @ vector.T).toarray()[:, 0]))]
        label_set = {"list section": "section"}.get(task, task.rstrip("?"))
        scores = self.scores(label_set, vector)
        if "asked" in about:  # yes or no about one class, asked half the time for a right one
            classes = len(FAMILY[about["family"]].classes) if "family" in about else 9
            return str(scores.get(about["asked"], 0.0) > 1 / classes).lower()
        return max(names, key=lambda name: scores.get(meaning(name, question, about), 0.0))


def calibration(confidences, hits):
    """Expected calibration error and the bins [mean confidence, accuracy, count]."""
    bins, error = [], 0.0
    place = np.minimum((confidences * BINS).astype(int), BINS - 1)
    for index in range(BINS):
        chosen = place == index
        if chosen.any():
            mean, rate = float(confidences[chosen].mean()), float(hits[chosen].mean())
            error += chosen.mean() * abs(mean - rate)
            bins.append([mean, rate, int(chosen.sum())])
    return float(error), bins


def summarise(lines):
    """Figures for a list of answered questions."""
    truth = [line["truth"] for line in lines]
    result = {"questions": len(lines)}
    for who in ("model", "majority", "linear"):
        said = [line[who] for line in lines]
        result[who] = {
            "accuracy": float(np.mean([a == b for a, b in zip(said, truth)])),
            "macro_f1": float(f1_score(truth, said, average="macro", zero_division=0,
                                       labels=sorted(set(truth)))),
        }
    confidences = np.array([line["confidence"] for line in lines])
    hits = np.array([line["model"] == line["truth"] for line in lines], float)
    result["nll"] = float(np.mean([-np.log(max(line["p_right"], 1e-12)) for line in lines]))
    result["brier"] = float(np.mean([line["brier"] for line in lines]))
    result["ece"], result["bins"] = calibration(confidences, hits)
    return result


def plot(result, path):
    """Reliability diagram with the share of answers in each bin."""
    figure, axis = plt.subplots(figsize=(4.2, 4.2), dpi=90)
    means, rates, counts = zip(*result["bins"])
    axis.bar(means, np.array(counts) / sum(counts), width=0.05, color="#c9d7e8", label="share")
    axis.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    axis.plot(means, rates, marker="o", color="#1f4e79", label="accuracy")
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy, share of answers",
             title=f"{result['questions']} questions, ECE {result['ece']:.3f}")
    axis.legend(loc="upper left", frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--train-records", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = corpus.load(args.corpus)
    made, _ = make_records(rows, "test", args.records, args.seed)
    encoder = prompts.Encoder(Tokenizer.from_file(str(Path(args.model) / "tokenizer.json")))
    found = predict(load(args.model, Shape()), encoder, made)
    print("model: done", flush=True)
    trained, pool = make_records(rows, "train", args.train_records, args.seed + 1)
    majority, linear = Majority(trained), Linear(trained, pool)

    lines = []
    for index, record in enumerate(made):
        for place, (task, question, names, about, expected) in enumerate(asked(record)):
            p = found[index][place]
            best = max(range(len(names)), key=p.__getitem__)
            right = names.index(expected)
            rivals = (majority, linear)
            said = [who.answer(record, task, question, names, about) for who in rivals]
            lines.append({
                "task": task, "kind": question["type"], "confidence": p[best],
                "p_right": p[right],
                "brier": sum((x - (i == right)) ** 2 for i, x in enumerate(p)),
                "truth": meaning(expected, question, about),
                "model": meaning(names[best], question, about),
                "majority": meaning(said[0], question, about),
                "linear": meaning(said[1], question, about),
            })
    result = {"records": len(made), "seed": args.seed, "all": summarise(lines), "kinds": {}, "tasks": {}}
    for key in ("kind", "task"):
        for value in sorted({line[key] for line in lines}):
            result[f"{key}s"][value] = summarise([ln for ln in lines if ln[key] == value])
    (out / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot(result["all"], out / "reliability.png")
    for name, task in [*result["kinds"].items(), *result["tasks"].items(), ("all", result["all"])]:
        print(f"{name:16} {task['questions']:5}  model {task['model']['accuracy']:.3f}"
              f"  linear {task['linear']['accuracy']:.3f}"
              f"  majority {task['majority']['accuracy']:.3f}  F1 {task['model']['macro_f1']:.3f}"
              f" {task['linear']['macro_f1']:.3f} {task['majority']['macro_f1']:.3f}"
              f"  ECE {task['ece']:.3f}")


if __name__ == "__main__":
    main()
