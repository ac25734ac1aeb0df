#!/usr/bin/env bash
# bench/loading.sh: an epoch from files with mlp_single and with PyTorch's DataLoader, on the CPU.
# Keeps the figures in bench/results/<machine>/loading.txt. Run it on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" mlp_single >/dev/null
keep loading.txt python3 "$here/loading.py" "$build/mlp_single" "${PYTHON:-/usr/bin/python3}"
