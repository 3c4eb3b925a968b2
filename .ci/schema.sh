#!/usr/bin/env bash
# The served OpenAPI document against the program: schemathesis makes requests that fit it and requests that do not, and
# checks statuses, content types, headers and bodies of the replies; the document's own examples must be answered.
# Three servers: one that takes any model's name, so that whatever fits the document must be answered; one with names and
# no room for long prompts; one with a key. The same requests each time.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${CARGO_TARGET_DIR:-target}/release/descant
mkdir -p "${CARGO_TARGET_DIR:-target}/schema"
home=$(realpath "${CARGO_TARGET_DIR:-target}/schema")
work=$(mktemp -d)
servers=()
trap '[ ${#servers[@]} -gt 0 ] && kill "${servers[@]}" 2>/dev/null; rm -rf "$work"' EXIT
python3 -m venv --help > /dev/null 2>&1 || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv > /dev/null
wanted=$(sha256sum < tools/schema/requirements.txt)
if [ "$(cat "$home/installed" 2> /dev/null)" != "$wanted" ]; then
    rm -rf "$home/venv"
    python3 -m venv "$home/venv"
    "$home/venv/bin/pip" install -q --disable-pip-version-check -r tools/schema/requirements.txt
    echo "$wanted" > "$home/installed"
fi
[ -x "$program" ] || cargo build --release --locked

start() { # start NAME FLAGS...: sets base
    local name=$1
    shift
    "$program" serve models/tiny-random --port 0 --log warn "$@" > "$work/$name.out" 2> "$work/$name.err" &
    servers+=($!)
    for _ in $(seq 300); do grep -q listening "$work/$name.out" && break; sleep 0.1; done
    base=$(sed -n 's/^listening on //p' "$work/$name.out")
    [ -n "$base" ] || { cat "$work/$name.err"; exit 1; }
}

passed=0 failed=0
try() { # try NAME ARGUMENTS...
    local name=$1
    shift
    # It leaves notes where it runs.
    if env -C "$work" "$home/venv/bin/schemathesis" --config-file "$PWD/tools/schema/schemathesis.toml" run "$base/openapi.json" --no-color --request-timeout 60 --suppress-health-check all "$@" > "$work/$name.log" 2>&1; then
        echo "ok: $name: $(grep -E '^ *[0-9]+ generated' "$work/$name.log" | tr -s ' ')"
        passed=$((passed + 1))
    else
        echo "FAILED: $name"
        tail -n 400 "$work/$name.log"
        failed=$((failed + 1))
    fi
}

start any --any-model --max-length 1024
"$home/venv/bin/python" tools/schema/examples.py "$base" && passed=$((passed + 1)) || failed=$((failed + 1))
try any-name --max-examples 100
start named --max-length 256
try named --max-examples 30 --exclude-checks positive_data_acceptance
start keyed --api-key secret --max-length 256
try keyed --max-examples 10 --exclude-checks positive_data_acceptance
# A defect is told to the log alone.
if grep -hE "ERROR|panicked" "$work"/*.err; then
    echo "FAILED: the servers logged faults of their own"
    failed=$((failed + 1))
fi
[ "$failed" -eq 0 ] && word=ok || word=FAILED
echo "test result: $word. $passed passed; $failed failed"
[ "$failed" -eq 0 ]
