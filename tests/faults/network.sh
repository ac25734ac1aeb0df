#!/usr/bin/env bash
# network.sh MLP_DDP: what a network does to two ranks on hosts of scripts/hosts.sh. Over a slow link,
# and after a partition that heals, losses are those of an undisturbed run; after a pulled cable, and
# when a host is gone, the job ends with an error. Ends with 77 where this machine makes no hosts.
set -euo pipefail
hosts=$(cd "$(dirname "$0")/../../scripts" && pwd -P)/hosts.sh
mlp_ddp=$(realpath "$1")
"$hosts" down
"$hosts" up 2 --rate 1gbit
folder=$(mktemp -d /tmp/barestep-network.XXXXXX)
trap '"$hosts" down; rm -rf "$folder"' EXIT

# run NAME TIMEOUT STEPS: the job in the background, in $job; a step takes a tenth of a second or more.
run() {
  timeout --kill-after=5 100 "$hosts" run "$mlp_ddp" --device cpu --threads 1 --dim 256 --depth 2 \
    --delay-ms 100 --log-every 1 --timeout "$2" --steps "$3" >"$folder/$1" 2>"$folder/$1.err" &
  job=$!
}
# Waits until the job has begun to train.
begun() {
  local try
  for try in $(seq 200); do
    ! grep -q '^Step 02' "$folder/$1" || return 0
    sleep 0.1
  done
  wrong "$1 does not begin" "$1"
}
wrong() {
  echo "network: error: $1; its output:" >&2
  cat "$folder/$2" "$folder/$2.err" >&2
  exit 1
}
losses() { sed -n 's/^Step \([0-9]*\).*Loss: \([0-9.]*\).*/\1 \2/p' "$folder/$1"; }
# goes_on NAME WHAT: it ends well, with the losses of an undisturbed run.
goes_on() {
  wait "$job" || wrong "$2: the run ends with $?" "$1"
  [ "$(losses "$1")" = "$(losses undisturbed)" ] || wrong "$2: other losses" "$1"
  echo "$2: the same losses, to the last digit"
}
# The trainers that still run on a host.
left_on() { ip netns pids "barestep-host$1" | xargs -r ps -o comm= -p | grep -c '^mlp_ddp' || true; }
# ends NAME WHAT: a line says why, and no trainer is left on either host. mpirun of Open MPI 4.1 waits
# for the other host's daemon, so it is killed.
ends() {
  local begin=$SECONDS
  until grep -q 'mlp_ddp: error: ' "$folder/$1.err" && [ "$(left_on 1)$(left_on 2)" = 00 ]; do
    [ $((SECONDS - begin)) -lt 40 ] || wrong "$2: no line, or trainers left" "$1"
    sleep 0.2
  done
  echo "$2: ended after $((SECONDS - begin)) s: $(grep -m 1 'mlp_ddp: error: ' "$folder/$1.err")"
  "$hosts" down
  { wait "$job" || true; } 2>/dev/null
}

run undisturbed 30 30
wait "$job" || wrong "an undisturbed run ends with $?" undisturbed
[ "$(losses undisturbed | wc -l)" = 30 ] || wrong "not 30 steps" undisturbed

run slow 30 30
begun slow
"$hosts" cable 2 20mbit
goes_on slow "a slow link"
"$hosts" cable 2 1gbit

run partition 30 30
begun partition
"$hosts" cable 2 down
sleep 2
"$hosts" cable 2 up
goes_on partition "a partition that heals"

run pulled 3 1000
begun pulled
"$hosts" cable 2 down
ends pulled "a cable pulled"
"$hosts" up 2 --rate 1gbit

run gone 3 1000
begun gone
ip netns pids barestep-host2 | xargs kill -9
"$hosts" cable 2 down
ends gone "a host gone"
