#!/usr/bin/env bash
# The core stays small and knows nobody: fails on too many lines, on a vendor's header, on the name of
# a module, and on an interface header that does not fit on a few screens.
# Usage: tools/check_core.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

max_lines=2500
max_interface_lines=150
failed=0
fail() { echo "check_core: $*" >&2; failed=1; }

shopt -s nullglob globstar
interfaces=(core/api/**/*.h)
mechanism=()
for file in core/**/*.h core/**/*.cpp; do
  [[ $file == core/api/* ]] || mechanism+=("$file")
done
files=("${mechanism[@]}" "${interfaces[@]}")
((${#files[@]} > 0)) || { echo "check_core: no core/ in $PWD" >&2; exit 1; }

lines=$(cat "${files[@]}" | wc -l)
((lines <= max_lines)) || fail "core/ has $lines lines: want at most $max_lines"

for file in "${interfaces[@]}"; do
  n=$(wc -l < "$file")
  ((n <= max_interface_lines)) || fail "$file has $n lines: want at most $max_interface_lines"
done

vendors='cuda|cublas|nccl|mpi|hwy|unicode|curand'
if found=$(grep -niE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($vendors)" "${files[@]}"); then
  fail "a header that only modules and kernels may include:"$'\n'"$found"
fi
if found=$(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"(modules|kernels|tools|tests)/' "${files[@]}"); then
  fail "the core includes only itself:"$'\n'"$found"
fi
if found=$(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*(<[^>]*[/.]|"core/[^a])' "${interfaces[@]}"); then
  fail "core/api includes only itself and the standard library:"$'\n'"$found"
fi

for module in modules/*/; do
  name=$(basename "$module")
  if found=$(grep -niF "$name" "${mechanism[@]}" /dev/null); then
    fail "the core names the module $name:"$'\n'"$found"
  fi
done

((failed == 0)) && echo "check_core: $lines of $max_lines lines"
exit "$failed"
