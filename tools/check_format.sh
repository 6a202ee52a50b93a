#!/usr/bin/env bash
# Fails if a C++ or CUDA source under version control is not as .clang-format wants it.
# Usage: tools/check_format.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(--dry-run -Werror)
[[ "${1:-}" == --fix ]] && mode=(-i)
git ls-files -z -- '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 -r clang-format "${mode[@]}"
