#!/usr/bin/env bash
# bench/core_distance.sh [seconds]: whether the hypervisor moves this machine's CPUs, and what that does to the
# time of a pass of Adam on one of them and on both. Keeps the figures in
# bench/results/<machine>/core_distance.txt. Run it on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" core_distance >/dev/null
keep core_distance.txt "$build/core_distance" "${1:-600}"
