#!/usr/bin/env bash
# The experiments of `larder-lab live`, one after another, each into target/lab as Markdown and JSON. Logs to replay may be named.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/lab
mkdir -p "$out"
logs=()
for log in "$@"; do logs+=(--log "$log"); done
# Built once, as everything else is: with what run.sh makes sure of.
scripts/run.sh cargo build --release --locked -p larder -p larder-lab
laboratory="${CARGO_TARGET_DIR:-target}/release/larder-lab"

lab() {
  local name=$1
  shift
  echo "== larder-lab live $*" >&2
  "$laboratory" live "$@" --json --markdown "$out/$name.md" > "$out/$name.json"
}

lab overhead overhead
lab cap cap
lab hacc hacc
if ((${#logs[@]})); then lab bound bound --limit 20000 --policies lard-r,bounded "${logs[@]}"; fi
lab policies policies --seconds 3 --limit 20000 ${logs[@]+"${logs[@]}"}
echo "tables: $out/*.md" >&2
