#!/usr/bin/env bash
# bench/checkpoints.sh: the cost of checkpoints in a run's steps, on one process and with two ranks
# of --scheme zero1. Keeps the figures in bench/results/<machine>/checkpoints.txt. Run it on an
# otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" mlp_single mlp_ddp >/dev/null
. "$here/../scripts/mpi_env.sh"
keep checkpoints.txt python3 "$here/checkpoints.py" "$build/mlp_single" "$build/mlp_ddp"
