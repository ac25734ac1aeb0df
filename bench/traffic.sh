#!/usr/bin/env bash
# bench/traffic.sh [--ranks N,...] [--check]: the bytes that ranks of mlp_ddp send and receive in a step, as
# Open MPI's monitoring counts them, beside what the books say; --check fails where they differ by more than
# a hundredth, and keeps nothing. Otherwise the figures go to bench/results/<machine>/traffic.txt. Counts
# need no idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"
program=${MLP_DDP:-$build/mlp_ddp}

. "$here/../scripts/mpi_env.sh"
if [ ! -x "$program" ]; then ninja -C "$build" mlp_ddp >/dev/null; fi
case " $* " in
  *" --check "* | *" --help "* | *" -h "*) exec python3 "$here/traffic.py" "$program" "$@" ;;
esac
keep traffic.txt python3 "$here/traffic.py" "$program" "$@"
