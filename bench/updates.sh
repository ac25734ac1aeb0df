#!/usr/bin/env bash
# bench/updates.sh: steps with Adam inside the weight gradients, with Adam after them, with oneDNN's
# products, and with PyTorch, on the CPU; the time of a single layer's update, and products of our own
# beside oneDNN's and PyTorch's, with one thread too. Keeps the figures in bench/results/<machine>/updates.txt. Run it on an otherwise
# idle machine; it takes three to five minutes.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" mlp_single barestep_bench >/dev/null
python=${PYTHON:-/usr/bin/python3}
theirs=$(mktemp)
trap 'rm -f "$theirs"' EXIT
compare() {
  python3 "$here/updates.py" "$build/mlp_single" "$python"
  echo
  layers "$(nproc)" 'weight_update|product'
  echo "# with one thread"
  layers 1 product
}
# layers <threads> <benchmarks>
layers() {
  OMP_NUM_THREADS=$1 "$python" "$here/updates.py" --torch "$1" >"$theirs"
  "$build/barestep_bench" --threads="$1" --benchmark_filter="$2" \
    --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true --benchmark_min_time=0.05 \
    --benchmark_format=json 2>/dev/null | python3 "$here/updates.py" --layers "$theirs"
}
keep updates.txt compare
