#!/bin/sh
# Make the demonstration model from nothing: fetch, train, export, check, evaluate, record the gate.
#
#   PYTHON=venv/bin/python tools/demo/run.sh WORK
#
# WORK takes the lists, the corpus and the checkpoint (about 500 MB). models/demo, examples/eval and
# fixtures/gate of this repository are written anew; their READMEs are not touched.
# Needs a Debian machine, the packages of requirements.txt, and one GPU of 40 GB for the training.
set -eu
work=${1:?usage: run.sh WORK}
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
mkdir -p "$work"
work=$(cd "$work" && pwd)
corpus=$work/corpus.jsonl.xz
model=$repository/models/demo
gate=$repository/fixtures/gate

"$here/fetch.sh" "$work/lists"
"$python" "$here/corpus.py" "$work/lists" "$corpus"
"$python" "$here/tokenizer.py" "$corpus" "$work/tokenizer"
"$python" "$here/train.py" "$corpus" "$work/tokenizer" "$work/checkpoint"
"$python" "$here/export.py" "$work/checkpoint" "$work/tokenizer" "$model"
"$python" "$here/check.py" "$model" "$corpus"
"$python" "$here/evaluate.py" "$model" "$corpus" "$work/evaluation"
"$python" "$here/samples.py" "$model" "$corpus" "$repository"
for dtype in f32 bf16; do
    "$python" "$here/record_gate.py" "$model" "$gate/records.jsonl" "$gate/answers-$dtype.jsonl.gz" --dtype "$dtype"
done
"$python" "$here/../oracle/sums.py"
