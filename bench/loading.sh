#!/usr/bin/env bash
# bench/loading.sh: an epoch from files with mlp_single and with PyTorch's DataLoader, on the CPU.
# Keeps the figures in bench/results/<machine>/loading.txt. Run it on an otherwise idle machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
build=$here/../build
results=$here/results/$(python3 "$here/machine.py")
mkdir -p "$results"

ninja -C "$build" mlp_single >/dev/null
{
  echo "# bench/loading.sh   (commit $(git -C "$here" describe --always --dirty))"
  python3 "$here/loading.py" "$build/mlp_single" "${PYTHON:-/usr/bin/python3}"
} | tee "$results/loading.txt"
