#!/bin/sh
# Makes every golden fixture anew (some minutes on one core) and lists the sums.
#
#     tools/oracle/make_all.sh [VENV]        # default: .oracle/venv in the repository
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-"$here/../../.oracle/venv"}/bin/python
"$python" "$here/release.py"
for maker in encode hidden answers chat head python; do
    "$python" "$here/make_$maker.py"
done
"$python" "$here/sums.py"
