#!/usr/bin/env bash
# bench/class.sh: how long a class of 60 takes: to give out, to grade, and to grade with reruns. Keeps
# the figures in bench/results/<machine>/class.txt. Run it on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

. "$here/../scripts/mpi_env.sh"
if [ ! -x "$build/mlp_lab" ]; then ninja -C "$build" mlp_single mlp_dp mlp_ddp mlp_lab >/dev/null; fi
keep class.txt python3 "$here/class.py" "$build/mlp_lab"
