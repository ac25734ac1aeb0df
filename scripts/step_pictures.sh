#!/bin/bash
# step_pictures.sh BUILD: measures and draws docs/lanes.svg and docs/profiler_step.svg, the steps of median length, and the
# accounts of the same step by three programs (docs/account_of_a_step.svg; the outputs stay in bench/results), and checks
# that they show what the pages say of them. For a machine that nothing else uses.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
. "$source/scripts/mpi_env.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mpirun -np 2 "$build/mlp_ddp" --device cpu --threads 1 --dim 1024 --depth 6 --bucket-mib 4 --steps 40 --trace lanes.json
"$source/scripts/trace_picture.py" lanes.rank0.json median "$source/docs/lanes.svg"
"$build/mlp_single" --device cpu --dim 1024 --depth 2 --steps 400 --log-every 400 --profile --trace step.json.gz
"$source/scripts/trace_picture.py" step.json.gz median "$source/docs/profiler_step.svg"

results=$source/bench/results/$(python3 "$source/bench/machine.py")
commit=$(git -C "$source" describe --always)
step=(--dim 1024 --depth 2 --steps 60 --log-every 60)
# account <name> <command...>
account() {
  {
    echo "# ${*:2}   (commit $commit)"
    "${@:2}" 2>&1
  } | sed "s|$build|build|g" >"$results/account_of_$1.txt"
}
account mlp_single "$build/mlp_single" --device cpu --update separate "${step[@]}"
account mlp_dp "$build/mlp_dp" --devices cpu,cpu "${step[@]}"
account mlp_ddp mpirun -np 2 "$build/mlp_ddp" --device cpu --slow-rank 1:20 "${step[@]}"
"$source/scripts/account_picture.py" "$source/docs/account_of_a_step.svg" \
  "mlp_single=$results/account_of_mlp_single.txt" "mlp_dp on 2 devices=$results/account_of_mlp_dp.txt" \
  "mlp_ddp on 2 ranks, one of them 20 ms late=$results/account_of_mlp_ddp.txt"
python3 "$source/tests/docs/pictures_test.py" "$source"
