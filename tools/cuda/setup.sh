#!/usr/bin/env bash
# Puts the CUDA compiler of the committed kernels into a virtual environment: nvcc 13.0.88 from PyPI, about 105 MB of wheels.
# No GPU and no driver are needed to compile.
#
#   tools/cuda/setup.sh DIRECTORY
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: tools/cuda/setup.sh DIRECTORY" >&2; exit 2; }
python3 -m venv "$1"
"$1/bin/pip" install --quiet --disable-pip-version-check \
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
"$1"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc --version | tail -n 2
