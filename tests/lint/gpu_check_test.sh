#!/usr/bin/env bash
# gpu_check_test.sh <source root>: scripts/gpu_check.sh without a GPU, with one where nothing
# builds, with one where everything succeeds, with tests and benchmarks that hang, and
# ended by signals; GPU and tools are fakes. In every case the JSON is complete, every stage prints
# one line, and the exit code is correct.
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
  PATH=$work/bin:$PATH PYTHON=python3 PYTHONPATH=$work/site GPU_BUILD=${checked_build-$work/build} OUT=$work/out \
    COMMIT=abc "$root/scripts/gpu_check.sh" "$@" >"$work/printed" 2>&1 || status=$?
  if [ $status != "$expected" ] ||
    ! python3 - "$work"/out/gpu_check_*.json "$condition" <<'END'; then
import json, re, sys
result = json.load(open(sys.argv[1]))
stages = result["stages"]
for stage in stages.values():
    stage["said"] = re.sub("after [0-9]+ s", "after N s", stage["said"])
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

refused "gpu_check: error: stage 'tset': not known; take --rehearse, --seconds N, or stages: build products train" tset
refused "gpu_check: error: --seconds 'soon': not a number of seconds" --seconds soon

# A driver that does not answer.
tool nvidia-smi <<<'echo "NVIDIA-SMI has failed"; exit 9'
check 69 'len(state) == 15 and set(state.values()) == {"skipped"}'
printed 'bench     skipped       0  no GPU (nvidia-smi: NVIDIA-SMI has failed)'

# A GPU, but the configure fails.
tool nvidia-smi <<<'echo "NVIDIA H200, 580.1, 9.0"'
tool compute-sanitizer <<<'exit 1'
tool cmake <<<'printf "CMake Error at x:1 (message):\n  fmt was \"not\" found\n"; exit 1'
echo 'raise ImportError' >"$work/site/torch.py"
check 1 'result["machine"] == "nvidia-h200" and result["architecture"] == "90" and
  stages["build"]["said"] == """configure: fmt was "not" found""" and
  [n for n in state if state[n] == "failed"] == ["build", "products", "train", "test", "observe", "card", "rows", "sanitize",
  "steps", "bench", "profile"]'
printed 'NVIDIA H200, driver 580.1, commit abc'

# A CUPTI that the loader does not find but the Python packages contain; the user's setting has
# priority.
mkdir -p "$work/site/nvidia/cu13/lib"
touch "$work/site/nvidia/cu13/lib/libcupti.so.13"
echo 'def CDLL(file): raise OSError' >"$work/site/ctypes.py"
check 1 'result["cupti"].endswith("/site/nvidia/cu13/lib/libcupti.so.13")' build
BARESTEP_CUPTI=/mine check 1 'result["cupti"] == "/mine"' build
rm -r "$work/site/nvidia" "$work/site/ctypes.py"

# logged <text>: the log of the last check has it.
logged() {
  grep -qF -- "$1" "$work"/out/*.log || { echo "not in the log: $1"; cat "$work"/out/*.log; failures=$((failures + 1)); }
}

# Everything is installed and succeeds, except for PyTorch. cuBLAS is that of the Python packages.
mkdir -p "$work/site/nvidia/cu13/include"
touch "$work/site/nvidia/cu13/include/cublasLt.h"
mkdir -p "$work/site/nvidia/nccl/include"
touch "$work/site/nvidia/nccl/include/nccl.h"
tool nvcc <<<'exit 0'
tool cmake <<'END'
echo "configured with $*"
for build; do :; done
build=$GPU_BUILD
mkdir -p "$build/tests"
touch "$build/build.ninja" "$build/tests/cuda_parity_test"
cat >"$build/mlp_single" <<'PROGRAM'
#!/bin/sh
echo "Step 19 | Step time: 0.1s | Loss: 0.75"
echo "  Step time    mean 0.0050s, std 0.0001s, p50 0.004500s, p95 0.005s, p99 0.005s"
case "$*" in *--autotune\ /*)
  for file; do :; done
  echo '{"choices": [{"own_us": 97.2, "library_us": 196.6}, {"library_us": 5.0}]}' >"$file" ;;
esac
case "$*" in *--profile*) echo "Profiling adds 9us to a step of 4.5ms, 0.20 %" ;; esac
PROGRAM
cat >"$build/mlp_lab" <<'PROGRAM'
#!/bin/sh
case $1 in
  card) echo '{"loads": [], "name": "this machine"}' >"$5" ;;
  predict) echo "    ranks  step time"; echo "    1        5.40 ms  1.9 ms" ;;
esac
PROGRAM
cat >"$build/barestep_cuda_bench" <<'PROGRAM'
#!/bin/sh
for argument; do
  case $argument in --benchmark_filter=*) filter=${argument#*=} ;; --benchmark_out=*) file=${argument#*=} ;; esac
done
if [ "$filter" = '^cuda_step' ]; then
  echo '{"benchmarks": [
    {"name": "cuda_step/8192/6/0/0/0/iterations:1", "label": "fp32 separate", "real_time": 5.5, "% of floor": 66.0},
    {"name": "cuda_step/8192/6/1/0/1/iterations:1", "label": "fp32 fused, graph", "real_time": 4.0,
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
for file; do :; done
echo '{"other_roots": 0}' >"$file"
PROGRAM
chmod +x "$build"/mlp_single "$build"/mlp_lab "$build"/barestep_*
END
tool ninja <<<'echo "headers in $CPATH, libraries in $CMAKE_LIBRARY_PATH"'
tool ctest <<'END'
echo '    Start 1: a'
echo '1/2 Test #1: a ......   Passed    0.01 sec'
echo '2/2 Test #2: b ......***Skipped   0.01 sec'
END
# Three at a time, no more.
tool compute-sanitizer <<'END'
cd "$(dirname "$0")/.."
mkdir -p running
touch running/$$
if [ "$(ls running | wc -l)" -gt 3 ]; then touch too_many; fi
sleep 0.3
rm running/$$
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
    case $id in 1 | 3) name='void barestep::pointwise_loss<Mse>(long)' ;; *) name=linear_adam ;; esac
    echo "\"$id\",\"$name\",\"dram__bytes_read.sum\",\"byte\",\"1,000\""
    echo "\"$id\",\"$name\",\"dram__bytes_write.sum\",\"byte\",\"500\""
    echo "\"$id\",\"$name\",\"gpu__time_duration.sum\",\"ns\",\"2000\""
  done
} >"$file"
END
tool nsys <<<'exit 1'
check 0 '{name for name in state if state[name] != "passed"} == {"blocks", "pytorch", "small", "several"} and
  set(state.values()) == {"passed", "skipped"} and
  stages["several"]["said"] == "there is one GPU; the stage test has ranks that share it" and
  stages["observe"]["measured"]["runs"][1] == {"options": "--dim 8192 --batch-size 256 --depth 6", "plain_ms": 4.5,
    "observed_ms": 4.5, "said": "Profiling adds 9us to a step of 4.5ms, 0.20 %"} and
  stages["card"]["measured"]["runs"][0] == {"dim": 8192, "depth": 6, "precision": "fp32", "card": "card",
    "predicted_ms": 5.4, "measured_ms": 4.5} and
  stages["card"]["said"].startswith("predicted compared with measured: 8192 x 6 fp32 +20 %") and
  stages["products"]["said"] == "ours against the best of cuBLASLt: " +
    ", ".join(f"{case} 97 against 197 us" for case in ("8192 fp32", "8192 tf32", "1024 fp32", "1024 tf32")) and
  len(stages["products"]["measured"]["runs"]) == 5 and
  stages["rows"]["measured"]["runs"][0] == {"dim": 8192, "depth": 2, "batch": 256, "precision": "fp32",
    "separate_ms": 4.5, "fused_ms": 4.5} and
  stages["train"]["said"] == "loss of step 19, eager: 0.75; --graph: 0.75; --graph --profile: 0.75" and
  stages["test"]["gpu"] == {"passed": 2, "failed": 0, "skipped": 2} and
  stages["test"]["unit"] == {"passed": 1, "failed": 0, "skipped": 1} and
  stages["sanitize"]["initcheck"] == {"reports": 3, "of_our_kernels": 0} and
  stages["bench"]["step_8192x6_tf32"] == {"first_heuristic_ms": 4.5, "autotuned_ms": 4.5} and
  len(stages["steps"]["steps"]["benchmarks"]) == 2 and
  stages["bench"]["fused_update"] == {"other_roots": 0} and
  stages["bench"]["epilogues"] == [{"algorithms": 0}] and
  stages["profile"]["step_by_ncu"]["bytes"] == 3000 and
  len(stages["profile"]["step_by_ncu"]["kernels"]) == 2'
printed '8192 fp32 4.000 ms (91 % of floor, fused, graph); 0 of 2 did not run'
printed 'copy 4300 GB/s, Adam 93.5 % of it, step fp32 4.5000 ms'
logged -DBARESTEP_TEST_TIMEOUT=60
logged "-DBARESTEP_nccl_LIBRARY=$work/site/nvidia/nccl/lib/libnccl.so.2"
if [ -f "$work/too_many" ]; then echo "more than three sanitizers at a time"; failures=$((failures + 1)); fi
# Figures are kept as files of their own, with the commit; a card as it is.
if [ "$(cd "$work/out" && echo [!g]*)" != "card.json epilogues.json fused_update.json observers.json ops.json \
predictions.json products.json step_by_ncu.json update_by_rows.json" ] || ! grep -q '"commit": "abc"' "$work/out/observers.json" ||
  grep -q commit "$work/out/card.json"; then
  ls "$work/out"
  failures=$((failures + 1))
fi

# Programs that were packed elsewhere: nothing is built, and what they know by its path is linked.
mkdir -p "$work/new/packed/lib" "$work/new/packed/root$work/mpi"
touch "$work/new/packed/root$work/mpi/plugin"
cp "$work/build/mlp_single" "$work/new/packed/"
printf 'commit def\narchitecture 90\nroot %s\n' "$work/elsewhere" >"$work/new/packed/packed"
echo "$work/mpi" >"$work/new/packed/links"
(cd "$work/new" && python3 -m tarfile -c "$work/packed.tar.xz" packed)
export GPU_PACKED=$work/packed.tar.xz checked_build=""
check 0 'stages["build"]["said"] == "packed programs of commit def, architecture 90" and state["train"] == "passed"' build train
logged "packed programs of commit def, libraries in $work/packed/lib"
if [ ! -e "$work/mpi/plugin" ] || [ "$(readlink "$work/elsewhere")" != "$root" ]; then
  echo "packed programs: no links"
  failures=$((failures + 1))
fi
tool nvidia-smi <<<'echo "NVIDIA B200, 580.1, 10.0"'
check 1 'state["build"] == "failed"' build
tool nvidia-smi <<<'echo "NVIDIA H200, 580.1, 9.0"'

# not_packed <exit code> <text> [<architecture>]: gpu_pack.sh with a PATH that has only these tools.
mkdir -p "$work/few"
for name in bash dirname env find grep; do ln -s "$(command -v $name)" "$work/few/"; done
not_packed() {
  local status=0
  PATH=$work/few "$root/scripts/gpu_pack.sh" "${@:3}" >"$work/printed" 2>&1 || status=$?
  if [ $status != "$1" ]; then echo "gpu_pack.sh: exit $status"; failures=$((failures + 1)); fi
  printed "$2"
}
not_packed 2 "gpu_pack: error: architecture 'sm_90': not a compute capability; give it as 90 for 9.0" sm_90
not_packed 69 "gpu_pack: error: tool 'mpirun': not found; run scripts/setup.sh"
rm "$work/few/find"
for name in mpirun find; do
  printf '#!/usr/bin/env bash\n' >"$work/few/$name"
  chmod +x "$work/few/$name"
done
not_packed 69 "gpu_pack: error: folder '/usr/lib/*/openmpi/lib/openmpi3': not found; install Debian's Open MPI 4"

# refused_packed <text>
refused_packed() {
  local status=0
  "$root/scripts/gpu_check.sh" build >"$work/printed" 2>&1 || status=$?
  if [ $status != 73 ]; then echo "packed programs: exit $status"; failures=$((failures + 1)); fi
  printed "$1"
}
rm "$work/elsewhere"
mkdir "$work/elsewhere"
refused_packed "gpu_check: error: folder '$work/elsewhere': the packed programs expect this source tree there; move"
echo cut >"$work/packed.tar.xz"
refused_packed "gpu_check: error: file '$work/packed.tar.xz': cannot be unpacked; copy it again, or remove it"
unset GPU_PACKED checked_build

# One of our kernels reads uninitialized memory.
tool compute-sanitizer <<'END'
echo "=========     at barestep::adam(long)+0x80"
echo "========= ERROR SUMMARY: 1 error"
echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
END
check 1 'stages["sanitize"]["state"] == "failed"' sanitize

# A program that reports an error.
mv "$work/build/mlp_single" "$work/build/works"
printf '#!/bin/sh\necho "mlp_single: error: profile: no record" >&2\nexit 70\n' >"$work/build/mlp_single"
chmod +x "$work/build/mlp_single"
check 1 'stages["train"]["said"].startswith("loss of step 19, eager: exit 70, mlp_single: error: profile: no record")' train
mv "$work/build/works" "$work/build/mlp_single"

# A busy machine may take seconds before the first stage.
# A test that fails, one that ctest ends, and one in progress when the time is up: the log has their
# output, and the stage says their names. No time is left for the next one.
tool ctest <<'END'
echo "headers in $CPATH"
echo '    Start 1: gpu.CudaDevice.Computes'
echo '1/4 Test #1: gpu.CudaDevice.Computes ......***Failed  0.01 sec'
echo '2/4 Test #2: gpu.CudaDevice.Waits ......***Timeout  60.01 sec'
echo '[ RUN      ] CudaDevice.Waits'
echo '    Start 3: gpu.CudaDevice.Hangs'
sleep 1000
END
check 75 'stages["test"]["said"] == ("not done after N s; gpu: 0 passed, 2 failed, 0 skipped (gpu.CudaDevice.Computes "
  "gpu.CudaDevice.Waits hung gpu.CudaDevice.Hangs did not end)") and
  stages["test"]["gpu"]["failed"] == 2 and state["test"] == "cut short" and state["profile"] == "not run" and
  stages["profile"]["said"] == "no time left of 10 s; run it alone"' --seconds 10 test profile
logged '[ RUN      ] CudaDevice.Waits'
logged "headers in $work/site/nvidia/cu13/include"

# A benchmark that is ended has written its first result; the second one is cut off.
cat >"$work/build/barestep_cuda_bench" <<'PROGRAM'
#!/bin/sh
for argument; do case $argument in --benchmark_out=*) file=${argument#*=} ;; esac; done
printf '{\n  "context": {},\n  "benchmarks": [\n    {\n      "name": "cuda_step/8192/6/0", "label": "fp32 separate",
      "real_time": 5.5, "%% of floor": 66.0\n    },\n    {\n      "name": "cuda_st' >"$file"
sleep 1000
PROGRAM
check 75 'len(stages["steps"]["steps"]["benchmarks"]) == 1 and stages["steps"]["said"] ==
  "not done after N s; 8192 fp32 5.500 ms (66 % of floor, separate); 0 of 1 did not run"' --seconds 10 steps

# ended <signal> <condition>: a check that gets a signal in its first stage.
ended() {
  local signal=$1 condition=$2 process
  rm -rf "$work/out"
  PATH=$work/bin:$PATH PYTHON=python3 PYTHONPATH=$work/site GPU_BUILD=$work/build OUT=$work/out \
    COMMIT=abc "$root/scripts/gpu_check.sh" test profile >"$work/printed" 2>&1 &
  process=$!
  for _ in $(seq 100); do
    if grep -qs Hangs "$work"/out/*.log; then break; fi
    sleep 0.1
  done
  sleep 0.5
  kill -"$signal" $process
  wait $process 2>/dev/null
  python3 - "$work"/out/gpu_check_*.json "$condition" <<'END' || { cat "$work/printed"; failures=$((failures + 1)); }
import json, sys
stages = json.load(open(sys.argv[1]))["stages"]
assert eval("(" + sys.argv[2] + ")"), json.dumps(stages, indent=1)
END
}
sed -i "s/echo '    Start 3/echo Hangs; &/" "$work/bin/ctest"
ended TERM 'stages["test"]["state"] == "cut short" and stages["profile"]["state"] == "not run" and
  stages["test"]["said"].startswith("ended by a signal; gpu: 0 passed, 2 failed") and
  stages["profile"]["said"] == "ended by a signal; run it alone"'
sed -i 's/sleep 1000/sleep 2/' "$work/bin/ctest"
ended KILL 'list(stages) == ["test"] and stages["test"]["state"] == "running"'

[ $failures = 0 ] || exit 1
echo "as expected"
