#!/usr/bin/env python3
"""Checks what no compiler checks: where `unsafe` stands, fixture sums, links between pages, sizes, stray paths."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNSAFE_PLACES = ("crates/release/src/mmap.rs", "crates/cpu/src/arch/", "crates/cuda/src/driver/", "crates/cuda/src/launch/")
REPOSITORY_BYTES_MAX = 40 * 1024 * 1024
FILE_BYTES_MAX = 6 * 1024 * 1024


def tracked() -> list[Path]:
    """Every tracked file, relative to the root."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [Path(p) for p in out.decode().split("\0") if p]


def unsafe_outside(files: list[Path]) -> list[str]:
    """Places of `unsafe` outside the files that may hold it."""
    faults = []
    for path in files:
        if path.suffix != ".rs" or str(path).startswith(UNSAFE_PLACES):
            continue
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0]
            if re.search(r"\bunsafe\b(?!_)", code) and "unsafe_code" not in code:
                faults.append(f"{path}:{number}: unsafe stands only in {', '.join(UNSAFE_PLACES)}")
    return faults


def fixture_sums() -> list[str]:
    """Fixtures whose SHA-256 differs from fixtures/SHA256SUMS."""
    sums = ROOT / "fixtures" / "SHA256SUMS"
    faults, named = [], set()
    for line in sums.read_text(encoding="utf-8").splitlines():
        wanted, name = line.split(maxsplit=1)
        path = ROOT / "fixtures" / name.strip()
        named.add(path)
        if not path.is_file():
            faults.append(f"fixtures/SHA256SUMS names {name}, which is not there")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
            faults.append(f"fixtures/{name}: its SHA-256 is not the one in SHA256SUMS")
    for path in sorted((ROOT / "fixtures" / "golden").rglob("*")):
        if path.is_file() and path not in named:
            faults.append(f"{path.relative_to(ROOT)} is not in fixtures/SHA256SUMS")
    return faults


def broken_links(files: list[Path]) -> list[str]:
    """Links of Markdown pages to files that are not there."""
    faults = []
    for path in files:
        if path.suffix != ".md":
            continue
        text = re.sub(r"```.*?```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (ROOT / path.parent / target.split("#")[0]).exists():
                faults.append(f"{path}: link to {target}, which is not there")
    return faults


def sizes(files: list[Path]) -> list[str]:
    """Files or a whole that are too large to clone quickly."""
    by_file = {p: (ROOT / p).stat().st_size for p in files if (ROOT / p).is_file()}
    faults = [f"{p}: {n} bytes; at most {FILE_BYTES_MAX}" for p, n in by_file.items()
              if n > FILE_BYTES_MAX and not str(p).startswith("models/")]
    if (total := sum(by_file.values())) > REPOSITORY_BYTES_MAX:
        faults.append(f"tracked files take {total} bytes; at most {REPOSITORY_BYTES_MAX}")
    return faults


def kernel_sums() -> list[str]:
    """Kernels or fatbins that differ from what `tools/cuda/build.sh` noted in MANIFEST: the fatbins are then out of date."""
    folder = ROOT / "crates" / "cuda"
    faults, named = [], set()
    for line in (folder / "fatbin" / "MANIFEST").read_text(encoding="utf-8").splitlines()[1:]:
        wanted, name = line.split(maxsplit=1)
        path = folder / name.strip()
        named.add(path)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
            faults.append(f"crates/cuda/{name}: its SHA-256 is not the one in fatbin/MANIFEST; run tools/cuda/build.sh")
    for pattern in ("kernels/*", "fatbin/*.fatbin"):
        for path in sorted(folder.glob(pattern)):
            if path not in named:
                faults.append(f"{path.relative_to(ROOT)} is not in fatbin/MANIFEST; run tools/cuda/build.sh")
    return faults


def stray_paths(files: list[Path]) -> list[str]:
    """Absolute paths of some developer's machine."""
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")
    faults = []
    for path in files:
        data = (ROOT / path).read_bytes()
        if b"\0" in data[:8192] or path == Path(".ci/tidy.py"):
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                faults.append(f"{path}:{number}: names a path of one machine")
    return faults


def main() -> int:
    """Runs every check; 1 if one found a fault."""
    files = [p for p in tracked() if (ROOT / p).is_file()]
    faults = (unsafe_outside(files) + fixture_sums() + kernel_sums() + broken_links(files) + sizes(files) + stray_paths(files))
    print(*faults, sep="\n")
    print(f"tidy: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
