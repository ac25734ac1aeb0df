#!/usr/bin/env bash
# bench/network.sh [--quick]: the experiment network, steps of ddp, zero1, factor and local SGD, between two hosts
# of scripts/hosts.sh, at 100 Mbit/s, 1 and 10 Gbit/s, beside their predictions from a card that was measured over
# the same cable. Keeps them in bench/results/<machine>/network.txt. Needs root and a machine that does nothing
# else. The model is small, because a step at 100 Mbit/s sends 1 MiB in 84 ms. --quick keeps nothing.
set -euo pipefail
. "$(dirname "$0")/keep.sh"
hosts=$here/../scripts/hosts.sh

ninja -C "$build" mlp_lab mlp_single mlp_dp mlp_ddp >/dev/null
"$hosts" down
trap '"$hosts" down' EXIT
for rate in 100mbit 1gbit 10gbit; do
  "$hosts" up 2 --rate $rate
  "$hosts" with "$build/mlp_lab" run network --device cpu ${1-} \
    --dim 256 --depth 4 --steps 24 --warmup 8 --starts 6 --output "$build/network${1-}-$rate"
  "$hosts" down
done
show() {
  local rate
  for rate in 100mbit 1gbit 10gbit; do
    printf '\n%s\n' "$rate"
    python3 "$here/predictions.py" "$build/network${1-}-$rate/results.json"
  done
}
if [ "${1-}" = --quick ]; then show "$1"; else keep network.txt show; fi
