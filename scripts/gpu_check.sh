#!/usr/bin/env bash
# scripts/gpu_check.sh [--rehearse] [--seconds N] [build] [test] [sanitize] [steps] [pytorch]
# [bench] [profile]: everything that needs a GPU, in stages that can run separately; without names,
# all of them run.
#
#   build     configures and builds for this GPU's architecture, in build/gpu
#   test      ctest's labels gpu and unit
#   sanitize  compute-sanitizer's four tools on small shapes
#   steps     whole steps next to the floor of their ops: separate updates, fused and alongside backward, eager
#             and as graphs, in fp32, tf32 and bf16
#   pytorch   the same losses and random numbers as PyTorch, and the step times of both programs
#   bench     copy bandwidth, ops compared with it, what cuBLASLt fuses, the speed and accuracy of the fused
#             update's kernels and the cost of their order of accesses, chosen algorithms compared with timed ones
#   profile   bytes per step and time per kernel by ncu, and nsys, if they are installed
#
# Each stage has its own time limit, all together have --seconds (540), and a failed or skipped
# stage does not stop the others. A table is printed last. Results go to one JSON file, next to a
# log, in $OUT; if that is not set, in bench/results/<machine>/, or in build/logs/ if there is no
# GPU. COMMIT names the commit on machines without git.
#
# Without a GPU, every stage is skipped. With --rehearse, the stages that can run on the CPU do,
# with small shapes, so this script can be tested where it is developed.
#
# Exit: 0; 1 if a stage failed or ran out of time; 69 if every stage was skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"
. "$root/scripts/gpu_stages.sh"
all_stages=(build test sanitize steps pytorch bench profile)
declare -A limits=([build]=300 [test]=180 [sanitize]=150 [steps]=180 [pytorch]=400 [bench]=220 [profile]=120)

usage() {
  echo "gpu_check: error: $1; take --rehearse, --seconds N, or stages: ${all_stages[*]}" >&2
  exit 2
}

# A stage runs in its own process, so it can be ended.
if [ "${1:-}" = --stage ]; then
  work=$2
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

# run_stage <name>: leaves <name>.state, .why, .seconds and .fields in the work folder.
run_stage() {
  local name=$1 begin=$SECONDS limit=${limits[$1]} left=$((seconds - SECONDS)) status=0 state
  if [ $rehearse = 1 ]; then limit=$((10 * limit)); fi  # the development machine may be slow
  if [ "$left" -lt "$limit" ]; then limit=$left; fi
  echo "=== $name" >>"$log"
  : >"$work/$name.fields"
  if [ -n "$no_gpu" ] && [ $rehearse = 0 ]; then
    status=69
    echo "$no_gpu" >"$work/$name.why"
  elif [ "$limit" -lt 2 ]; then
    status=1
    echo "no time left of $seconds s; run it alone" >"$work/$name.why"
  else
    stage_seconds=$limit timeout --kill-after=10 "$limit" bash "$0" --stage "$work" "$name" \
      >>"$log" 2>&1 </dev/null || status=$?
    collect "$name"
  fi
  case $status in
    0) state=passed ;;
    69) state=skipped ;;
    124 | 137)
      state=failed
      echo "not done after $limit s" >"$work/$name.why"
      ;;
    *) state=failed ;;
  esac
  echo "$state" >"$work/$name.state"
  echo $((SECONDS - begin)) >"$work/$name.seconds"
  if [ ! -s "$work/$name.why" ]; then echo "exit $status; see the log" >"$work/$name.why"; fi
}

# The JSON file, written atomically after each stage.
write_results() {
  local name separator=""
  {
    printf '{"machine": %s, "gpu": %s, "driver": %s, "architecture": %s,\n' "$(quoted "$machine")" \
      "$(quoted "$gpu")" "$(quoted "$driver")" "$(quoted "$architecture")"
    printf ' "commit": %s, "time": %s, "rehearsal": %s, "cupti": %s,\n "stages": {' "$(quoted "$commit")" \
      "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")" "$([ $rehearse = 1 ] && echo true || echo false)" \
      "$(quoted "${BARESTEP_CUPTI:-of the loader}")"
    for name in "${stages[@]}"; do
      if [ ! -f "$work/$name.state" ]; then continue; fi
      printf '%s\n  "%s": {"state": "%s", "seconds": %d, "said": %s%s}' "$separator" "$name" \
        "$(cat "$work/$name.state")" "$(cat "$work/$name.seconds")" \
        "$(quoted "$(cat "$work/$name.why")")" "$(cat "$work/$name.fields")"
      separator=,
    done
    printf '\n }}\n'
  } >"$json.new"
  mv "$json.new" "$json"
}

commit=${COMMIT:-$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)}
for name in "${stages[@]}"; do
  run_stage "$name"
  write_results
done

printf '\n%s, driver %s, commit %s\n' "${gpu:-no GPU}" "${driver:-none}" "$commit"
printf '%-9s %-8s %5s  %s\n' stage state s ""
failed=0
skipped=0
for name in "${stages[@]}"; do
  state=$(cat "$work/$name.state")
  printf '%-9s %-8s %5d  %s\n' "$name" "$state" "$(cat "$work/$name.seconds")" "$(cat "$work/$name.why")"
  if [ "$state" = failed ]; then failed=$((failed + 1)); fi
  if [ "$state" = skipped ]; then skipped=$((skipped + 1)); fi
done
echo "written to $json"
if [ $failed -gt 0 ]; then exit 1; fi
if [ $skipped = ${#stages[@]} ]; then exit 69; fi
