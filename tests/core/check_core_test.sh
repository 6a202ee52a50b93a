#!/usr/bin/env bash
# tools/check_core.sh accepts a small core and fails on each thing it is there to catch.
# Usage: check_core_test.sh PATH/check_core.sh
set -euo pipefail
check=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fresh() {
  rm -rf "${root:?}"/*
  mkdir -p "$root/core/api" "$root/modules/swap_x"
  printf '#pragma once\n#include <vector>\n#include "core/api/a.h"\n' > "$root/core/api/b.h"
  printf '#include "core/api/b.h"\n#include <boost/dll.hpp>\n' > "$root/core/c.cpp"
}
blank_lines() { printf '\n%.0s' $(seq "$1"); }
refuses() {
  if "$check" "$root" > /dev/null 2> "$root/said"; then echo "accepted: $1" >&2; exit 1; fi
  grep -qF "$1" "$root/said" || { echo "did not say '$1':" >&2; cat "$root/said" >&2; exit 1; }
}

fresh; "$check" "$root" > /dev/null
rm -r "$root/core"; refuses "no core/"
fresh; blank_lines 2500 >> "$root/core/c.cpp"; refuses "core/ has 2505 lines"
fresh; mkdir "$root/core/part"; blank_lines 2496 > "$root/core/part/d.h"; refuses "core/ has 2501 lines"
fresh; mkdir "$root/core/part"; echo '#include "tests/a.h"' > "$root/core/part/d.cpp"; refuses "only itself"
fresh; blank_lines 148 >> "$root/core/api/b.h"; refuses "core/api/b.h has 151 lines"
fresh; blank_lines 147 >> "$root/core/api/b.h"; "$check" "$root" > /dev/null
for header in '<cuda_runtime.h>' '<nccl.h>' '<mpi.h>' '"hwy/highway.h"' '<unicode/uchar.h>'; do
  fresh; echo " # include $header" >> "$root/core/c.cpp"; refuses "only modules and kernels"
done
fresh; echo '#include "kernels/a.h"' >> "$root/core/c.cpp"; refuses "only itself"
fresh; echo '#include <fmt/format.h>' >> "$root/core/api/b.h"; refuses "the standard library"
fresh; echo '#include "core/host.h"' >> "$root/core/api/b.h"; refuses "the standard library"
fresh; echo '// for Swap_X' >> "$root/core/c.cpp"; refuses "names the module swap_x"
