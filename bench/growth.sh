#!/usr/bin/env bash
# bench/growth.sh: how time and memory of planning, predicting, explaining and reporting grow with depth,
# ranks, micro-batches, the size and width of a trace and the starts of a study. Keeps the figures in
# bench/results/<machine>/growth.txt. Run it on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

. "$here/../scripts/mpi_env.sh"
if [ ! -x "$build/mlp_lab" ]; then ninja -C "$build" mlp_single mlp_dp mlp_ddp mlp_lab >/dev/null; fi
keep growth.txt python3 "$here/growth.py" "$build"
