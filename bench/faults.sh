#!/usr/bin/env bash
# bench/faults.sh: how jobs of several ranks end when one fails: on one machine under mpirun,
# between two hosts that are network namespaces, and under a private Slurm (tests/faults/). Keeps
# the tables in bench/results/<machine>/faults.txt. The last two need root; anything that cannot run
# here is reported.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
build=$here/../build

# Prints the same as bench/machine.py, for machines without Python.
machine() {
  local model
  model=$(grep -m 1 '^model name' /proc/cpuinfo | sed 's/^[^:]*: //') || model=$(uname -m)
  echo "$model $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) cores" | tr '[:upper:]' '[:lower:]' |
    sed -E 's/[^a-z0-9]+/-/g; s/^-|-$//g'
}
results=$here/results/$(machine)
commit=$(git -C "$here" describe --always --dirty)
mkdir -p "$results"

ninja -C "$build" mlp_ddp mpi_faults fault_cells >/dev/null
cells=("$build/tests/fault_cells" --mlp-ddp "$build/mlp_ddp" --faults "$build/tests/libmpi_faults.so" --limit 2 --jobs 4)
{
  echo "# bench/faults.sh   (commit $commit)"
  (. "$here/../scripts/mpi_env.sh" && "${cells[@]}")
  for place in namespaces slurm; do
    echo
    "$here/../tests/faults/$place.sh" "${cells[@]}" || [ $? = 77 ]
  done
} | tee "$results/faults.txt"
