#!/usr/bin/env bash
# Makes a virtual environment in which tools/bench/gpu_reference.py has its fast paths: PyTorch, transformers, flash-linear-attention, and
# causal-conv1d, which is compiled here since the registry has its source alone.
#
#   tools/bench/setup_gpu_reference.sh DIR && DIR/bin/python tools/bench/gpu_reference.py --shape clef-flash
#
# Needs a CUDA toolkit of PyTorch's major version (nvcc on the path, or CUDA_HOME) and a C++ compiler, and takes many minutes: its kernels
# are compiled for nine kinds of devices.
set -euo pipefail
dir=${1:?usage: tools/bench/setup_gpu_reference.sh DIR}
python3 -m venv "$dir"
"$dir/bin/pip" install --quiet torch==2.11.0 transformers==5.17.0 flash-linear-attention==0.6.0 numpy setuptools wheel packaging ninja
# Its build looks at the PyTorch that is there, so it may not have one of its own.
CAUSAL_CONV1D_FORCE_BUILD=TRUE "$dir/bin/pip" install --quiet --no-build-isolation causal-conv1d==1.7.0
"$dir/bin/python" -c "import causal_conv1d, fla; print('causal-conv1d', causal_conv1d.__version__, 'and flash-linear-attention', fla.__version__)"
