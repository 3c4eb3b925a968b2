#!/bin/sh
# Fetch Debian's package lists, with tags and the translated descriptions, into DIR.
#
#   tools/demo/fetch.sh DIR
#
# Uses the machine's own apt sources and a private list folder, so nothing of the system changes.
set -eu
dir=${1:?usage: fetch.sh DIR}
mkdir -p "$dir/partial"
dir=$(cd "$dir" && pwd)
exec apt-get update \
  -o Dir::State::Lists="$dir" \
  -o Acquire::GzipIndexes=false \
  -o Acquire::Languages=en,de,fr,es,it,ja,pl,pt_BR,ru
