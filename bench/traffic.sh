#!/usr/bin/env bash
# bench/traffic.sh [--ranks N,...] [--check]: the bytes that ranks of mlp_ddp send and receive in a step, as
# Open MPI's monitoring counts them, beside what the books say; --check fails where they differ by more than
# a hundredth, and keeps nothing. Otherwise the figures go to bench/results/<machine>/traffic.txt. Counts
# need no idle machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
program=${MLP_DDP:-$here/../build/mlp_ddp}

. "$here/../scripts/mpi_env.sh"
if [ ! -x "$program" ]; then ninja -C "$here/../build" mlp_ddp >/dev/null; fi
case " $* " in
  *" --check "* | *" --help "* | *" -h "*) exec python3 "$here/traffic.py" "$program" "$@" ;;
esac
results=$here/results/$(python3 "$here/machine.py")
mkdir -p "$results"
{
  echo "# bench/traffic.sh   (commit $(git -C "$here" describe --always --dirty))"
  python3 "$here/traffic.py" "$program" "$@"
} | tee "$results/traffic.txt"
