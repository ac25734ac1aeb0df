#!/usr/bin/env bash
# bench/ddp.sh: several ranks compared with one on the CPU, with the same number of threads each,
# with and without overlap, and the time of sums over ranks. Keeps the figures in
# bench/results/<machine>/ddp.txt. Run it on an otherwise idle machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
build=$here/../build
results=$here/results/$(python3 "$here/machine.py")
mkdir -p "$results"

. "$here/../scripts/mpi_env.sh"
ninja -C "$build" mlp_ddp all_reduce >/dev/null
{
  echo "# bench/ddp.sh   (commit $(git -C "$here" describe --always --dirty))"
  python3 "$here/ddp.py" "$build/mlp_ddp"
  for ranks in 2 4; do
    echo
    mpirun -np "$ranks" "$build/all_reduce" mpi
  done
} | tee "$results/ddp.txt"
