#!/usr/bin/env bash
# Installs what building and testing needs on Debian 12 and Ubuntu 24.04 (or later), from the
# distribution's packages alone. Does nothing, and needs no rights, where all of it is there.
# Not among them, since tests that miss them say so and are skipped: chromium and python3-pandas
# (reports), numpy, torch and safetensors for Python (tools/train_scorer), libcachesim (LRU compared with
# it). Nor is libbenchmark-dev, for
# -DEBB_BENCHMARKS=ON.
# Usage: tools/setup.sh
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config python3 libboost-dev libboost-test-dev
          libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libfmt-dev libicu-dev libhwy-dev
          libxxhash-dev clang-format)

command -v dpkg-query > /dev/null || {
  echo "setup: no dpkg here; install by hand: ${packages[*]}" >&2
  exit 1
}
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null) == installed ]] ||
    missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "setup: all packages are installed"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo > /dev/null || {
    echo "setup: no sudo here; as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
  "${missing[@]}"
