#!/usr/bin/env bash
# From a fresh clone to answers: installs what is missing, builds the program, lets the bundled model
# answer questions about ten long documents, with swapping and scorers on, and prints what came out. Status 0: all are right.
# Usage: tools/demo.sh
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
mkdir -p out/demo
cmake --preset release > out/demo/configure.log 2>&1 || { cat out/demo/configure.log >&2; exit 1; }
cmake --build --preset release --target ebb

rm -f out/demo/results.jsonl
build/release/bin/ebb run config/demo/bounded.toml -i config/demo/prompts.jsonl -o out/demo/results.jsonl
python3 tools/demo_table.py config/demo out/demo/results.jsonl
