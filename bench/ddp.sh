#!/usr/bin/env bash
# bench/ddp.sh: several ranks compared with one on the CPU, with the same number of threads each,
# with and without overlap; mlp_dp on two devices beside one process of two threads, by the parts of
# the account; and the time of sums over ranks. Keeps the figures in
# bench/results/<machine>/ddp.txt. Run it on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

. "$here/../scripts/mpi_env.sh"
ninja -C "$build" mlp_single mlp_dp mlp_ddp mlp_lab >/dev/null
compare() {
  python3 "$here/ddp.py" "$build"
  for ranks in 2 4; do
    echo
    mpirun -np "$ranks" "$build/mlp_lab" all-reduce --device cpu
  done
}
keep ddp.txt compare
