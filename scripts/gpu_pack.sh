#!/usr/bin/env bash
# scripts/gpu_pack.sh [ARCHITECTURE]: builds what scripts/gpu_check.sh needs for GPUs of this compute
# capability (90) in build/packed, and packs it into build/packed.tar.xz: programs and GPU tests
# without their symbols, the libraries that they load, and Open MPI. Copied with the source tree to a
# machine with a GPU, gpu_check.sh unpacks it there and builds nothing. cuBLAS, CUPTI and NCCL are
# that machine's.
#
# The programs run on x86-64 processors with AVX2 and with a C library as new as this machine's. They
# contain paths of this source tree, and Open MPI those of its packages: where they do not exist,
# gpu_check.sh makes links to them.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
architecture=${1:-90}
packed=$root/build/packed
programs=(mlp_single mlp_dp mlp_ddp mlp_lab barestep_cuda_bench barestep_cuda_epilogues barestep_cuda_fused_update)
tests=(cuda_parity_test data_parallel_gpu_test dp_gpu_test nccl_gpu_test ddp_gpu_test)

stop() {
  echo "gpu_pack: error: $1" >&2
  exit "$2"
}

if ! [[ $architecture =~ ^[1-9][0-9]{1,2}$ ]]; then
  stop "architecture '$architecture': not a compute capability; give it as 90 for 9.0" 2
fi
mpirun=$(command -v mpirun) || stop "tool 'mpirun': not found; run scripts/setup.sh" 69
# Open MPI 4 as Debian installs it, without what needs network adapters or serves other interfaces.
plugins=$(find /usr/lib/*/openmpi/lib/openmpi3 /usr/lib/*/pmix2/lib/pmix -name '*mca_*.so' 2>/dev/null |
  grep -vE '_(ofi|ucx|psm2?|openib|usnic|gridengine|slurm)\.so$|/mca_(spml|scoll|sshmem|memheap|atomic)_' || true)
if [ -z "$plugins" ]; then stop "folder '/usr/lib/*/openmpi/lib/openmpi3': not found; install Debian's Open MPI 4" 69; fi
if [ ! -f "$packed/build.ninja" ]; then
  # Without libraries of the CPU's products: its results are only references here.
  cmake -S "$root" -B "$packed" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBARESTEP_CUDA=ON -DBARESTEP_NCCL=ON \
    -DBARESTEP_MPI=ON -DBARESTEP_ONEDNN=OFF -DBARESTEP_CBLAS=OFF -DBARESTEP_HWLOC=OFF -DBARESTEP_WASM=OFF \
    -DBARESTEP_LINT=OFF -DBARESTEP_TEST_TIMEOUT=60 -DBARESTEP_NATIVE=OFF -DCMAKE_CXX_FLAGS=-march=x86-64-v3
fi
cmake -DCMAKE_CUDA_ARCHITECTURES="$architecture" "$packed" >/dev/null
ninja -C "$packed" ${NINJA_JOBS:+-j "$NINJA_JOBS"} "${programs[@]}" "${tests[@]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
new=$work/packed
mkdir -p "$new/lib" "$new/bin" "$new/tests"
for program in "${programs[@]}"; do strip -o "$new/$program" "$packed/$program"; done
for test in "${tests[@]}"; do strip -o "$new/tests/$test" "$packed/tests/$test"; done
# What ctest reads.
(cd "$packed" && find . \( -name CTestTestfile.cmake -o -path './tests/*.cmake' \) ! -name cmake_install.cmake \
  ! -path '*/CMakeFiles/*' -exec cp --parents {} "$new" \;)

# libraries_of <file...>: those that a machine with a GPU may lack, as paths.
libraries_of() {
  ldd "$@" 2>/dev/null | sed -nE 's/^\s+\S+ => (\/\S+) .*/\1/p' | sort -u |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|z|gcc_s|stdc\+\+|cuda|cudart|cublas|cublasLt|nccl|cupti)\.so[.0-9]*)$' || true
}

cp -L "$mpirun" "$new/bin/mpirun"
cp -L "$(command -v orted)" "$new/bin/orted"
for file in $plugins $(find /etc/openmpi /usr/share/openmpi /usr/lib/*/pmix2/share -name '*.txt' -o -name '*.conf'); do
  mkdir -p "$new/root${file%/*}"
  cp -L "$file" "$new/root$file"
done
(cd "$new/root" && find . -type d \( -name openmpi -o -name pmix2 \) -prune | sed 's/^\.//' | sort -u) >"$new/links"
# shellcheck disable=SC2046
libraries_of "$new"/mlp_* "$new"/barestep_* "$new"/tests/*_test "$new"/bin/* $plugins |
  while read -r library; do cp -L "$library" "$new/lib/"; done

{
  echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
  echo "architecture $architecture"
  echo "root $root"
} >"$new/packed"
tar -C "$work" -cf - packed | xz -T0 -6 --lzma2=dict=64MiB >"$root/build/packed.tar.xz"
# A limit for copies to a lent machine: 64 MiB with the source tree.
tree=$( (git -C "$root" ls-files -z | (cd "$root" && xargs -0 cat) | wc -c) 2>/dev/null || echo 0)
archive=$(stat -c %s "$root/build/packed.tar.xz")
awk -v archive="$archive" -v tree="$tree" -v unpacked="$(du -sb "$new" | cut -f1)" 'BEGIN {
  printf "build/packed.tar.xz: %.1f MiB (%.1f unpacked), with the source tree %.1f MiB\n", archive / 2^20,
    unpacked / 2^20, (archive + tree) / 2^20 }'
