#!/usr/bin/env bash
# scripts/test.sh [--all] [--packages]: installs what is missing, makes the optimized build and runs its tests.
# With --all, as in CI: also the style checks; threads and ranks with the thread sanitizer; of all tests with the
# address and undefined-behavior sanitizers, and of those that take long, as many as their minutes allow, in an order
# drawn from the commit, so that a few commits have run all of them; and the tests that measure time. With --packages
# also the Debian package and the container, as --all does where the commits of late changed packaging.
# No stage begins after an hour. The last line reads `N passed, N failed, N skipped` and names the stages that did
# not run; they fail only if they are of the optimized build or of threads and ranks. A stage that could not be built
# counts as failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"
all= packages=
for option; do
  case $option in
    --all) all=1 ;;
    --packages) packages=1 ;;
    *)
      echo "test: error: option '$option': not known; take --all, --packages or nothing" >&2
      exit 2
      ;;
  esac
done
cd "$root"
last_begin_s=3600   # of a stage, from the start on
sample_end_s=2400   # of the last part of a sampled stage, so that all of CI takes three quarters of an hour
sample_s=180        # the most that such a stage takes
# Some tests wait more than they compute; those that measure run alone.
jobs=$(($(nproc) + 1))
# One GPU architecture is enough. With --all it is another one than Hopper's, for which lint.cuda_registers
# compiles the kernels.
export CUDAARCHS=${CUDAARCHS-$([ -n "$all" ] && echo 80 || echo 90)}
passed=0
failed=0
skipped=0
not_run=

# Sanitizers do not start if the kernel randomizes addresses more than they expect, so their builds
# run without address randomization if possible.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

finish() {
  printf '%d passed, %d failed, %d skipped%s\n' "$passed" "$failed" "$skipped" "${not_run:+; no time for$not_run}"
  case $not_run in *"test release"* | *tsan*) exit 1 ;; esac
  if [ "$failed" -gt 0 ] || [ "$passed" = 0 ]; then exit 1; fi
  exit 0
}

# phase <title> <command...>: prints the title, then the result and the seconds it took.
phase() {
  local title=$1 begin=$SECONDS
  if [ "$SECONDS" -ge "$last_begin_s" ]; then
    not_run+="${not_run:+,} $title"
    return 1
  fi
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
  local before=$not_run
  phase "$@" && return 0
  if [ "$not_run" = "$before" ]; then failed=$((failed + 1)); fi
  return 1
}

# Clang compiles instrumented code and tests faster than GCC, and has different warnings.
configure() {  # <preset>
  local clang options=(-DBARESTEP_TESTS=ON)
  clang=$(command -v clang++ || true)
  if [ -n "$all" ]; then options+=(-DBARESTEP_WERROR=ON); fi
  case $1 in
    release) configured release build "${options[@]}" "-DBARESTEP_TEST_COMPILER=$clang" ;;
    *) CXX=${clang:-c++} configured "$1" "build/$1" "${options[@]}" ;;
  esac
}

# The preset tsan builds only the test programs with the label tsan. Ninja's default of more
# compilers than cores would only make them evict each other's caches.
build() {  # <preset>
  local target=()
  if [ "$1" = release ]; then target=(--target barestep_tests); fi
  "${fixed_addresses[@]}" cmake --build --preset "$1" "${target[@]}" --parallel "$(nproc)" 2>&1 | progress
}

# Starts to configure and build trees, one behind the other, while another one is tested, on the idle time of the
# cores: many tests mostly wait. built waits for its tree, then runs that again and reports failures. Bash would keep
# Ctrl-C from background processes.
build_ahead() {  # <preset>...
  {
    trap - INT
    chrt --idle --pid 0 "$BASHPID" || true
    local preset
    for preset; do
      (configure "$preset" && build "$preset" 3>/dev/null) >"$logs/build_ahead_$preset.log" 2>&1 || true
      touch "$logs/built_$preset"
    done
  } </dev/null &
  building=$!
}

built() {  # <preset>
  while [ ! -e "$logs/built_$1" ] && kill -0 "$building" 2>/dev/null; do sleep 1; done
  configure "$1" && logged "build_$1" build "$1"
}

# Runs tests of a tree and adds up the results. Shows the output of failed tests, and lists skipped
# ones.
run_tests() {  # <log> <preset> <ctest's options that choose them>...
  local log=$logs/$1_$2.log status=0 ok bad left
  "${fixed_addresses[@]}" ctest --preset "$2" -j "$jobs" "${@:3}" 2>&1 </dev/null |
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

# Runs such tests in twentieths, drawn by the commit, as long as there is time, and lists the suites that it leaves out.
run_sample() {  # <log> <preset> <ctest's options that choose them>...
  local begin=$SECONDS status=0 before=("$passed" "$failed" "$skipped") order=$logs/sample_$1_$2 of size part took count=0
  # In ctest's option -I a test's number is its place among those chosen.
  ctest --preset "$2" -N "${@:3}" | sed -nE 's/^ +Test +#[0-9]+: //p' | awk '{ print $1, NR }' |
    sort --random-sort --random-source=<(yes "$(git rev-parse HEAD 2>/dev/null || echo none)") >"$order"
  of=$(wc -l <"$order")
  if [ "$of" = 0 ]; then
    echo "no test to draw from" >&2
    failed=$((failed + 1))
    return 1
  fi
  size=$(((of + 19) / 20))
  while [ "$count" -lt "$of" ]; do
    took=$((SECONDS - begin))
    if [ "$count" -gt 0 ] && { [ $((took + took * size / count)) -gt "$sample_s" ] || [ "$SECONDS" -gt "$sample_end_s" ]; }; then
      break
    fi
    part=$(sed -n "$((count + 1)),$((count + size))p" "$order" | cut -d ' ' -f 2 | paste -sd ,)
    run_tests "$1_part" "$2" "${@:3}" -I "0,0,0,$part" 3>/dev/null >/dev/null || status=1
    count=$((count + size < of ? count + size : of))
    printf '%d%% ' $((count * 100 / of))
  done
  printf '%d passed, %d failed, %d skipped ' $((passed - before[0])) $((failed - before[1])) $((skipped - before[2]))
  if [ "$count" -lt "$of" ]; then
    printf '(%d of %d not drawn) ' $((of - count)) "$of"
    sed "1,${count}d; s/[./].*//; s/ .*//" "$order" | sort -u | paste -sd ' ' | fold -s -w 110 | sed 's/^/  not all drawn: /' >&2
  fi
  return $status
}

# The demo as users run it, with a program that has to be linked again.
demo() {
  rm -f build/mlp_single
  scripts/demo.sh --device cpu >"$logs/demo.log" 2>&1 || { cat "$logs/demo.log" >&2; return 1; }
}

# Whether one of the latest commits changed what packages and containers are made of.
packaging_changed() {
  git log -20 --format= --name-only 2>/dev/null |
    grep -qE '^(Containerfile|\.containerignore|cmake/package\.cmake|pyproject\.toml|python/|scripts/(setup|wheel)\.sh|tests/package/)'
}

need packages "$root/scripts/setup.sh" --tests || finish
rm -f "$logs"/built_*
touch "$logs/built_release"
need "build release" built release || finish
# Mutants test the tests of one kernel.
left='timed|slow|mutants|package'
if [ -z "$all" ]; then
  phase "test release" run_tests test release -LE "$left|lint" || true
else
  need demo demo || true
  build_ahead tsan asan
  phase "test release" run_tests test release -LE "$left" || true
  # These have threads that wait for each other.
  if need "build tsan" built tsan; then
    jobs=$((2 * $(nproc) + 1)) phase "test tsan" run_tests test tsan -LE "$left" || true
  fi
  # What slow tests have to say is about the optimized build.
  if need "build asan" built asan; then
    phase "test asan" run_sample test asan -LE "$left" || true
  fi
  phase "slow release" run_sample slow release -L slow -LE 'timed|mutants|package' || true
  # Tests that measure run alone on the machine.
  phase "measure release" run_tests measure release -L timed || true
fi
if [ -n "$packages" ] || { [ -n "$all" ] && packaging_changed; }; then
  phase "package release" run_tests package release -L package || true
fi
finish
