#!/usr/bin/env bash
# bench/updates.sh: steps with Adam inside the weight gradients, with Adam after them, and with
# PyTorch, on the CPU, and the time of a single layer's update. Keeps the figures in
# bench/results/<machine>/updates.txt. Run it on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" mlp_single barestep_bench >/dev/null
compare() {
  python3 "$here/updates.py" "$build/mlp_single" "${PYTHON:-/usr/bin/python3}"
  echo
  "$build/barestep_bench" --threads="$(nproc)" --benchmark_filter=weight_update \
    --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true --benchmark_min_time=0.05 \
    --benchmark_format=json 2>/dev/null | python3 "$here/updates.py" --layers
}
keep updates.txt compare
