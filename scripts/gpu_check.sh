#!/usr/bin/env bash
# scripts/gpu_check.sh [--rehearse] [--seconds N] [stage...]: everything that needs a GPU, in stages
# that can run separately; without names, all of them run. docs/gpu.md says which calls to make on a
# machine that is lent for minutes.
#
#   build     configures and builds for this GPU's architecture, in build/gpu; with programs that
#             gpu_pack.sh packed, it only says which
#   products  the kernel for few rows beside cuBLASLt at 8192 and 1024, and the rate of tensor cores
#   train     a few steps: eager, as a graph, and as a graph that is profiled
#   test      ctest's labels gpu and unit (packed programs: gpu); a test that hangs is ended after 60 s
#   observe   a graph under --profile, --trace and --monitor at once, and what that costs, by batch
#   blocks    transformer blocks beside PyTorch: the same losses, and both step times
#   pytorch   8192 x 6 beside PyTorch in four precisions: losses, random numbers, and both step times
#   small     1024 x 2 beside PyTorch's graphs
#   card      the card of this machine, and its predictions beside measured steps
#   rows      separate updates and fused ones at 256 and 512 rows
#   several   with several GPUs or ranks: all-reduces, schemes, overlap, mlp_dp
#   sanitize  compute-sanitizer's four tools on small shapes
#   steps     whole steps next to the floor of their ops: separate updates and fused, eager and as graphs, in fp32, tf32 and bf16
#   bench     copy bandwidth, ops compared with it, what cuBLASLt fuses, the speed and accuracy of the fused
#             update's kernels and the cost of their order of accesses, chosen algorithms compared with timed ones
#   profile   bytes per step and time per kernel by ncu, and nsys, if they are installed
#
# Each stage has its own time limit, all together have --seconds (540), and a failed or skipped
# stage does not stop the others. A stage for which no time is left is "not run"; one that began too
# late is "cut short" and keeps what it measured. A table is printed last. Results go to one JSON
# file, complete at any time, next to a log that is written as things happen, in $OUT; if that is
# not set, in bench/results/<machine>/, or in build/logs/ if there is no GPU. COMMIT names the
# commit on machines without git.
#
# Without a GPU, every stage is skipped. With --rehearse, the stages that can run on the CPU do,
# with small shapes, so this script can be tested where it is developed.
#
# Exit: 0; 1 if a stage failed or exceeded its own limit; 75 if stages were not run or cut short;
# 69 if every stage was skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"
. "$root/scripts/gpu_stages.sh"
all_stages=(build products train test observe blocks pytorch small card rows several sanitize steps bench profile)
declare -A limits=([build]=300 [products]=120 [train]=200 [test]=240 [observe]=120 [blocks]=180 [pytorch]=540 [small]=240
  [card]=180 [rows]=180 [several]=400 [sanitize]=540 [steps]=240 [bench]=220 [profile]=120)

usage() {
  echo "gpu_check: error: $1; take --rehearse, --seconds N, or stages: ${all_stages[*]}" >&2
  exit 2
}

# A stage runs in its own process, so it can be ended.
if [ "${1:-}" = --stage ]; then
  work=$2
  set_shapes
  "stage_$3"
  exit
fi

export rehearse=0
seconds=540
stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --rehearse) rehearse=1 ;;
    --seconds)
      seconds=${2:-}
      [[ $seconds =~ ^[1-9][0-9]{0,4}$ ]] || usage "--seconds '$seconds': not a number of seconds"
      shift
      ;;
    *)
      [[ " ${all_stages[*]} " = *" $1 "* ]] || usage "stage '$1': not known"
      stages+=("$1")
      ;;
  esac
  shift
done
if [ ${#stages[@]} = 0 ]; then stages=("${all_stages[@]}"); fi

unpack || exit 73
find_tools
find_cupti
find_gpu
stamp=$(date -u +%Y%m%d_%H%M%S)
results=$root/bench/results/$machine
if [ -n "$no_gpu" ]; then results=$logs; fi
results=${OUT:-$results}
mkdir -p "$results" || exit 73
log=$results/gpu_check_$stamp.log
json=$results/gpu_check_$stamp.json
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$log"
if [ -f "$build/packed" ]; then find_libraries >>"$log"; elif [ -z "$no_gpu" ]; then find_cublas >>"$log"; fi

# run_stage <name>: leaves <name>.state, .why, .seconds and .fields in the work folder.
run_stage() {
  local name=$1 begin=$SECONDS own=${limits[$1]} left=$((seconds - SECONDS)) limit status=0 state why
  if [ $rehearse = 1 ]; then own=$((10 * own)); fi  # the development machine may be slow
  limit=$((left < own ? left : own))
  echo "=== $name" >>"$log"
  : >"$work/$name.fields"
  if [ -n "$no_gpu" ] && [ $rehearse = 0 ]; then
    status=69
    echo "$no_gpu" >"$work/$name.why"
  elif [ -n "$ended" ] || [ "$limit" -lt 2 ]; then
    status=not_run
    echo "${ended:-no time left of $seconds s}; run it alone" >"$work/$name.why"
  else
    describe "$name" running 0 "since $(date -u +%H:%M:%S)"
    stage_seconds=$limit timeout --kill-after=10 "$limit" bash "$0" --stage "$work" "$name" \
      >>"$log" 2>&1 </dev/null &
    stage_process=$!
    # A signal ends the wait, not the stage.
    wait $stage_process || status=$?
    while kill -0 $stage_process 2>/dev/null; do wait $stage_process || status=$?; done
    stage_process=
    collect "$name"
  fi
  why=$(cat "$work/$name.why" 2>/dev/null)
  case $status in
    0) state=passed ;;
    69) state=skipped ;;
    75) state="cut short" ;;
    not_run) state="not run" ;;
    *)
      state=failed
      if [ -n "$ended" ]; then
        state="cut short"
        why="$ended${why:+; $why}"
      elif [[ $status =~ ^(124|137)$ ]]; then
        if [ "$limit" -lt "$own" ]; then state="cut short"; fi
        why="not done after $limit s${why:+; $why}"
      fi
      ;;
  esac
  describe "$name" "$state" $((SECONDS - begin)) "${why:-exit $status; see the log}"
}

# describe <stage> <state> <seconds> <why>: and writes the JSON file.
describe() {
  echo "$2" >"$work/$1.state"
  echo "$3" >"$work/$1.seconds"
  echo "$4" >"$work/$1.why"
  printf '"%s": {"state": "%s", "seconds": %d, "said": %s%s}' "$1" "$2" "$3" "$(quoted "$4")" \
    "$(cat "$work/$1.fields")" >"$work/$1.result"
  write_results
  if [ "$2" = running ]; then rm "$work/$1.why"; fi
}

# The JSON file, written atomically before and after each stage.
write_results() {
  local name separator=""
  {
    printf '{%s, "time": "%s", "rehearsal": %s,\n "stages": {' "$about" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
      "$([ $rehearse = 1 ] && echo true || echo false)"
    for name in "${stages[@]}"; do
      if [ ! -f "$work/$name.result" ]; then continue; fi
      printf '%s\n  ' "$separator"
      cat "$work/$name.result"
      separator=,
    done
    printf '\n }}\n'
  } >"$json.new"
  mv "$json.new" "$json"
}

commit=${COMMIT:-$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)}
about="\"machine\": $(quoted "$machine"), \"gpu\": $(quoted "$gpu"), \"driver\": $(quoted "$driver"),
 \"architecture\": $(quoted "$architecture"), \"commit\": $(quoted "$commit"),
 \"cupti\": $(quoted "${BARESTEP_CUPTI:-of the loader}")"
# Ended from outside, the stage in progress ends too, and its results so far are kept.
ended=
stage_process=
trap 'ended="ended by a signal"; [ -z "$stage_process" ] || kill "$stage_process"' TERM INT HUP
for name in "${stages[@]}"; do run_stage "$name"; done

printf '\n%s, driver %s, commit %s\n' "${gpu:-no GPU}" "${driver:-none}" "$commit"
printf '%-9s %-9s %5s  %s\n' stage state s ""
declare -A count=([failed]=0 [skipped]=0 ["not run"]=0 ["cut short"]=0 [passed]=0)
for name in "${stages[@]}"; do
  state=$(cat "$work/$name.state")
  printf '%-9s %-9s %5d  %s\n' "$name" "$state" "$(cat "$work/$name.seconds")" "$(cat "$work/$name.why")"
  count[$state]=$((count[$state] + 1))
done
echo "written to $json"
if [ "${count[failed]}" -gt 0 ]; then exit 1; fi
if [ $((count["not run"] + count["cut short"])) -gt 0 ]; then exit 75; fi
if [ "${count[skipped]}" = ${#stages[@]} ]; then exit 69; fi
