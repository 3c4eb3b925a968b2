#!/usr/bin/env bash
# Rebuilds the committed CUDA kernels with the compiler that made them and compares every byte. No GPU is needed. Where the compiler
# cannot be had from PyPI the stage is skipped, and says so; .ci/tidy.py still compares the sources' sums with those in MANIFEST.
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${NVCC:-}" ] && [ -z "${CUDA_VENV:-}" ]; then
    if ! tools/cuda/setup.sh "$work/cuda" > "$work/log" 2>&1; then
        tail -n 5 "$work/log"
        echo "kernels: SKIPPED: nvcc could not be installed from PyPI, so the committed fatbins were not rebuilt"
        exit 0
    fi
    export CUDA_VENV="$work/cuda"
fi
tools/cuda/build.sh "$work/fatbin" || exit 1
differ=0
for name in MANIFEST $(cd crates/cuda/fatbin && ls -- *.fatbin); do
    cmp "crates/cuda/fatbin/$name" "$work/fatbin/$name" || differ=1
done
[ "$(cd crates/cuda/fatbin && ls)" = "$(cd "$work/fatbin" && ls)" ] || { echo "kernels: other files were built"; differ=1; }
[ $differ -eq 0 ] && echo "kernels: all fatbins were rebuilt byte for byte"
exit $differ
