#!/usr/bin/env python3
"""Times PyTorch on what `cargo bench` measures, on the same cores: matrix products, Flash-shaped layers, the joint schema head.

    .oracle/venv/bin/python tools/bench/torch_reference.py --threads 2 --only gemm

Prints one JSON object a line: a `host` line first, then `op`, `shape`, `dtype`, `rows`, `threads`, `median_ms`, `min_ms`, `max_ms`, `runs`, and `gflops` of a
product or `tokens_per_s` of a layer or head. Every figure is measured after one warm-up run, over at least `--runs-min` runs and about
`--seconds` of time; where the warm-up alone took longer than ten times that, it is the one run reported. A row count that would take longer than
`--longest` seconds a run, judged by the next smaller one, is not measured and its line says `skipped`: bf16 products are that slow in PyTorch on a
CPU without bf16 instructions.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
import release  # noqa: E402

GEMM_ROWS = (1, 8, 64, 512, 2048)
# (columns in, columns out) of Clef-Flash's linear layers; several share a shape.
GEMM_SHAPES = {
    "square": (4096, 4096),  # in_proj_z, linear attention's out_proj, o_proj
    "in_proj_qkv_or_q_proj": (4096, 8192),
    "k_proj_or_v_proj": (4096, 1024),
    "gate_proj_or_up_proj": (4096, 12288),
    "down_proj": (12288, 4096),
}
LAYER_ROWS = 512
HEAD_ROWS = (1024, 4096, 16384)
HEAD = {"hidden_size": 4096, "width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def timed(run: Callable[[], Any], seconds: float, runs_min: int) -> dict[str, Any]:
    """Returns the median, least and greatest time of a call in ms, and how often it ran."""
    start = time.perf_counter()
    run()
    warm_up = time.perf_counter() - start
    times = [] if warm_up < 10 * seconds else [warm_up]
    while not times or (warm_up < 10 * seconds and (len(times) < runs_min or sum(times) < seconds)):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {
        "median_ms": round(statistics.median(times) * 1e3, 4),
        "min_ms": round(min(times) * 1e3, 4),
        "max_ms": round(max(times) * 1e3, 4),
        "runs": len(times),
    }


def by_rows(
    base: dict[str, Any], counts: Sequence[int], longest: float, measure: Callable[[int], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Measures one thing at growing row counts until a run would take too long."""
    before: tuple[int, float] | None = None
    for rows in sorted(counts):
        line = base | {"rows": rows}
        expected_s = before[1] * rows / before[0] / 1e3 if before else 0.0
        if expected_s > longest:
            yield line | {"skipped": f"a run would take about {expected_s:.0f} s"}
            continue
        figures = measure(rows)
        before = (rows, figures["median_ms"])
        yield line | figures


def gemms(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times `torch.nn.Linear` without bias."""
    for dtype in arguments.dtypes:
        for shape, (columns_in, columns_out) in GEMM_SHAPES.items():
            layer = torch.nn.Linear(columns_in, columns_out, bias=False, dtype=DTYPES[dtype])

            def measure(rows: int) -> dict[str, Any]:
                x = torch.randn(rows, columns_in).to(DTYPES[dtype])
                figures = timed(lambda: layer(x), arguments.seconds, arguments.runs_min)
                gflops = 2 * rows * columns_in * columns_out / figures["median_ms"] / 1e6
                return figures | {"gflops": round(gflops, 1)}

            base = {"op": "gemm", "shape": f"{shape} {columns_in}x{columns_out}", "dtype": dtype}
            yield from by_rows(base, arguments.rows or GEMM_ROWS, arguments.longest, measure)


def layers(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times one Flash-shaped layer of each kind, MLP included, as prefill of a lone prompt."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    config = Qwen3_5TextConfig(num_hidden_layers=4, rope_parameters=rope)
    config._attn_implementation = "sdpa"
    for dtype in arguments.dtypes:
        for kind, index in (("linear_attention", 0), ("full_attention", 3)):
            torch.set_default_dtype(DTYPES[dtype])
            layer = qwen.Qwen3_5DecoderLayer(config, index).eval()
            torch.set_default_dtype(torch.float32)

            def measure(rows: int) -> dict[str, Any]:
                x = torch.randn(1, rows, config.hidden_size).to(DTYPES[dtype])
                positions = torch.arange(rows)[None]
                turns = qwen.Qwen3_5TextRotaryEmbedding(config)(x, positions)
                run = lambda: layer(x, position_embeddings=turns, position_ids=positions)  # noqa: E731
                return per_token(rows, timed(run, arguments.seconds, arguments.runs_min))

            base = {"op": "layer", "shape": f"clef-flash {kind}", "dtype": dtype}
            yield from by_rows(base, arguments.rows or (LAYER_ROWS,), arguments.longest, measure)


def per_token(rows: int, figures: dict[str, Any]) -> dict[str, Any]:
    """Adds the rate to the times."""
    return figures | {"tokens_per_s": round(rows / figures["median_ms"] * 1e3, 1)}


def heads(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times the release's head on three questions with nine options."""
    module = release.module()
    for dtype in arguments.dtypes:
        head = module.JointSchemaHead(**HEAD).eval().to(DTYPES[dtype])
        lm_head = torch.randn(64, HEAD["hidden_size"]).to(DTYPES[dtype])

        def measure(rows: int) -> dict[str, Any]:
            record = three_questions(module, rows)
            hidden = torch.randn(1, rows, HEAD["hidden_size"]).to(DTYPES[dtype])
            batch = (hidden, torch.tensor([record.input_ids]), torch.ones(1, rows, dtype=torch.long), [record], lm_head)
            return per_token(rows, timed(lambda: head(*batch), arguments.seconds, arguments.runs_min))

        base = {"op": "head", "shape": "clef-flash", "dtype": dtype}
        yield from by_rows(base, arguments.rows or HEAD_ROWS, arguments.longest, measure)


def three_questions(module: Any, rows: int) -> Any:
    """Returns a record of `rows` tokens whose last hundred hold three questions with 2, 4 and 3 options, eight rows a span."""
    spans = iter([(start, start + 8) for start in range(rows - 100, rows - 4, 8)])
    questions = tuple(
        module.EncodedQuestion(
            question_id=str(kind),
            question_type=kind,
            question_span=next(spans),
            option_spans=tuple(next(spans) for _ in range(options)),
            option_ids=tuple(map(str, range(options))),
        )
        for kind, options in enumerate((2, 4, 3))
    )
    return module.EncodedRecord(input_ids=tuple(i % 64 for i in range(rows)), questions=questions, record_id="bench")


def host(threads: int) -> dict[str, Any]:
    """Describes where the figures come from."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "host": names[0] if names else platform.processor(),
        "cpus": len(names),
        "threads": threads,
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
    }


@torch.inference_mode()
def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--only", choices=["gemm", "head", "layer"], action="append", help="measure this alone (may be repeated)"
    )
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--rows", type=int, nargs="+", help="instead of each op's own row counts")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to measure each figure")
    parser.add_argument(
        "--longest", type=float, default=10.0, help="the longest single run worth waiting for, in seconds"
    )
    parser.add_argument("--runs-min", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(json.dumps(host(arguments.threads)), flush=True)
    for name, measure in (("gemm", gemms), ("layer", layers), ("head", heads)):
        if arguments.only is None or name in arguments.only:
            for line in measure(arguments):
                print(json.dumps(line | {"threads": arguments.threads}), flush=True)


if __name__ == "__main__":
    main()
