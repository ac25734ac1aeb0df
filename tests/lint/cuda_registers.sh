#!/usr/bin/env bash
# cuda_registers.sh <source root> <nvcc>: compiles our kernels for Hopper and prints the resources
# of each. Fails if one spills registers to memory.
set -euo pipefail
nvcc=${2:-}
if [ -z "$nvcc" ]; then
  echo "skipped: this build has no CUDA compiler"
  exit 77
fi
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fmad=false would not change a register in cuda_randn.cu, so all files are compiled with the same
# flags.
for source in src/kernels/cuda/*.cu; do
  "$nvcc" -std=c++20 --expt-relaxed-constexpr -O3 -fmad=false -arch=sm_90 -Isrc -Xptxas -v -cubin \
    -o "$work/$(basename "$source").cubin" "$source"
done >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# ptxas prints the name of a kernel, then its resources in two lines.
c++filt <"$work/log" | awk '
  BEGIN { printf "%-44s %9s %12s %11s\n", "kernel", "registers", "shared bytes", "spill bytes" }
  /Compiling entry function/ {
    split($0, part, "\047")
    kernel = part[2]
    gsub(/barestep::|\(anonymous namespace\)::|^void /, "", kernel)
    sub(/\(.*/, "", kernel)
  }
  /spill stores/ {
    match($0, /[0-9]+ bytes spill stores/); spills = substr($0, RSTART) + 0
    match($0, /[0-9]+ bytes spill loads/); spills += substr($0, RSTART) + 0
  }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5) + 0
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
    printf "%-44s %9d %12d %11d\n", kernel, registers, shared, spills
    kernels++
    spilled += spills
  }
  END {
    if (kernels == 0) print "ptxas named no kernel"
    exit kernels == 0 || spilled > 0
  }'
