#!/usr/bin/env bash
# The page at / in a real browser: Debian's Chromium, driven by playwright-core, with axe-core looking for barriers.
# Installs what it needs. `.ci/page.sh --screenshots` also writes docs/images/page-*.png anew.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${CARGO_TARGET_DIR:-target}/release/descant
modules=${CARGO_TARGET_DIR:-target}/page
work=$(mktemp -d)
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

if ! command -v chromium > /dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > "$work/apt.log" \
        || { cat "$work/apt.log"; exit 1; }
fi
command -v node > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm > /dev/null
mkdir -p "$modules" && modules=$(realpath "$modules")
[ -d "$modules/node_modules/axe-core" ] || npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$modules" playwright-core@1.65.1 axe-core@4.14.1
[ -x "$program" ] || cargo build --release --locked

"$program" serve ${MODEL:-models/demo} --port 0 > "$work/out" 2> "$work/err" &
server=$!
for _ in $(seq 300); do grep -q listening "$work/out" && break; sleep 0.1; done
base=$(sed -n 's/^listening on //p' "$work/out")
[ -n "$base" ] || { cat "$work/err"; exit 1; }
screenshots=()
[ "${1:-}" = --screenshots ] && { mkdir -p docs/images; screenshots=(--screenshots docs/images); }
NODE_MODULES="$modules/node_modules" node tools/page/drive.mjs "$base" "$(command -v chromium)" "${screenshots[@]}"
