#!/usr/bin/env bash
# bench/attention.sh [options of attention.py]: flash attention on this machine beside PyTorch's. Takes
# the installed PyTorch, or another by PYTHON=... Run it on an otherwise idle machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
build=$here/../build
python=${PYTHON:-/usr/bin/python3}

case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    if ! "$python" -c "from torch.nn.attention import sdpa_kernel" 2>/dev/null; then
      echo "attention.sh: error: python '$python': has no PyTorch with a choice of attention's kernel;" \
        "install a newer one, or name it by PYTHON=..." >&2
      exit 69
    fi
    if [ ! -f "$build/build.ninja" ]; then cmake -S "$here/.." -B "$build" -G Ninja >/dev/null; fi
    ninja -C "$build" barestep_bench >/dev/null
    ;;
esac
exec python3 "$here/attention.py" --python "$python" "$@"
