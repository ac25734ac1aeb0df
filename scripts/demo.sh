#!/usr/bin/env bash
# scripts/demo.sh [--cuda] [options of mlp_single]: installs what is missing, builds mlp_single and trains the
# baseline model (mlp_single's defaults) on the best device there is. The build is for the GPUs that are here, or for
# the CPU alone; --cuda compiles for every GPU all the same. From the second run on it trains at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"

say() { printf '%s\n' "$*" >&2; }
give_up() {
  say "demo: error: $*"
  exit 1
}

cuda=()
for_what="what is configured already"
if [ "${1:-}" = --cuda ]; then
  cuda=(-DBARESTEP_CUDA=ON)
  for_what="for GPUs"
  shift
elif [ ! -f "$root/build/build.ninja" ]; then
  if nvidia-smi -L 2>/dev/null | grep -q GPU; then
    for_what="for the GPU that is here, if there is a CUDA toolkit"
  else
    cuda=(-DBARESTEP_CUDA=OFF)
    for_what="for the CPU, as no GPU is here; 'scripts/demo.sh --cuda' compiles for GPUs too"
  fi
fi

say "1/4 packages"
"$root/scripts/setup.sh" --demo

say "2/4 configure ($for_what)"
if [ ! -f "$root/build/build.ninja" ] || [ ${#cuda[@]} -gt 0 ]; then
  configured release build "${cuda[@]}" || give_up "configure 'build': failed as shown above"
fi

say "3/4 build"
build() { cmake --build "$root/build" --target mlp_single --parallel "$(nproc)" 2>&1 | progress time_left; }
logged build build || give_up "build 'mlp_single': failed as shown above"

say "4/4 train: build/mlp_single --steps 20 $*"
exec "$root/build/mlp_single" --steps 20 "$@"
