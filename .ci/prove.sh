#!/usr/bin/env bash
# Equal bits on the tiny releases: thousands of answers in all combinations of threads, pieces, company and cache.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${CARGO_TARGET_DIR:-target}/release/descant
passed=0
prove() { # prove NAME ARGUMENTS...
    local name=$1
    shift
    if ! "$program" prove "$@"; then
        echo "FAILED: $name"
        echo "test result: FAILED. $passed passed; 1 failed"
        exit 1
    fi
    echo "ok: $name"
    passed=$((passed + 1))
}
prove "the tiny random release" --quick -m models/tiny-random
prove "another shape, its activations in bf16" --quick -m fixtures/releases/tiny-a --precision bf16 --threads 2
echo "test result: ok. $passed passed; 0 failed"
