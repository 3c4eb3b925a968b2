#!/usr/bin/env python3
"""Checks the licence of every crate in Cargo.lock against the list that the project accepts.

Known-vulnerability databases cannot be read offline; a crate version that is yanked or withdrawn shows when the lock
file is updated."""

import json
import re
import subprocess
import sys

ACCEPTED = {
    "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib",
    "Unicode-3.0", "Unlicense", "0BSD", "CC0-1.0", "BSL-1.0", "CDLA-Permissive-2.0",
}


def accepted(expression: str) -> bool:
    """Whether an SPDX expression can be satisfied from ACCEPTED alone. `/` is the old spelling of `OR`."""
    tokens = re.findall(r"\(|\)|[^\s()/]+|/", expression)
    merged: list[str] = []
    for token in tokens:
        if token == "WITH" or (merged and merged[-1].endswith(" WITH")):
            merged[-1] += " " + token
        else:
            merged.append("OR" if token == "/" else token)
    text = " ".join({"OR": "or", "AND": "and"}.get(t, t if t in "()" else str(t in ACCEPTED)) for t in merged)
    if not re.fullmatch(r"(?:True|False|or|and|[()\s])+", text):
        return False
    return bool(eval(text, {"__builtins__": {}}))  # only True, False, or, and, parentheses: checked above


def main() -> int:
    """Lists crates whose licence is not accepted; 1 if there is one."""
    out = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked",
                          "--filter-platform", "x86_64-unknown-linux-gnu"],
                         check=True, capture_output=True).stdout
    packages = json.loads(out)["packages"]
    bad = [f"{p['name']} {p['version']}: licence {p.get('license')!r} is not on the accepted list"
           for p in packages if not accepted(p.get("license") or "")]
    print(*bad, sep="\n")
    print(f"licences: {len(packages)} crates, {len(bad)} not accepted")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
