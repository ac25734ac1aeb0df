#!/usr/bin/env bash
# bench/run.sh [options of barestep_bench]: builds and runs the benchmarks, five times each in
# random order, and keeps the figures in bench/results/<machine>/. Run it on an otherwise idle
# machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
build=$here/../build
results=$here/results/$(python3 "$here/machine.py")
mkdir -p "$results"

if [ ! -f "$build/build.ninja" ]; then cmake -S "$here/.." -B "$build" -G Ninja >/dev/null; fi
ninja -C "$build" barestep_bench >/dev/null
file=$results/bench_$(date -u +%Y%m%d_%H%M%S)
"$build/barestep_bench" --threads="$(nproc)" --benchmark_repetitions=5 \
  --benchmark_enable_random_interleaving=true --benchmark_display_aggregates_only=true \
  --benchmark_context=commit="$(git -C "$here" describe --always --dirty)" \
  --benchmark_out="$file.json" "$@" | tee "$file.txt"
echo "written to $file.json"
