#!/usr/bin/env bash
# Makes a virtual environment in which tools/bench/gpu_reference.py has its fast paths: PyTorch for CUDA 13, transformers,
# flash-linear-attention, and causal-conv1d, which PyPI has as source alone and which is compiled here by nvcc, also from PyPI.
#
#   tools/bench/setup_gpu_reference.sh DIRECTORY [ARCHITECTURE] && DIRECTORY/bin/python tools/bench/gpu_reference.py --shape clef-flash
#
# ARCHITECTURE is the compute capability to compile for, 90 (Hopper) unless told: the package's own build makes code for nine, in nine times
# the time. Needs python3 (3.10 or later) with its headers, and g++; no GPU and no driver. Takes some 6 GB of disk.
set -euo pipefail
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: tools/bench/setup_gpu_reference.sh DIRECTORY [ARCHITECTURE]" >&2; exit 2; }
dir=$1
architecture=${2:-90}
[[ $architecture =~ ^[0-9]+a?$ ]] || { echo "ARCHITECTURE is a compute capability without its dot, such as 90, not '$architecture'" >&2; exit 2; }

python3 -m venv "$dir"
dir=$(cd "$dir" && pwd)
pip() { "$dir/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install torch==2.11.0 transformers==5.17.0 flash-linear-attention==0.6.0 numpy setuptools wheel packaging ninja \
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85

# The wheels' toolkit lacks what PyTorch's extension builder looks for in an installed one: lib64, and the name that -lcudart is found by.
export CUDA_HOME
CUDA_HOME=$(echo "$dir"/lib/python3*/site-packages/nvidia/cu13)
ln -sfn lib "$CUDA_HOME/lib64"
ln -sf libcudart.so.13 "$CUDA_HOME/lib/libcudart.so"

source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
pip download --no-deps --no-build-isolation --no-binary :all: --dest "$source" causal-conv1d==1.7.0
tar xzf "$source"/causal_conv1d-1.7.0.tar.gz -C "$source"
setup=$source/causal_conv1d-1.7.0/setup.py
# Its list of architectures is fixed in the build; the last word on it is put before the first line that follows the list.
sed -i "/# HACK: The compiler flag/i\\    cc_flag = ['-gencode', 'arch=compute_$architecture,code=sm_$architecture']" "$setup"
grep -q "code=sm_$architecture'\]" "$setup" || { echo "causal-conv1d's setup.py is not as this script expects it" >&2; exit 1; }
# Its build looks at the PyTorch that is there, so it may not have one of its own.
CAUSAL_CONV1D_FORCE_BUILD=TRUE pip install --no-build-isolation "$source/causal_conv1d-1.7.0"
"$dir/bin/python" -c "import causal_conv1d, fla; print('causal-conv1d', causal_conv1d.__version__, 'and flash-linear-attention', fla.__version__)"
