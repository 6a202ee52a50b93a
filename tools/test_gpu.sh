#!/bin/bash
# Judges compute_cuda on this machine's GPU: by vectors of other engines, and by the CPU backend.
# It takes less than five minutes.
#
#   tools/test_gpu.sh [BUILD]      BUILD: a build folder with ebb, its modules and its checks
#                                  (default: build/cuda)
#
# First the kernels against double precision (cuda_*_test), then whole models.
#
# Exit status: 0 all passed, 1 something failed, 2 nothing to run, 77 there is no GPU.
set -u
cd "$(dirname "$0")/.."
build=$(realpath -m "${1:-build/cuda}")
if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  echo "SKIPPED: no CUDA device here; nothing of compute_cuda was tested" >&2
  exit 77
fi
for file in ebb modules/compute_cuda.so tests/oracle_check tests/endurance_check tests/copy_check \
            tests/swap_check; do
  if [ ! -e "$build/bin/$file" ]; then
    echo "test_gpu.sh: no $build/bin/$file: cmake --preset cuda && cmake --build --preset cuda" >&2
    exit 2
  fi
done
failed=0
for test in "$build"/bin/tests/cuda_*_test; do
  [ -x "$test" ] || continue
  "$test" --color_output=no || failed=1
done
for model in tests/data/models/*.gguf config/demo/*.gguf; do
  case $model in *-00002-of-*) continue ;; esac
  "$build/bin/tests/oracle_check" tests/data/vectors "$model" --set compute.module=compute_cuda ||
    failed=1
done
"$build/bin/tests/copy_check" --set compute.module=compute_cuda || failed=1
for precision in exact fast; do
  "$build/bin/tests/swap_check" --set compute.module=compute_cuda \
    --set compute.precision=$precision || failed=1
done
cd tests/program || exit 2
EBB_PROGRAM=$build/bin/ebb EBB_CHECKS=$build/bin/tests EBB_FIXTURES=$build/bin/tests/fixtures \
  python3 -B test_gpu.py -v || failed=1
if [ $failed = 0 ]; then echo "compute_cuda: all passed"; else echo "compute_cuda: FAILED"; fi
exit $failed
