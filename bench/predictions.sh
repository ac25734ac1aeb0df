#!/usr/bin/env bash
# bench/predictions.sh [--quick]: how exact predictions are. Runs experiments of mlp_lab in three sizes of which no
# product was measured for the card: no rate is of these widths, nor of most of these batches. Keeps the errors by
# scheme, the ten worst and every case in bench/results/<machine>/predictions.txt. Takes 40 minutes
# on two cores, on a machine that does nothing else; one that was stopped goes on where it stopped. --quick takes
# a tenth of it, for a look, and keeps nothing.
set -euo pipefail
. "$(dirname "$0")/keep.sh"
experiments=(amdahl batch-sweep data-parallel two-splits model-parallel comm-vs-compute batch-scaling
  imbalance no-sync sharding local-sgd pipeline)

ninja -C "$build" mlp_lab mlp_single mlp_dp mlp_ddp >/dev/null
results=()
while read -r dim depth batch more; do  # attention has widths of its own
  study=$build/predictions-$dim${1-}
  "$build/mlp_lab" run "${experiments[@]}" $more --device cpu ${1-} --starts 6 --dim "$dim" --depth "$depth" \
    --batch-size "$batch" --output "$study" </dev/null
  results+=("$study/results.json")
done <<<"768 4 48 attention
384 6 96
1280 4 32"
show=(python3 "$here/predictions.py" "${results[@]}")
if [ "${1-}" = --quick ]; then "${show[@]}"; else keep predictions.txt "${show[@]}"; fi
