#!/usr/bin/env bash
# scripts/test.sh [--all]: installs what is missing, makes the optimized build and runs its tests.
# With --all, also runs the style checks, the tests that take long or measure time, all tests but
# those again with the address and undefined-behavior sanitizers, and the threading tests with the
# thread sanitizer, as in CI. The last line reads `N passed, N failed, N skipped`; a phase that could not
# be built counts as failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"
case "$*" in
  "") all= ;;
  --all) all=1 ;;
  *)
    echo "test: error: options '$*': not known; take --all or nothing" >&2
    exit 2
    ;;
esac
# Some tests wait more than they compute; those that measure run alone.
jobs=$(($(nproc) + 1))
# One GPU architecture is enough, a user's build targets all. With --all it is another one than Hopper's,
# for which lint.cuda_registers compiles the kernels.
export CUDAARCHS=${CUDAARCHS-$([ -n "$all" ] && echo 80 || echo 90)}
passed=0
failed=0
skipped=0

# Sanitizers do not start if the kernel randomizes addresses more than they expect, so their builds
# run without address randomization if possible.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

finish() {
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  if [ "$failed" -gt 0 ] || [ "$passed" = 0 ]; then exit 1; fi
  exit 0
}

# phase <title> <command...>: prints the title, then the result and the seconds it took.
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

# need <title> <command...>: a phase that is not a test. A failure counts as one failed test.
need() {
  phase "$@" || { failed=$((failed + 1)); return 1; }
}

# Clang compiles instrumented code and tests faster than GCC, and has different warnings.
configure() {  # <preset>
  local clang
  clang=$(command -v clang++ || true)
  case $1 in
    release) configured release build "-DBARESTEP_TEST_COMPILER=$clang" ;;
    *) CXX=${clang:-c++} configured "$1" "build/$1" ;;
  esac
}

# The preset tsan builds only the test programs with the label tsan. Ninja's default of more
# compilers than cores would only make them evict each other's caches.
build() {  # <preset>
  cd "$root" && "${fixed_addresses[@]}" cmake --build --preset "$1" --parallel "$(nproc)" 2>&1 | progress
}

# Starts to configure and build a tree while another one is tested, on the idle time of the cores:
# many tests mostly wait. built runs it again and reports failures. Bash would keep Ctrl-C from
# background processes.
building=
build_ahead() {  # <preset>
  {
    trap - INT
    chrt --idle --pid 0 "$BASHPID" || true
    configure "$1" && build "$1" 3>/dev/null
  } >"$logs/build_ahead_$1.log" 2>&1 </dev/null &
  building=$!
}

built() {  # <preset>
  if [ -n "$building" ]; then wait "$building" || true; fi
  building=
  configure "$1" && logged "build_$1" build "$1"
}

# Runs tests of a tree and adds up the results. Shows the output of failed tests, and lists skipped
# ones.
run_tests() {  # <test or measure> <preset> <ctest's options that choose them>...
  local log=$logs/$1_$2.log status=0 ok bad left
  (cd "$root" && "${fixed_addresses[@]}" ctest --preset "$2" -j "$jobs" "${@:3}") 2>&1 </dev/null |
    progress >"$log" || status=$?
  read -r ok bad left < <(count_tests "$log")
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

# Builds a tree and tests it, except for the tests that measure, the mutants, which test the tests of
# one kernel, and in a sanitized tree those that take long: what they have to say is about the
# optimized build.
tree() {  # <preset> [<preset of the tree that is built next>]
  local left='timed|mutants'
  if [ "$1" != release ]; then left="$left|slow"; fi
  need "build $1" built "$1" || return 0
  if [ -n "${2-}" ]; then build_ahead "$2"; fi
  phase "test $1" run_tests test "$1" -LE "$left" || true
}

need packages "$root/scripts/setup.sh" --tests || finish
if [ -z "$all" ]; then
  need "build release" built release || finish
  phase "test release" run_tests test release -LE 'timed|slow|lint|mutants' || true
  finish
fi
tree release asan
tree asan tsan
# The tests in tsan have threads that wait for each other.
jobs=$((2 * $(nproc) + 1))
tree tsan
# Tests that measure run alone on the machine.
phase "measure release" run_tests measure release -L timed || true
finish
