"""Train backbone and head together from random weights.

    python train.py corpus.jsonl.xz TOKENIZER_DIR OUT --steps 5000 --minutes 8

The loss is label-smoothed cross-entropy plus Brier score over the questions of a batch, and a
smaller next-token loss on states and chats. The learning rate rises, stays and falls to zero with
max(step / steps, time / minutes), so a slow machine still ends with a trained model. OUT gets
`backbone.safetensors`, `joint_head.safetensors` (bf16, the release's names), `log.jsonl` and
`valid.json`; the weights are also saved on the way, so that an interrupted run loses little.
The data are a function of the seed; the weights are not bit for bit (GPU sums, and the clock).
"""

import argparse
import json
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


def decision_losses(logits, targets):
    """Mean cross-entropy and Brier score over real questions; logits [B, Q, K] may hold −inf."""
    real = targets >= 0
    logits, targets = logits[real].float(), targets[real]
    options = torch.isfinite(logits)
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    right = F.one_hot(targets, logits.shape[-1]).float()
    smooth = (1 - SMOOTHING) * right + SMOOTHING * options / options.sum(-1, keepdim=True)
    cross = -(smooth * log_p.masked_fill(~options, 0.0)).sum(-1)
    brier = (p - right).square().sum(-1)
    count = max(1, len(targets))  # a batch of chats alone has no question
    return cross.sum() / count, brier.sum() / count, log_p, targets


def language_loss(model, hidden, batch):
    """Mean next-token loss inside states and chats."""
    ids, states = batch["ids"], batch["states"]
    place = torch.arange(ids.shape[1] - 1, device=ids.device)
    wanted = (place >= states[:, :1]) & (place + 1 < states[:, 1:])
    return F.cross_entropy(model.lm_head(hidden[:, :-1][wanted]).float(), ids[:, 1:][wanted])


def to_device(batch, device):
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def half(device):
    """bf16 matrix products on a GPU; plain f32 on a CPU, where bf16 may be emulated."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


@torch.no_grad()
def validate(model, groups, device):
    """Accuracy, negative log-likelihood and Brier score over fixed batches."""
    model.eval()
    right = nll = brier = count = 0.0
    for batch in groups:
        batch = to_device(batch, device)
        with half(device):
            _, logits = model(batch)
        _, score, log_p, targets = decision_losses(logits, batch["targets"])
        right += float((log_p.argmax(-1) == targets).sum())
        nll -= float(log_p.gather(-1, targets[:, None]).sum())
        brier += float(score) * len(targets)
        count += len(targets)
    model.train()
    return {"questions": int(count), "accuracy": right / count, "nll": nll / count,
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


def optimizer_for(model, rate):
    """AdamW; weight decay on matrices alone."""
    matrices = [p for n, p in model.named_parameters() if p.ndim >= 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8, fused=fused)


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
        prefetch_factor=3 if args.workers else None)
    rng, pool = random.Random(args.seed + 1), records.Pool(rows, "valid", counts)
    held = [encoder.record(records.package_record(rng, pool)) for _ in range(args.valid)]
    return loader, [batches.collate(group) for group in batches.cut(held, args.tokens)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--tokens", type=int, default=98304, help="padded tokens a batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--valid", type=int, default=1500, help="validation records")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=50, help="steps between log lines")
    args = parser.parse_args()

    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and shapes vary
    torch.manual_seed(args.seed)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    loader, held = build_data(args)
    shape = Shape(dropout=args.dropout)
    model = Clef(shape)
    init(model, shape, args.seed)
    model.to(device)
    optimizer = optimizer_for(model, args.rate)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}; "
          f"{time.monotonic() - began:.0f} s to set up", flush=True)

    step = tokens = 0
    stream = iter(loader)
    batch = next(stream)
    start, waited, last = time.monotonic(), 0.0, time.monotonic()
    sums = torch.zeros(5, device=device)
    with open(out / "log.jsonl", "w", encoding="utf-8") as log:
        while True:
            progress = max(step / args.steps, (time.monotonic() - start) / (60 * args.minutes))
            if progress >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = args.rate * rate_at(progress)
            tokens += int(batch["lengths"].sum())
            batch = to_device(batch, device)
            with half(device):
                hidden, logits = model(batch)
                cross, brier, log_p, targets = decision_losses(logits, batch["targets"])
                language = language_loss(model, hidden, batch)
            loss = cross + BRIER_WEIGHT * brier + LANGUAGE_WEIGHT * language
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            if not bool(torch.isfinite(norm)):
                raise SystemExit(f"step {step}: the gradient is not finite; {out} has the last save")
            optimizer.step()
            with torch.no_grad():
                accuracy = (log_p.argmax(-1) == targets).sum() / max(1, len(targets))
                sums += torch.stack([cross, brier, language, accuracy, norm]).detach()
            step += 1
            asked = time.monotonic()
            batch = next(stream)
            waited += time.monotonic() - asked
            if step % args.every == 0:
                values = (sums / args.every).tolist()
                sums.zero_()
                line = dict(zip(("cross", "brier", "language", "accuracy", "norm"), values))
                now = time.monotonic()
                line |= {"step": step, "progress": progress, "seconds": now - start,
                         "tokens": tokens, "step_ms": 1000 * (now - last) / args.every,
                         "waited_s": waited}
                last = now
                if step % (args.every * 10) == 0:
                    line["valid"] = validate(model, held, device)
                    save(model, out)
                    last = time.monotonic()
                log.write(json.dumps(line) + "\n")
                log.flush()
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v
                                  for k, v in line.items()}), flush=True)
    save(model, out)
    final = {"steps": step, "tokens": tokens, "minutes": (time.monotonic() - start) / 60,
             "arguments": vars(args), **validate(model, held, device)}
    if device == "cuda":
        final["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    (out / "valid.json").write_text(json.dumps(final, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(final), flush=True)


if __name__ == "__main__":
    main()
