#!/usr/bin/env bash
# bench/traffic.sh [--ranks N,...]: the bytes that ranks of mlp_ddp send and receive in a step, as Open
# MPI's monitoring counts them, beside what the books say. Counts need no idle machine. Keeps the figures in
# bench/results/calculated/traffic.txt: they are the same on every machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
build=$here/../build

. "$here/../scripts/mpi_env.sh"
if [ ! -x "$build/mlp_ddp" ]; then ninja -C "$build" mlp_ddp >/dev/null; fi
python3 "$here/traffic.py" "$build/mlp_ddp" "$@"
