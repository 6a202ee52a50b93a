#!/bin/bash
# Judges compute_cuda on this machine's GPU by the same answers as the CPU backend.
#
#   tools/test_gpu.sh [BUILD]      BUILD: a build folder with oracle_check and the modules
#                                  (default: build/cuda)
#
# Exit status: 0 all passed, 1 something failed, 2 nothing to run, 77 there is no GPU.
set -u
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
check=$build/bin/tests/oracle_check
if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  echo "SKIPPED: no CUDA device here; nothing of compute_cuda was tested" >&2
  exit 77
fi
if [ ! -x "$check" ] || [ ! -e "$build/bin/modules/compute_cuda.so" ]; then
  echo "test_gpu.sh: build first: cmake --preset cuda && cmake --build --preset cuda" >&2
  exit 2
fi
failed=0
for model in tests/data/models/*.gguf config/demo/*.gguf; do
  case $model in *-00002-of-*) continue ;; esac
  "$check" tests/data/vectors "$model" --set compute.module=compute_cuda || failed=1
done
exit $failed
