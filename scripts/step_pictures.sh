#!/bin/bash
# step_pictures.sh BUILD: measures and draws docs/lanes.svg and docs/profiler_step.svg, the steps of median length, and checks
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
python3 "$source/tests/docs/pictures_test.py" "$source"
