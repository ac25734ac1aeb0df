#!/usr/bin/env bash
# bench/what_if.sh [--quick]: what changes of ten command lines gain, predicted and measured in turn with the
# run, into bench/results/<machine>/what_if.txt. Takes at most ten minutes on two cores, on a machine that does
# nothing else; one that was stopped goes on where it stopped. --quick makes two starts of each, for a look,
# and keeps nothing.
set -euo pipefail
. "$(dirname "$0")/keep.sh"
mpirun="mpirun -np 2 mlp_ddp --device cpu --steps 20"
single="mlp_single --device cpu --steps 20"
commands=(
  "$single --dim 1024 --depth 4 --delay-ms 10"
  "$single --dim 768 --depth 4 --update separate"
  "$single --dim 256 --depth 8 --batch-size 512 --threads 1"
  "$single --dim 1024 --depth 2 --accumulate 2 --optimizer sgd"
  "$single --layers 784,1024,512,256,10 --batch-size 128 --activation gelu --delay-ms 3"
  "$mpirun --dim 1024 --depth 4 --slow-rank 1:20"
  "$mpirun --dim 1024 --depth 3 --no-overlap --jitter-ms 8"
  "$mpirun --dim 512 --depth 6 --scheme zero1 --delay-ms 5"
  "$mpirun --dim 1024 --depth 4 --scheme factor"
  "mlp_dp --devices cpu,cpu --steps 20 --dim 768 --depth 4 --io-delay-ms 6"
)

ninja -C "$build" mlp_lab mlp_single mlp_dp mlp_ddp >/dev/null
study=$build/what-if${1-}
mkdir -p "$study"
if [ ! -e "$study/card.json" ]; then "$build/mlp_lab" card --device cpu ${1-} --output "$study/card.json"; fi
results=()
for i in "${!commands[@]}"; do
  # shellcheck disable=SC2086 # a command line is words
  "$build/mlp_lab" what-if --check --card "$study/card.json" --starts $([ "${1-}" = --quick ] && echo 2 || echo 6) \
    --output "$study/$i" ${commands[i]}
  results+=("$study/$i/results.json")
done
show=(python3 "$here/predictions.py" "${results[@]}")
if [ "${1-}" = --quick ]; then "${show[@]}"; else keep what_if.txt "${show[@]}"; fi
