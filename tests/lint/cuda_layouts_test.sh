#!/usr/bin/env bash
# cuda_layouts_test.sh <source root> <nvcc>: the configure accepts CUDA in the layout of the pip
# wheels, and reports correctly for which architectures code is compiled. The layout consists of
# links to this machine's toolkit.
set -euo pipefail
root=$1
nvcc=${2:-}
if [ -z "$nvcc" ]; then
  echo "skipped: this build has no CUDA compiler"
  exit 77
fi
toolkit=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CUDACXX CUDAARCHS CUDA_PATH

# configure <CUDAARCHS> <option...>: stores its output in $work/printed.
configure() {
  local architectures=$1
  shift
  rm -rf "$work/build"
  env ${architectures:+CUDAARCHS="$architectures"} cmake -S "$root" -B "$work/build" -G Ninja \
    -DBARESTEP_LINT=OFF -DBARESTEP_CUDA=ON -DBARESTEP_NCCL=OFF -DBARESTEP_MPI=OFF "$@" \
    >"$work/printed" 2>&1 || { cat "$work/printed"; exit 1; }
}

summary() {
  grep -qE -- "--   CUDA +ON +[0-9.]+, $1\$" "$work/printed" || { cat "$work/printed"; exit 1; }
}

# Libraries in lib, with versioned names only. nvcc is a file in the layout, not a link, because it
# searches for everything else next to itself.
wheels=$work/site-packages/nvidia/cu13
mkdir -p "$wheels"/{bin,lib}
cp "$toolkit/bin/nvcc" "$wheels/bin/"
ln -s "$toolkit"/{nvvm,include} "$wheels/"
find "$toolkit/bin" -mindepth 1 -maxdepth 1 ! -name nvcc -exec ln -s {} "$wheels/bin/" \;
for library in "$toolkit"/lib64/lib{cudart,cublas,cublasLt,curand}.so.1? "$toolkit"/lib64/lib*.a; do
  ln -s "$library" "$wheels/lib/"
done
configure "80;90" "-DCUDAToolkit_ROOT=$wheels"
summary "$wheels/bin/nvcc, for 80, 90"
grep -qF "CUDA_cublasLt_LIBRARY:FILEPATH=$wheels/lib/libcublasLt.so.1" "$work/build/CMakeCache.txt"

# By default, nvcc's own choice for all-major, or the GPUs that are here; if CMake's variable is set, exactly that.
mkdir "$work/tools"
printf '#!/bin/sh\necho "$ARCHITECTURES_HERE"; exit $((${#ARCHITECTURES_HERE} == 0))\n' >"$work/tools/nvidia-smi"
chmod +x "$work/tools/nvidia-smi"
export PATH=$work/tools:$PATH ARCHITECTURES_HERE=
made=$("$nvcc" -arch=all-major --dryrun -x cu /dev/null -o "$work/none" 2>&1 |
  grep -oE 'sm_[0-9]+' | sort -uV | sed 's/sm_//' | paste -sd ,)
configure "" "-DCMAKE_CUDA_COMPILER=$nvcc"
summary ".*, for ${made//,/, }"
export ARCHITECTURES_HERE=$'9.0\n9.0\n8.6'
configure "" "-DCMAKE_CUDA_COMPILER=$nvcc"
summary ".*, for 90, 86"
configure "" "-DCMAKE_CUDA_COMPILER=$nvcc" -DBARESTEP_NATIVE=OFF
summary ".*, for ${made//,/, }"
configure "80" "-DCMAKE_CUDA_COMPILER=$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=90-real"
summary ".*, for 90"
