#!/usr/bin/env bash
# Runs the unmodified clients and suites of the field against the release binary, and prints how each came out.
#
# usage: tools/clients/run.sh [MODEL]        needs python3 (3.10 or newer), node, npm and their registries; installs into target/clients
# MODEL is models/demo, the trained release, where none is named. With BENCH=0 the long suites (jevbench, sys1bench) are left out;
# CHECKS=FILE.py names a script that replays recorded requests against a base address.
set -uo pipefail
cd "$(dirname "$0")/../.."
program=${DESCANT:-${CARGO_TARGET_DIR:-target}/release/descant}
model=${1:-models/demo}
mkdir -p "${CARGO_TARGET_DIR:-target}/clients"
home=$(realpath "${CARGO_TARGET_DIR:-target}/clients")
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ -x "$program" ] || cargo build --release --locked || exit 1
[ -d "$home/venv" ] || python3 -m venv "$home/venv" || exit 1
"$home/venv/bin/pip" install -q -r tools/clients/requirements.txt || exit 1
[ -d "$home/node_modules" ] || npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$home" @typesafe-ai/sdk@0.6.0 || exit 1
python=$home/venv/bin/python
jevcompat=$home/venv/bin/jevcompat
servers=()
trap '[ ${#servers[@]} -gt 0 ] && kill "${servers[@]}" 2>/dev/null' EXIT

start() { # start NAME FLAGS...: sets base
    local name=$1
    shift
    "$program" serve "$model" --port 0 --queue 1024 "$@" > "$home/$name.out" 2> "$home/$name.err" &
    servers+=($!)
    for _ in $(seq 600); do grep -q listening "$home/$name.out" && break; sleep 0.1; done
    base=$(sed -n 's/^listening on //p' "$home/$name.out")
    [ -n "$base" ] || { cat "$home/$name.err"; exit 1; }
}

results=() failed=0
note() { # note NAME COMMAND...
    local name=$1
    shift
    printf '\n=== %s\n' "$name"
    "$@" > "$home/$name.log" 2>&1
    local code=$? said
    tail -n 25 "$home/$name.log"
    said=$(grep -E '^test result|conformant|^[0-9]+ passed|overall|"mean_abs_dp"|^jevbench check' "$home/$name.log" | tail -n 1 | cut -c1-100)
    results+=("$(printf '%-32s exit %d  %s' "$name" "$code" "$said")")
    [ "$code" -eq 0 ] || failed=1
}

start plain; plain=$base
start keyed --api-key secret; keyed=$base
start neutral --neutral-ids; neutral=$base
start split --neutral-ids --split-questions; split=$base

note python-clients "$python" tools/clients/clients.py "$plain"
note typescript-client env NODE_MODULES="$home/node_modules" node tools/clients/client.mjs "$plain"
for name in jev-latest clef-flash; do
    note "jevcompat-$name" "$jevcompat" test "$plain" --model "$name" --json "$home/jevcompat-$name.json" --markdown "$home/jevcompat-$name.md"
    note "jevcompat-$name-neutral" "$jevcompat" test "$neutral" --model "$name" --json "$home/jevcompat-$name-neutral.json"
    note "jevcompat-$name-split" "$jevcompat" test "$split" --model "$name" --json "$home/jevcompat-$name-split.json"
done
note jevcompat-key "$jevcompat" test "$keyed" --key secret --json "$home/jevcompat-key.json"
[ -n "${CHECKS:-}" ] && note recorded "$python" "$CHECKS" "$plain" --have images,length,cf,decisions,sglang,openai
if [ "${BENCH:-1}" != 0 ]; then
    note jevbench-check "$home/venv/bin/jevbench" check --url "$plain/v1/systemone" --model clef-flash
    note jevbench-mini "$home/venv/bin/jevbench" eval --url "$plain/v1/systemone" --model clef-flash --suite jevbench-mini --no-cache --concurrency 2 --out "$home/jevbench-mini.json"
    note jevbench-mini-split "$home/venv/bin/jevbench" eval --url "$split/v1/systemone" --model clef-flash --suite jevbench-mini --no-cache --concurrency 2 --out "$home/jevbench-mini-split.json"
    cat > "$home/sys1bench.yaml" <<YAML
adapter: jev_typesafe
model_id: clef-flash
url: $plain/v1/systemone
api_key: local
allow_alias: true
probe_models: true
deployment: local
timeout_s: 120
YAML
    note sys1bench-canary env -C "$home" "$home/venv/bin/sys1bench" canary jev_typesafe --config "$home/sys1bench.yaml" --store "$home/canary"
    note sys1bench-canary-again env -C "$home" "$home/venv/bin/sys1bench" canary jev_typesafe --config "$home/sys1bench.yaml" --store "$home/canary"
fi
printf '\n'
printf '%s\n' "${results[@]}"
exit "$failed"
