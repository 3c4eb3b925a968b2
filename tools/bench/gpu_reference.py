#!/usr/bin/env python3
"""Times transformers' own Qwen3.5 backbone on a CUDA device: what `descant bench model` is set beside, on the same machine in the same run.

    python3 tools/bench/gpu_reference.py --shape clef-flash
    python3 tools/bench/gpu_reference.py --shape clef --lengths 4096 16384

Needs torch and transformers with `Qwen3_5TextModel` (5.10 or later). Linear attention goes by flash-linear-attention and causal-conv1d where they are
installed, else by transformers' own PyTorch code, which is slower: the first line says which. Weights are random, in bf16, made on the device.

Prints one JSON object a line: a `host` line first, then for each length `median_ms`, `min_ms` and `max_ms` by the clock, until the device is done;
`gpu_ms`, the median between events around the call, idle gaps between launches included; and up to 1,024 tokens, where launches are what takes the
time, `graph_ms`, the median of replays of the call recorded as a CUDA graph. The last hidden rows stay on the device, and no cache is kept.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import statistics
import time
from typing import Any, Callable

import torch
import transformers
from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

VOCAB = 248_320
SHAPES = {
    "clef-flash": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16, "linear_num_value_heads": 32},
    "clef": {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24, "linear_num_value_heads": 48},
}
COMMON = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": VOCAB,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
GRAPH_LENGTH_MAX = 1024


def paths() -> dict[str, str]:
    """Says which package each replaceable function of the linear attention comes from."""
    found = {}
    for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):
        function = getattr(modeling, name, None)
        inner = inspect.getclosurevars(function).nonlocals.get("implementation") if inspect.isfunction(function) else None
        found[name] = getattr(inner or function, "__module__", "absent") or "absent"
    return found


def backbone(shape: str) -> torch.nn.Module:
    """Makes a backbone with random weights on the device."""
    config = modeling.Qwen3_5TextConfig(**SHAPES[shape], **COMMON)
    # What linear layers do first is overwritten by the model's own initialisation, and takes minutes.
    torch.nn.init.kaiming_uniform_ = lambda tensor, *_, **__: tensor
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = modeling.Qwen3_5TextModel(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval()


def events_ms(run: Callable[[], Any]) -> float:
    """Times a call between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def graph_ms(run: Callable[[], Any], runs: int) -> float:
    """Times replays of a call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    return statistics.median(events_ms(graph.replay) for _ in range(runs))


def measure(model: torch.nn.Module, length: int, runs: int) -> dict[str, Any]:
    """Times prompts of one length."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, VOCAB, (1, length), generator=generator).cuda()
    mask = torch.ones_like(ids)
    rows: list[torch.Tensor] = []

    def run() -> None:
        rows[:] = [model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state]

    for _ in range(2):  # compiles and chooses kernels
        run()
    torch.cuda.synchronize()
    wall, gpu = [], []
    for _ in range(runs):
        start = time.perf_counter()
        gpu.append(events_ms(run))
        wall.append((time.perf_counter() - start) * 1e3)
    if not torch.isfinite(rows[0]).all():
        raise SystemExit(f"{length} tokens: hidden rows that are not finite")
    line: dict[str, Any] = {
        "median_ms": round(statistics.median(wall), 2),
        "min_ms": round(min(wall), 2),
        "max_ms": round(max(wall), 2),
        "gpu_ms": round(statistics.median(gpu), 2),
        "runs": runs,
    }
    if length <= GRAPH_LENGTH_MAX:
        try:
            line["graph_ms"] = round(graph_ms(run, runs), 2)
        except RuntimeError as error:
            line["graph_failed"] = str(error).splitlines()[0]
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="clef-flash")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096, 16384], metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    arguments = parser.parse_args()
    host = {
        "host": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "linear_attention": paths(),
    }
    print(json.dumps(host), flush=True)
    start = time.perf_counter()
    with torch.inference_mode():
        model = backbone(arguments.shape)
        torch.cuda.synchronize()
        print(json.dumps({"shape": arguments.shape, "ready_s": round(time.perf_counter() - start, 1)}), flush=True)
        for length in arguments.lengths:
            line = {"shape": arguments.shape, "tokens": length} | measure(model, length, arguments.runs)
            print(json.dumps(line), flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
