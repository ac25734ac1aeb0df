#!/usr/bin/env bash
# bench/verification.sh: what --verify-every 100, 10 and 1 cost, on one rank and on two, beside the same
# run without it. Keeps the figures in bench/results/<machine>/verification.txt. Run it on an
# otherwise idle machine; it takes about five minutes.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

. "$here/../scripts/mpi_env.sh"
ninja -C "$build" mlp_single mlp_ddp >/dev/null
keep verification.txt python3 "$here/verification.py" "$build"
