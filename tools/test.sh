#!/usr/bin/env bash
# From a fresh clone to a tested build: installs what is missing, builds everything, runs all tests.
# The last lines are the test runner's summary, the status is its status.
# Usage: tools/test.sh [ctest arguments, e.g. -R loader]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
cmake --preset release
cmake --build --preset release
exec ctest --preset release --parallel 2 "$@"
