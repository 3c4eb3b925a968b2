#!/usr/bin/env python3
"""Writes or checks `fixtures/SHA256SUMS`: one line a file below `fixtures/`, in `sha256sum` format.

Standard library only, so that the check runs where nothing is installed:

    python3 tools/oracle/sums.py            # write
    python3 tools/oracle/sums.py --check    # exit 1 and name every file that differs, lacks or is not listed
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SUMS = "SHA256SUMS"
UNLISTED = {SUMS, "README.md"}


def sums(root: Path) -> dict[str, str]:
    """Returns the sha256 of every fixture below `root`, keyed by its path relative to `root`, sorted."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.relative_to(root).as_posix() not in UNLISTED)
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def differences(listed: dict[str, str], found: dict[str, str]) -> list[str]:
    """Returns one sentence for each file on which the list and the folder disagree."""
    faults = [f"{name}: listed, not there" for name in listed.keys() - found.keys()]
    faults += [f"{name}: there, not listed" for name in found.keys() - listed.keys()]
    faults += [
        f"{name}: another sum than listed" for name in listed.keys() & found.keys() if listed[name] != found[name]
    ]
    return sorted(faults)


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--root", type=Path, default=FIXTURES, help="the fixtures folder")
    arguments = parser.parse_args()
    found = sums(arguments.root)
    target = arguments.root / SUMS
    if not arguments.check:
        target.write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()))
        return 0
    listed = dict(reversed(line.split("  ", 1)) for line in target.read_text().splitlines())
    faults = differences(listed, found)
    print("\n".join(faults) if faults else f"{len(found)} fixtures as listed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
