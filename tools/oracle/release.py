#!/usr/bin/env python3
"""What all oracle scripts share: the release's own module, tokenizers and models, and how fixtures are written.

Run as a program it checks the environment: the module's sum and the versions.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Iterable

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "fixtures"
RELEASES = {
    "tiny-a": FIXTURES / "releases/tiny-a",
    "tiny-b": FIXTURES / "releases/tiny-b",
    "tiny-tied": FIXTURES / "releases/tiny-tied",
    "tiny-random": REPOSITORY / "models/tiny-random",
}
MODULE_SHA256_START = "0e304cf7"
VERSIONS = {"torch": "2.11.0", "transformers": "5.10.2", "tokenizers": "0.22.2", "clef-finetune": "0.1.0"}


def module() -> ModuleType:
    """Loads the release's `joint_schema_model.py` as `clef-finetune` carries it, after comparing its sum."""
    package = importlib.util.find_spec("clef_finetune")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("clef-finetune is not installed; run tools/oracle/setup.sh")
    path = Path(package.submodule_search_locations[0]) / "_vendor/joint_schema_model.py"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(MODULE_SHA256_START):
        raise SystemExit(f"{path.name} is {digest}, not the release's {MODULE_SHA256_START}…")
    spec = importlib.util.spec_from_file_location("joint_schema_model", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["joint_schema_model"] = loaded  # dataclasses look their module up by name
    spec.loader.exec_module(loaded)
    return loaded


def tokenizer(name: str) -> Any:
    """Returns a tokenizer as the release loads it: `clef` for the full one, else the name of a tiny release."""
    from transformers import AutoProcessor, PreTrainedTokenizerFast
    from tokenizers import Tokenizer

    if name != "clef":
        return AutoProcessor.from_pretrained(RELEASES[name]).tokenizer
    text = gzip.decompress((FIXTURES / "tokenizer/clef_tokenizer.json.gz").read_bytes()).decode()
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text))


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Writes one JSON value a line, ASCII only; gzipped without a time stamp where the name ends in `.gz`."""
    text = "".join(json.dumps(r, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n" for r in records)
    write_bytes(path, text.encode("ascii"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file, gzipped the same way at every run where its name ends in `.gz`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as out:
            out.write(data)
        data = packed.getvalue()
    path.write_bytes(data)
    print(f"{path.relative_to(REPOSITORY)}: {len(data):,} bytes")


def write_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    """Writes torch tensors, readable by everybody."""
    from safetensors.torch import save

    write_bytes(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def main() -> None:
    """Says whether this environment can make the fixtures."""
    module()
    for package, wanted in VERSIONS.items():
        found = importlib.metadata.version(package)
        if found != wanted:
            raise SystemExit(f"{package} is {found}, the fixtures are made with {wanted}")
    print("the release's module and the pinned versions are here")


if __name__ == "__main__":
    main()
