#!/usr/bin/env bash
# bench/predictions.sh [--quick]: how exact predictions are. Runs the experiments of mlp_lab at two sizes, of
# which no product of the second was measured for the card, and keeps the errors by scheme, the ten worst and
# every case in bench/results/<machine>/predictions.txt. Takes about an hour and a half on two cores, on a
# machine that does nothing else; one that was stopped goes on where it stopped. --quick takes a tenth of it,
# for a look, and keeps nothing.
set -euo pipefail
. "$(dirname "$0")/keep.sh"
held_out=(amdahl batch-sweep data-parallel two-splits model-parallel comm-vs-compute batch-scaling
  imbalance no-sync sharding local-sgd pipeline attention)

ninja -C "$build" mlp_lab mlp_single mlp_dp mlp_ddp >/dev/null
study=$build/predictions${1-}
"$build/mlp_lab" run all --device cpu ${1-} --output "$study-usual"
"$build/mlp_lab" run "${held_out[@]}" --device cpu ${1-} --dim 768 --depth 4 --batch-size 48 \
  --output "$study-held-out"
show=(python3 "$here/predictions.py" "$study-usual/results.json" "$study-held-out/results.json")
if [ "${1-}" = --quick ]; then "${show[@]}"; else keep predictions.txt "${show[@]}"; fi
