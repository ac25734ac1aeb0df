#!/usr/bin/env bash
# bench/startup.sh [PYTHON]: how long a newcomer waits: from the start of a program to the end of its
# first step, to a plan, to the help, and what loading cuBLASLt at start would cost. With a Python
# that has torch, also its import alone. Keeps the figures in bench/results/<machine>/startup.txt.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" mlp_single >/dev/null
keep startup.txt python3 "$here/startup.py" "$build/mlp_single" "$@"
