"""Make the vectors of the metrics' test with scikit-learn and NumPy.

    python make_metrics.py > ../../crates/descant/src/eval/metrics.json

Made with scikit-learn 1.7.2 and NumPy 2.4.6. Seeded: the same at every run.
"""

import json

import numpy as np
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error

BINS = 15


def draw(rng, kinds, count):
    """Cases whose labels follow the probabilities somewhat, so that every figure is well inside its range."""
    cases = []
    for _ in range(count):
        kind = kinds[rng.integers(len(kinds))]
        options = {"noul": 2, "choice": 4, "score": 5}[kind]
        logits = rng.normal(0, 2, options)
        p = np.exp(logits) / np.exp(logits).sum()
        label = int(rng.choice(options, p=p**0.7 / (p**0.7).sum()))
        cases.append({"id": kind, "kind": kind, "p": p.tolist(), "label": label})
    return cases


def ece(confidence, right):
    """Bins are open below and closed above."""
    places = np.digitize(confidence, np.linspace(0, 1, BINS + 1)[1:-1], right=True)
    total = 0.0
    for place in np.unique(places):
        inside = places == place
        total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def coverage(confidence, right, target):
    """Try every confidence as the threshold."""
    best = (0.0, None)
    for threshold in np.unique(confidence):
        taken = confidence >= threshold
        if right[taken].mean() >= target and taken.mean() > best[0]:
            best = (taken.mean(), threshold)
    return best


def figures(cases, target):
    p = [np.array(case["p"]) for case in cases]
    top = [int(x.argmax()) for x in p]
    labels = [case["label"] for case in cases]
    true = [f"{case['id']}/{case['label']}" for case in cases]
    said = [f"{case['id']}/{at}" for case, at in zip(cases, top)]
    confidence = np.array([x.max() for x in p])
    right = np.array([a == b for a, b in zip(true, said)], float)
    share, threshold = coverage(confidence, right, target)
    scores = [(case["label"], float(np.arange(len(x)) @ x))
              for case, x in zip(cases, p) if case["kind"] == "score"]
    losses = [log_loss([case["label"]], [x], labels=range(len(x))) for case, x in zip(cases, p)]
    return {
        "target": target,
        "accuracy": accuracy_score(true, said),
        "macro_f1": f1_score(true, said, average="macro", zero_division=0),
        "nll": float(np.mean(losses)),
        "brier": float(np.mean([((x - np.eye(len(x))[at]) ** 2).sum() for x, at in zip(p, labels)])),
        "ece": float(ece(confidence, right)),
        "coverage": float(share),
        "threshold": None if threshold is None else float(threshold),
        "score_mae": mean_absolute_error(*zip(*scores)) if scores else None,
        "cases": cases,
    }


def main():
    rng = np.random.default_rng(5)
    sets = [(["noul"], 60, 0.9), (["choice"], 60, 0.95), (["score"], 60, 0.8),
            (["noul", "choice", "score"], 90, 0.85), (["choice"], 7, 1.0)]
    print(json.dumps([figures(draw(rng, kinds, count), target) for kinds, count, target in sets]))


main()
