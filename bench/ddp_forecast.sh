#!/usr/bin/env bash
# bench/ddp_forecast.sh [python]: what mlp_lab explain --ranks predicts for PyTorch's DDP from the trace of
# one process, beside what 2 and 4 processes with gloo take. Keeps the figures in
# bench/results/<machine>/ddp_forecast.txt. Needs PyTorch; 3 minutes on an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/keep.sh"

ninja -C "$build" mlp_lab >/dev/null
keep ddp_forecast.txt "${1:-python3}" "$here/ddp_forecast.py" "$build"
