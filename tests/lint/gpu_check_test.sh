#!/usr/bin/env bash
# gpu_check_test.sh <source root>: scripts/gpu_check.sh without a GPU, with one where nothing
# builds, with one where everything succeeds, and with a stage that hangs; GPU and tools are fakes.
# In every case the JSON is complete, every stage prints one line, and the exit code is correct.
set -uo pipefail
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/site"
failures=0

# tool <name>: a fake tool, read from standard input.
tool() {
  { echo '#!/usr/bin/env bash'; cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# check <exit code> <condition on its JSON, in Python> <argument...>
check() {
  local expected=$1 condition=$2 status=0
  shift 2
  rm -rf "$work/out"
  PATH=$work/bin:$PATH PYTHON=python3 PYTHONPATH=$work/site GPU_BUILD=$work/build OUT=$work/out \
    COMMIT=abc "$root/scripts/gpu_check.sh" "$@" >"$work/printed" 2>&1 || status=$?
  if [ $status != "$expected" ] ||
    ! python3 - "$work"/out/gpu_check_*.json "$condition" <<'END'; then
import json, sys
result = json.load(open(sys.argv[1]))
stages = result["stages"]
state = {name: stage["state"] for name, stage in stages.items()}
assert result["commit"] == "abc", result
assert all(stage["said"] and "\n" not in stage["said"] for stage in stages.values()), stages
assert eval("(" + sys.argv[2] + ")"), json.dumps(result, indent=1)
END
    echo "gpu_check.sh $*: exit $status, expected $expected and $condition"
    cat "$work/printed" "$work"/out/*.log
    failures=$((failures + 1))
  fi
}

printed() {
  grep -qF "$1" "$work/printed" || { echo "not printed: $1"; cat "$work/printed"; failures=$((failures + 1)); }
}

refused() {  # <text> <argument...>
  local text=$1 status=0
  shift
  "$root/scripts/gpu_check.sh" "$@" >"$work/printed" 2>&1 || status=$?
  if [ $status != 2 ]; then echo "gpu_check.sh $*: exit $status"; failures=$((failures + 1)); fi
  printed "$text"
}

refused "gpu_check: error: stage 'tset': not known; take --rehearse, --seconds N, or stages: build test" tset
refused "gpu_check: error: --seconds 'soon': not a number of seconds" --seconds soon

# A driver that does not answer.
tool nvidia-smi <<<'echo "NVIDIA-SMI has failed"; exit 9'
check 69 'len(state) == 7 and set(state.values()) == {"skipped"}'
printed 'bench     skipped      0  no GPU (nvidia-smi: NVIDIA-SMI has failed)'

# A GPU, but the configure fails.
tool nvidia-smi <<<'echo "NVIDIA H200, 580.1, 9.0"'
tool compute-sanitizer <<<'exit 1'
tool cmake <<<'printf "CMake Error at x:1 (message):\n  fmt was \"not\" found\n"; exit 1'
echo 'raise ImportError' >"$work/site/torch.py"
check 1 'result["machine"] == "nvidia-h200" and result["architecture"] == "90" and
  stages["build"]["said"] == """configure: fmt was "not" found""" and
  [n for n in state if state[n] == "failed"] == ["build", "test", "sanitize", "steps", "bench", "profile"]'
printed 'NVIDIA H200, driver 580.1, commit abc'

# A CUPTI that the loader does not find but the Python packages contain; the user's setting has
# priority.
mkdir -p "$work/site/nvidia/cu13/lib"
touch "$work/site/nvidia/cu13/lib/libcupti.so.13"
echo 'def CDLL(file): raise OSError' >"$work/site/ctypes.py"
check 1 'result["cupti"].endswith("/site/nvidia/cu13/lib/libcupti.so.13")' build
BARESTEP_CUPTI=/mine check 1 'result["cupti"] == "/mine"' build
rm -r "$work/site/nvidia" "$work/site/ctypes.py"

# Everything is installed and succeeds, except for PyTorch.
tool cmake <<'END'
for build; do :; done
build=$GPU_BUILD
mkdir -p "$build/tests"
touch "$build/build.ninja" "$build/tests/cuda_parity_test"
cat >"$build/mlp_single" <<'PROGRAM'
#!/bin/sh
echo "  Step time    mean 0.0050s, std 0.0001s, p50 0.004500s, p95 0.005s, p99 0.005s"
PROGRAM
cat >"$build/barestep_cuda_bench" <<'PROGRAM'
#!/bin/sh
for argument; do
  case $argument in --benchmark_filter=*) filter=${argument#*=} ;; --benchmark_out=*) file=${argument#*=} ;; esac
done
if [ "$filter" = '^cuda_step' ]; then
  echo '{"benchmarks": [
    {"name": "cuda_step/8192/6/0/0/0/iterations:1", "label": "fp32 separate", "real_time": 5.5, "% of floor": 66.0},
    {"name": "cuda_step/8192/6/2/0/1/iterations:1", "label": "fp32 fused beside backward, graph", "real_time": 4.0,
     "% of floor": 90.7}]}' >"$file"
  exit
fi
echo '{"benchmarks": [
  {"name": "cuda_copy/402702336/min_time:0.020/manual_time", "copy GB/s": 4300.0},
  {"name": "cuda_adam/402702336/min_time:0.020/manual_time", "% of copy": 93.5}]}' >"$file"
PROGRAM
cat >"$build/barestep_cuda_epilogues" <<'PROGRAM'
#!/bin/sh
echo '[{"algorithms": 0}]' >"$1"
PROGRAM
cat >"$build/barestep_cuda_fused_update" <<'PROGRAM'
#!/bin/sh
echo '{"other_roots": 0}' >"$1"
PROGRAM
chmod +x "$build"/mlp_single "$build"/barestep_*
END
tool ninja <<<'exit 0'
tool ctest <<'END'
while [ $# -gt 0 ]; do [ "$1" = --output-junit ] && file=$2; shift; done
printf '\t<testcase name="a" status="run">\n\t<testcase name="b" status="notrun">\n\t\t<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>\n' >"$file"
END
tool compute-sanitizer <<'END'
case $2 in
  racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
  initcheck)
    echo "========= Uninitialized __global__ memory read of size 4 bytes"
    echo "=========     at void cutlass::Kernel<x>()+0x80"
    echo "========= ERROR SUMMARY: 1 error" ;;
  *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
END
tool ncu <<'END'
while [ $# -gt 0 ]; do [ "$1" = --log-file ] && file=$2; shift; done
{
  echo '==PROF== Connected to process 1'
  echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
  for id in 0 1 2 3; do
    case $id in 1 | 3) name='barestep::adam(long, float *)' ;; *) name=gemm ;; esac
    echo "\"$id\",\"$name\",\"dram__bytes_read.sum\",\"byte\",\"1,000\""
    echo "\"$id\",\"$name\",\"dram__bytes_write.sum\",\"byte\",\"500\""
    echo "\"$id\",\"$name\",\"gpu__time_duration.sum\",\"ns\",\"2000\""
  done
} >"$file"
END
tool nsys <<<'exit 1'
check 0 'state == {"build": "passed", "test": "passed", "sanitize": "passed", "steps": "passed",
                   "pytorch": "skipped", "bench": "passed", "profile": "passed"} and
  stages["test"]["gpu"] == {"passed": 1, "failed": 0, "skipped": 1} and
  stages["sanitize"]["initcheck"] == {"reports": 2, "of_our_kernels": 0} and
  stages["bench"]["step_8192x6_tf32"] == {"first_heuristic_ms": 4.5, "autotuned_ms": 4.5} and
  len(stages["steps"]["steps"]["benchmarks"]) == 2 and
  stages["bench"]["fused_update"] == {"other_roots": 0} and
  stages["bench"]["epilogues"] == [{"algorithms": 0}] and
  stages["profile"]["step_by_ncu"]["bytes"] == 3000 and
  len(stages["profile"]["step_by_ncu"]["kernels"]) == 2'
printed '8192 fp32 4.000 ms (91 % of floor, fused beside backward, graph); 0 of 2 did not run'
printed 'copy 4300 GB/s, Adam 93.5 % of it, step fp32 4.5000 ms'
if [ "$(ls "$work/out" | wc -l)" != 2 ]; then ls "$work/out"; failures=$((failures + 1)); fi

# One of our kernels reads uninitialised memory.
tool compute-sanitizer <<'END'
echo "=========     at barestep::adam(long)+0x80"
echo "========= ERROR SUMMARY: 1 error"
echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
END
check 1 'stages["sanitize"]["state"] == "failed"' sanitize

# A stage that hangs is ended, and no time is left for the next one.
tool ctest <<<'sleep 1000'
check 1 'stages["test"]["said"].startswith("not done after ") and
  stages["profile"]["said"] == "no time left of 5 s; run it alone"' --seconds 5 test profile

[ $failures = 0 ] || exit 1
echo "as expected"
