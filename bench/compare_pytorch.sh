#!/usr/bin/env bash
# bench/compare_pytorch.sh [--newest] [options of compare_pytorch.py]: the speed of a step of the
# practical with mlp_single relative to PyTorch, on this machine. Uses the installed PyTorch
# (PYTHON=/usr/bin/python3); with --newest, it installs the newest one, several gigabytes, in a
# virtual environment outside the repository. --help lists the options.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
python=${PYTHON:-/usr/bin/python3}
build=$here/../build

if [ "${1:-}" = --newest ]; then
  shift
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/barestep/newest-pytorch
  if [ ! -x "$venv/bin/python" ]; then python3 -m venv "$venv"; fi
  "$venv/bin/python" -m pip install --quiet --upgrade torch numpy
  python=$venv/bin/python
fi

case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    if ! "$python" -c "import torch" 2>/dev/null; then
      echo "compare_pytorch.sh: error: python '$python': has no PyTorch; install python3-torch, or" \
        "give --newest" >&2
      exit 69
    fi
    if [ ! -x "$build/mlp_single" ]; then
      cmake -S "$here/.." -B "$build" -G Ninja >/dev/null
    fi
    ninja -C "$build" mlp_single >/dev/null
    ;;
esac
exec python3 "$here/compare_pytorch.py" --python "$python" "$@"
