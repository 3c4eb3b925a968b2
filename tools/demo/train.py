"""Train backbone and head together from random weights.

    python train.py corpus.jsonl.xz TOKENIZER_DIR OUT

The loss is label-smoothed cross-entropy plus Brier score over the questions of a batch, and a
smaller next-token loss on states and chats. The learning rate rises, stays and falls to zero with
max(step / steps, time / minutes), so a slow machine still ends with a trained model. OUT gets
`backbone.safetensors`, `joint_head.safetensors` (bf16, the release's names), `log.jsonl` and
`valid.json`; the weights are also saved on the way, so that an interrupted run loses little.
The data are a function of the seed; the weights are not bit for bit (GPU sums, and the clock).
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional as F

import batches
import corpus
import labels
import prompts
import records
from model import Clef, Shape, init

SMOOTHING = 0.02
BRIER_WEIGHT = 0.5
LANGUAGE_WEIGHT = 0.25
WARMUP = 0.03  # of the run
DECAY_FROM = 0.25  # from here on the learning rate falls in a straight line
CLIP = 1.0
MEASURES = ("cross", "brier", "language", "right", "questions", "norm")


def decision_losses(logits, targets):
    """Sums over the real questions: cross-entropy, Brier score, hits, count.

    logits [B, Q, K] hold −inf where there is no option; targets [B, Q] hold −1 for no question.
    """
    real = targets >= 0
    options = torch.isfinite(logits) & real[..., None]
    log_p = logits.masked_fill(~options, -1e9).log_softmax(-1)
    right = torch.arange(logits.shape[-1], device=logits.device) == targets[..., None]
    smooth = (1 - SMOOTHING) * right + SMOOTHING * options / options.sum(-1, keepdim=True).clamp(1)
    cross = -(smooth * log_p.masked_fill(~options, 0.0)).sum(-1)
    brier = (log_p.exp() - right.float()).square().sum(-1)
    hits = (log_p.argmax(-1) == targets) & real
    return (cross * real).sum(), (brier * real).sum(), hits.sum(), real.sum()


def language_loss(model, hidden, batch):
    """Mean next-token loss inside states and chats."""
    ids, states = batch["ids"], batch["states"]
    place = torch.arange(ids.shape[1] - 1, device=ids.device)
    wanted = (place >= states[:, :1]) & (place + 1 < states[:, 1:])
    targets = ids[:, 1:].masked_fill(~wanted, -100).flatten()
    logits = model.lm_head(hidden[:, :-1]).flatten(0, 1)
    total = F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum")
    return total / wanted.sum().clamp(1)


def half(device):
    """bf16 matrix products on a GPU; plain f32 on a CPU, where bf16 may be emulated."""
    return torch.autocast(
        device, dtype=torch.bfloat16, enabled=device == "cuda", cache_enabled=False)


def to_device(batch, device):
    return {name: value.to(device) for name, value in batch.items()}


class Trainer:
    """Model, optimizer and running sums; `step` takes one batch."""

    def __init__(self, model, device):
        self.model, self.device = model, device
        self.sums = torch.zeros(len(MEASURES), device=device)
        matrices = [p for n, p in model.named_parameters() if p.ndim >= 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
            lr=0.0, betas=(0.9, 0.98), eps=1e-8, fused=device == "cuda",
            foreach=False if device == "cpu" else None)

    def step(self, batch, rate):
        """Train on one batch (on the CPU) at a learning rate: forward, backward, update."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = to_device(batch, self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with half(self.device):
            hidden, logits = self.model(batch)
            language = language_loss(self.model, hidden, batch)
        cross, brier, hits, count = decision_losses(logits, batch["targets"])
        questions = count.clamp(1)  # a batch of chats alone has no question
        loss = (cross + BRIER_WEIGHT * brier) / questions + LANGUAGE_WEIGHT * language
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.sums += torch.stack([cross, brier, language, hits, count, norm]).detach()

    def measures(self, steps):
        """Means since the last call."""
        sums = dict(zip(MEASURES, self.sums.tolist()))
        self.sums.zero_()
        questions = max(1.0, sums["questions"])
        return {"cross": sums["cross"] / questions, "brier": sums["brier"] / questions,
                "accuracy": sums["right"] / questions, "language": sums["language"] / steps,
                "norm": sums["norm"] / steps}


@torch.no_grad()
def validate(model, groups, device):
    """Smoothed cross-entropy, Brier score and accuracy over fixed batches."""
    model.eval()
    total = torch.zeros(4, device=device)
    for batch in groups:
        batch = to_device(batch, device)
        with half(device):
            _, logits = model(batch)
        total += torch.stack(decision_losses(logits, batch["targets"]))
    model.train()
    cross, brier, hits, count = total.tolist()
    return {"questions": int(count), "accuracy": hits / count, "cross": cross / count,
            "brier": brier / count}


def save(model, out):
    """Write the weights in the release's names, bf16."""
    state = {name: value.detach().to("cpu", torch.bfloat16).contiguous()
             for name, value in model.state_dict().items()}
    head = {n.removeprefix("joint_head."): v for n, v in state.items() if n.startswith("joint_head")}
    rest = {f"model.{n}" if n.startswith("language_model") else n: v
            for n, v in state.items() if not n.startswith("joint_head")}
    save_file(rest, out / "backbone.safetensors")
    save_file(head, out / "joint_head.safetensors")


def rate_at(progress):
    """The share of the peak learning rate at a point of the run, 0 to 1."""
    if progress < WARMUP:
        return progress / WARMUP
    return min(1.0, max(0.0, (1 - progress) / (1 - DECAY_FROM)))


def build_data(args):
    """The loader of training batches and the fixed validation batches."""
    rows = corpus.load(args.corpus)
    counts = labels.subject_counts([row for row in rows if row["split"] == "train"])
    tokenizer = Tokenizer.from_file(str(Path(args.tokenizer) / "tokenizer.json"))
    encoder = prompts.Encoder(tokenizer)
    stream = batches.Stream(
        records.Pool(rows, "train", counts), encoder, args.tokens, args.seed)
    loader = torch.utils.data.DataLoader(
        stream, batch_size=None, num_workers=args.workers,
        prefetch_factor=4 if args.workers else None)
    rng, pool = random.Random(args.seed + 1), records.Pool(rows, "valid", counts)
    held = [encoder.record(records.package_record(rng, pool)) for _ in range(args.valid)]
    return loader, [batches.collate(group) for group in batches.cut(held, args.tokens)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=5.5)
    parser.add_argument("--tokens", type=int, default=131_072, help="padded tokens a batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--valid", type=int, default=1500, help="validation records")
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=100, help="steps between log lines")
    args = parser.parse_args()

    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
    torch.manual_seed(args.seed)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    loader, held = build_data(args)
    shape = Shape(dropout=args.dropout)
    model = Clef(shape)
    init(model, shape, args.seed)
    model.to(device)
    trainer = Trainer(model, device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}; "
          f"{time.monotonic() - began:.0f} s to set up", flush=True)

    step = tokens = 0
    start = last = time.monotonic()
    log = open(out / "log.jsonl", "w", encoding="utf-8")
    for batch in loader:
        progress = max(step / args.steps, (time.monotonic() - start) / (60 * args.minutes))
        if progress >= 1:
            break
        trainer.step(batch, args.rate * rate_at(progress))
        tokens += int(batch["lengths"].sum())
        step += 1
        if step % args.every:
            continue
        line = trainer.measures(args.every)
        if not math.isfinite(line["cross"] + line["norm"]):
            raise SystemExit(f"step {step}: the loss is not finite; {out} holds the last save")
        now = time.monotonic()
        line |= {"step": step, "progress": progress, "seconds": now - start, "tokens": tokens,
                 "step_ms": 1000 * (now - last) / args.every}
        if step % (args.every * 10) == 0:
            line["valid"] = validate(model, held, device)
            save(model, out)
        last = time.monotonic()
        log.write(json.dumps(line) + "\n")
        log.flush()
        print(json.dumps({key: round(value, 4) if isinstance(value, float) else value
                          for key, value in line.items()}), flush=True)
    log.close()
    save(model, out)
    final = {"steps": step, "tokens": tokens, "minutes": (time.monotonic() - start) / 60,
             "arguments": vars(args), **validate(model, held, device)}
    if device == "cuda":
        final["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    (out / "valid.json").write_text(json.dumps(final, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(final), flush=True)


if __name__ == "__main__":
    main()
