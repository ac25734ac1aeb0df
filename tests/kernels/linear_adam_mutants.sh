#!/usr/bin/env bash
# linear_adam_mutants.sh <source root> <build folder>: breaks LinearAdam's CUDA kernel, one fault at
# a time, in ways that would fail on a GPU, and fails if cuda_kernels_test does not detect one. The
# kernel is compiled with the build's command for the host, with the broken header first in the
# include path.
set -uo pipefail
root=$1
build=$2
command -v ninja >/dev/null || { echo "skipped: ninja is not installed"; exit 77; }
cd "$build" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers=$work/kernels/cuda
mkdir -p "$headers"
object=tests/kernels/CMakeFiles/barestep_host_kernels.dir/__/__/src/kernels/cuda/linear_adam.cu.o
commands=$(ninja -t commands tests/cuda_kernels_test)
compile=$(grep -F -- "-o $object -c" <<<"$commands" | sed -E "s# -MD .* -c # -c #; s# -Werror##; s# -I# -I$work -I#")
link=$(grep -F -- "-o tests/cuda_kernels_test " <<<"$commands" | sed "s#^: && ##; s# && .*##")
link=${link//"$object"/"$work/linear_adam.o"}
link=${link//"-o tests/cuda_kernels_test "/"-o $work/test "}
failures=0

builds() { bash -c "$compile -o $work/linear_adam.o && $link" >"$work/log" 2>&1; }
passes() { "$work/test" --gtest_break_on_failure --gtest_filter='CudaLinearAdam.*' >"$work/log" 2>&1; }
copy_headers() { cp "$root"/src/kernels/cuda/{linear_adam,tile_products}.cuh "$headers"; }

# mutant <fault> <header> <sed expression>
mutant() {
  local status=0
  copy_headers
  sed -i -E "$3" "$headers/$2"
  if cmp -s "$headers/$2" "$root/src/kernels/cuda/$2"; then
    echo "not applied: $1"
    status=1
  elif ! builds; then
    echo "does not build: $1"
    head -n 20 "$work/log"
    status=1
  elif passes; then
    echo "not seen: $1"
    status=1
  else
    echo "seen: $1"
  fi
  failures=$((failures + status))
}

copy_headers
if ! builds || ! passes; then
  echo "the kernel fails as it is:"
  tail -n 30 "$work/log"
  exit 1
fi
mutant 'no barrier' linear_adam.cuh 's/^ *__syncthreads\(\);//'
mutant 'no barrier between layers' linear_adam.cuh 's/if \(i > 0\) __syncthreads\(\);//'
mutant 'a layer left out' linear_adam.cuh 's/layer = layers\.of\[i\]/layer = layers.of[0]/'
mutant 'copies are not waited for' linear_adam.cuh 's/^ *wait_for_copies\(\);//'
mutant 'the next grad_y into the buffer in use' linear_adam.cuh 's/fetch_next\(\(i \+ 1\) & 1\)/fetch_next(i \& 1)/'
mutant 'the next x into the buffer in use' linear_adam.cuh 's/fetch_x\(x_buffer \^ 1, next\)/fetch_x(x_buffer, next)/'
mutant 'x kept from the strip before' linear_adam.cuh 's/if \(next\.strip != held\)/if (held < 0)/'
mutant 'a kept strip of which chunks are missing' linear_adam.cuh 's/if \(next\.chunk \+ 1 == next\.chunks\) held/held/'
mutant 'held chunks of x mixed up' linear_adam.cuh 's/^ *held = other;//'
mutant 'weights of the tile before' linear_adam.cuh 's/load\(ahead - kSlots, next\)/load(ahead - kSlots, now)/'
mutant 'no barrier between sums and what they are exchanged for' tile_products.cuh 's/^ *__syncthreads\(\);//'
mutant 'the first tile of a row left out' linear_adam.cuh 's/strip -= strips;/strip = 0;/'
mutant 'biases of some rows left out' linear_adam.cuh 's/tile % strips == strip/tile == strip/'
mutant 'a row too many' linear_adam.cuh 's/if \(row < out && col < in\) four/if (row <= out \&\& col < in) four/'
mutant 'no zeros after the last row of the batch' linear_adam.cuh 's/valid = row \+ k < rows &&/valid =/'
mutant 'one chunk where there are several' linear_adam.cuh 's/run\(own \* chunks\)/run(own)/'
mutant 'sums are not cleared' linear_adam.cuh 's/^    sums = \{\};//'
mutant 'sums of biases are not cleared' linear_adam.cuh 's/^    bias_sum = 0;//'
mutant 'gradients are not clipped' linear_adam.cuh 's/a\.scalars, a\.clip\)/a.scalars, nullptr)/'
mutant 'rows of fragments of a swapped' tile_products.cuh \
  's/SplitTf32\(a0\.y\), SplitTf32\(a1\.x\)/SplitTf32(a1.x), SplitTf32(a0.y)/'
mutant 'columns of tiles swapped' tile_products.cuh \
  's/\{tile\[0\]\[first\], tile\[1\]\[first\]/{tile[1][first], tile[0][first]/'
mutant 'low parts of a dropped' tile_products.cuh 's/^ *mma_tf32\(.*a_low, b_high\);//'
mutant 'low parts of b dropped' tile_products.cuh 's/^ *mma_tf32\(.*a_high, b_low\);//'
mutant 'rows 4 banks apart' tile_products.cuh 's/kPadBytes = 32/kPadBytes = 16/'
mutant 'gradients of 16 bits are not rounded' linear_adam.cuh 's/widened\(narrowed<Number>\((Product::grads\(sums, shared\.exchange, slot\))\)\)/\1/'
mutant 'gradients of biases are not rounded' linear_adam.cuh 's/float_of\(rounded<Number>\(bias_sum\)\)/bias_sum/'
mutant 'rounded weights are those of before' linear_adam.cuh 's/narrowed<Number>\(weight\)/narrowed<Number>(moment1)/'
mutant 'columns of x of 16 bits swapped' tile_products.cuh 's/return \{float_of\(pair\.of\[0\]\), float_of\(pair\.of\[1\]\)\}/return {float_of(pair.of[1]), float_of(pair.of[0])}/'
[ $failures = 0 ]
