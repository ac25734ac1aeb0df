#!/usr/bin/env bash
# scripts/demo.sh [options of mlp_single]: installs what is missing, builds mlp_single and trains the
# baseline model (mlp_single's defaults) on the best device there is. From the second run on it trains at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"

say() { printf '%s\n' "$*" >&2; }
give_up() {
  say "demo: error: $*"
  exit 1
}

say "1/4 packages"
"$root/scripts/setup.sh"

say "2/4 configure"
configured release build || give_up "configure 'build': failed as shown above"

say "3/4 build (the first time takes two minutes, four with CUDA)"
logged build ninja -C "$root/build" mlp_single || give_up "build 'mlp_single': failed as shown above"

say "4/4 train: build/mlp_single --steps 20 $*"
exec "$root/build/mlp_single" --steps 20 "$@"
