#!/usr/bin/env bash
# Compiles crates/cuda/kernels/*.cu into fatbins, and lists the sums of sources and fatbins in MANIFEST beside them.
#
#   tools/cuda/build.sh [OUT]       OUT is crates/cuda/fatbin if it is not given
#
# nvcc is $NVCC, or that of the virtual environment $CUDA_VENV (tools/cuda/setup.sh makes one), or the one on the path. With
# nvcc 13.0.88 the same sources give the same bytes, wherever they lie. KERNEL_REPORT=1 prints registers, shared memory and spills.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$root/crates/cuda/fatbin}
if [ -z "${NVCC:-}" ] && [ -n "${CUDA_VENV:-}" ]; then
    NVCC=$(echo "$CUDA_VENV"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
fi
NVCC=${NVCC:-nvcc}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root/crates/cuda/kernels"

hopper="-gencode=arch=compute_90a,code=sm_90a"
# Machine code for Ampere and Ada (8.x), Hopper (9.0) and Blackwell (12.x), and PTX for what is not listed.
portable="-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_120,code=sm_120 \
-gencode=arch=compute_80,code=compute_80"
report=()
[ -z "${KERNEL_REPORT:-}" ] || report=(-Xptxas -v)
for source in *.cu; do
    case $source in *_sm90.cu) targets=$hopper ;; *) targets=$portable ;; esac
    # shellcheck disable=SC2086 # a list of flags
    "$NVCC" -O3 -std=c++17 $targets "${report[@]}" -fatbin -compress-mode=size -o "$out/${source%.cu}.fatbin" "$source"
done
{
    "$NVCC" --version | sed -n 's/.*\(release .*\)/nvcc \1/p'
    sha256sum ./*.cu ./*.cuh | sed 's|\./|kernels/|'
    (cd "$out" && sha256sum ./*.fatbin | sed 's|\./|fatbin/|')
} > "$out/MANIFEST"
ls -l "$out"/*.fatbin
