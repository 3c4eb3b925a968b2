#!/bin/sh
# Installs what the oracle scripts run on (about 3 GB) into a virtual environment of Python 3.11 or later.
#
#     tools/oracle/setup.sh [VENV]        # default: .oracle/venv in the repository, which git ignores
#
# `clef-finetune` carries the release's module unmodified. It is installed without its dependencies: those pinned in
# requirements.txt are all that the scripts need.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-"$here/../../.oracle/venv"}
python3 -m venv "$venv"
"$venv/bin/pip" install --requirement "$here/requirements.txt"
"$venv/bin/pip" install --no-deps clef-finetune==0.1.0
"$venv/bin/python" "$here/release.py"
