#!/usr/bin/env bash
# configure_test.sh <source root>: if something needed or requested is missing, the configure stops,
# and one sentence says why and what to do.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# stops <sentence> <command...>: the command fails with this sentence.
stops() {
  local sentence=$1 said
  shift
  if said=$("$@" 2>&1); then
    echo "accepted: $*"
    failures=$((failures + 1))
  elif ! tr -s ' \n' ' ' <<<"$said" | grep -F -- " $sentence " >/dev/null; then
    printf 'wanted: %s\nsaid: %s\n' "$sentence" "$said"
    failures=$((failures + 1))
  fi
}

# refused <sentence> <option...>: configuring with these options, and without CUDA, stops.
refused() {
  stops "$1" cmake -S "$root" -B "$work/build" -G Ninja -U 'BARESTEP_*' -U 'CMAKE_DISABLE_*' \
    -DBARESTEP_CUDA=OFF "${@:2}"
}

refused "Threads was not found; run scripts/setup.sh, or install libc6-dev" \
  -DCMAKE_DISABLE_FIND_PACKAGE_Threads=ON
refused "BARESTEP_CUDA 'perhaps': not a choice; take AUTO, ON or OFF" -DBARESTEP_CUDA=perhaps
refused "BARESTEP_CUDA 'ON': it was not found; install the CUDA toolkit, 12.0 or newer, or take AUTO or OFF" \
  -DBARESTEP_CUDA=ON -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
refused "BARESTEP_NCCL 'ON': it needs CUDA, which this build has not; install the NCCL library,\
 2.18 or newer, and its header, or take AUTO or OFF" -DBARESTEP_NCCL=ON
if command -v nvcc >/dev/null; then
  printf '#define NCCL_%s\n' 'MAJOR 2' 'MINOR 17' 'PATCH 1' >"$work/nccl.h"
  refused "BARESTEP_NCCL 'ON': NCCL 2.17.1 is too old; install the NCCL library, 2.18 or newer, and its header,\
 or take AUTO or OFF" -DBARESTEP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 -DBARESTEP_NCCL=ON \
    -DBARESTEP_nccl_INCLUDE="$work" -DBARESTEP_nccl_LIBRARY="$work/libnccl.so"
fi
refused "BARESTEP_MPI 'ON': it was not found; install libopenmpi-dev and openmpi-bin, or take AUTO or OFF" \
  -DBARESTEP_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
refused "BARESTEP_TESTS 'ON': it was not found; install libgtest-dev and libgmock-dev, or take AUTO or OFF" \
  -DBARESTEP_TESTS=ON -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON
# The programs alone need no GoogleTest.
cmake -S "$root" -B "$work/build" -G Ninja -U 'BARESTEP_*' -U 'CMAKE_DISABLE_*' -DBARESTEP_CUDA=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON >"$work/log" 2>&1 || { cat "$work/log"; failures=$((failures + 1)); }
stops "BARESTEP_TEST_COMPILER '/bin/false': is no clang++; leave it empty" \
  cmake -DBARESTEP_TEST_COMPILER=/bin/false -P "$root/cmake/test_compiler.cmake"
exit $((failures > 0))
