#!/usr/bin/env bash
# scripts/test.sh: installs what is missing, then builds and runs every test that this machine can
# run: in an optimised build, in one with the address and undefined-behaviour sanitizers, and, for
# what has threads of its own, in one with the thread sanitizer. Its last line reads
# `N passed, N failed, N skipped`; a phase that could not be built counts as failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"
# Some tests wait more than they work; those that measure run alone.
jobs=$(($(nproc) + 1))
# Code for two architectures of GPUs is enough to test with; a user's build makes it for all.
export CUDAARCHS=${CUDAARCHS-"80;90"}
passed=0
failed=0
skipped=0

# Sanitizers do not start where the kernel spreads addresses more than they expect, so
# their builds run without address randomisation where that can be had.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

finish() {
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  if [ "$failed" -gt 0 ] || [ "$passed" = 0 ]; then exit 1; fi
  exit 0
}

# phase <title> <command...>: prints the title, then how it went and the seconds it took.
phase() {
  local title=$1 begin=$SECONDS
  shift
  printf '%-24s' "$title"
  if "$@" 2>"$logs/phase.log"; then
    printf '%4d s\n' $((SECONDS - begin))
    cat "$logs/phase.log"
  else
    printf '%4d s  FAILED\n' $((SECONDS - begin))
    cat "$logs/phase.log"
    return 1
  fi
}

# need <title> <command...>: a phase that is no test. If it fails, that counts as one failure.
need() {
  phase "$@" || { failed=$((failed + 1)); return 1; }
}

# The preset tsan builds nothing but the test programs with the label tsan. More compilers than cores, as
# ninja would start, only take the caches from each other.
build() {  # <preset>
  cd "$root" && "${fixed_addresses[@]}" cmake --build --preset "$1" --parallel "$(nproc)"
}

# Runs the tests of a tree and adds them up. Shows what the failed ones printed, and which were
# skipped.
run_tests() {  # <preset> <build folder>
  local results=$root/$2/tests.xml log=$logs/test_$1.log status=0 ok bad left
  rm -f "$results"
  (cd "$root" && "${fixed_addresses[@]}" ctest --preset "$1" -j "$jobs" \
    --output-junit "$results") >"$log" 2>&1 </dev/null || status=$?
  read -r ok bad left < <(count_tests "$results" 2>/dev/null || echo 0 0 0)
  if [ $status != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  passed=$((passed + ok))
  failed=$((failed + bad))
  skipped=$((skipped + left))
  printf '%d passed, %d failed, %d skipped ' "$ok" "$bad" "$left"
  sed -nE 's/^.*Test +#[0-9]+: ([^ ]+) .*\*\*\*(Skipped|Not Run \(Disabled).*/  skipped: \1/p' "$log" >&2
  if [ "$bad" = 0 ]; then return 0; fi
  grep -vE '^ *Start +[0-9]+: | Passed +[0-9.]+ sec$|\*\*\*(Skipped|Not Run \(Disabled)' "$log" | tail -n 400 >&2
  return 1
}

# Clang compiles instrumented code in half the time that GCC takes, and warns of other things.
instrumenting=$(command -v clang++ || command -v c++ || true)

# Side by side, for most of a configure is one program waiting for another.
configure() {
  local running job status=0
  configured release build & running=($!)
  CXX=$instrumenting configured asan build/asan & running+=($!)
  CXX=$instrumenting configured tsan build/tsan & running+=($!)
  for job in "${running[@]}"; do wait "$job" || status=1; done
  return $status
}

tree() {  # <preset> <build folder>
  need "build $1" logged "build_$1" build "$1" && phase "test $1" run_tests "$1" "$2"
}

need packages "$root/scripts/setup.sh" --tests || finish
need configure configure || finish
tree release build || true
tree asan build/asan || true
# Its tests are of threads that wait for each other.
jobs=$((2 * $(nproc) + 1))
tree tsan build/tsan || true
finish
