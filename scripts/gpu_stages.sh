# The stages of gpu_check.sh, which sources this file. A stage describes its result in one line
# (said) and may add fields to its part of the JSON (field). It returns 0, 1, or 69 if it is
# skipped.

build=${GPU_BUILD:-$root/build/gpu}

quoted() {  # a JSON string
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/ }
  printf '"%s"' "$(tr -d '\000-\010\013-\037' <<<"$text" | iconv -c -f UTF-8 -t UTF-8)"
}

said() { sed -E 's/^ +| +$//g' <<<"$1" >"$work/${FUNCNAME[1]#stage_}.why"; }

# field <stage> <name> <JSON>
field() { printf ', "%s": %s' "$2" "$3" >>"$work/$1.fields"; }

# file_field <stage> <name> <file>: adds the file's JSON, if there is any. Google Benchmark appends
# each result as it is measured; of a file whose program was ended, those are taken.
file_field() {
  if [ -s "$3" ] && "$python" - "$3" >"$3.checked" 2>/dev/null <<'END'; then
import json, sys
text = open(sys.argv[1]).read()
try:
    value = json.loads(text)
except ValueError:
    value = json.loads(text[:text.rindex("\n    }") + 6] + "]}")
json.dump(value, sys.stdout, indent=1)
END
    field "$1" "$2" "$(cat "$3.checked")"
  fi
}

# collect <stage>: adds the results of its programs, even if the stage was ended.
collect() {
  case $1 in
    test) collect_tests ;;
    pytorch) file_field pytorch comparison "$work/side.json" ;;
    bench)
      file_field bench ops "$work/bench.json"
      file_field bench epilogues "$work/epilogues.json"
      file_field bench fused_update "$work/fused_update.json"
      ;;
    steps) collect_steps ;;
    profile) file_field profile step_by_ncu "$work/ncu.json" ;;
  esac
}

# Needed by other stages: nvcc's folder in PATH, and the Python that has torch.
find_tools() {
  local folder
  for folder in /usr/local/cuda/bin /usr/local/nvidia/bin; do
    if [ -d "$folder" ]; then PATH=$PATH:$folder; fi
  done
  export PATH
  export python=${PYTHON:-python3}
}

# Points to the CUPTI of the Python packages if the loader finds none, as their users would;
# otherwise profiles would use CUDA events, and nothing here would test CUPTI.
find_cupti() {
  if [ -z "${BARESTEP_CUPTI:-}" ]; then
    BARESTEP_CUPTI=$("$python" - <<'END'
import ctypes, glob, sys
cuda = "/usr/local/cuda/"
for file in ("libcupti.so.13", "libcupti.so.12", cuda + "lib64/libcupti.so", cuda + "extras/CUPTI/lib64/libcupti.so"):
    try:
        ctypes.CDLL(file)
        sys.exit()
    except OSError:
        pass
import nvidia
for place in ("cu13/lib", "cuda_cupti/lib", "cu12/lib"):
    for root in nvidia.__path__:
        for file in sorted(glob.glob(root + "/" + place + "/libcupti.so.1[23]"), reverse=True):
            print(file)
            sys.exit()
END
    ) 2>/dev/null || BARESTEP_CUPTI=""
  fi
  if [ -n "$BARESTEP_CUPTI" ]; then export BARESTEP_CUPTI; else unset BARESTEP_CUPTI; fi
}

# Sets gpu, driver, architecture and machine; sets no_gpu to the reason if there is no GPU.
find_gpu() {
  local line name=""
  gpu="" driver="" architecture="" no_gpu=""
  if ! command -v nvidia-smi >/dev/null; then
    no_gpu="no NVIDIA driver (nvidia-smi was not found)"
  elif ! line=$(timeout 30 nvidia-smi --query-gpu=name,driver_version,compute_cap \
    --format=csv,noheader 2>&1 | head -n 1) || [[ $line != *,*,* ]]; then
    no_gpu="no GPU (nvidia-smi: ${line:-said nothing})"
  else
    IFS=, read -r gpu driver architecture <<<"$line"
    driver=${driver# }
    architecture=${architecture//[ .]/}
    name=$gpu
  fi
  if [ -z "$name" ]; then
    name=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    name="${name:-$(uname -m)} $(nproc) cores"
  fi
  machine=$(tr '[:upper:]' '[:lower:]' <<<"$name" | sed -E 's/[^a-z0-9]+/-/g; s/^-|-$//g')
  export gpu driver architecture no_gpu machine
}

# If nvcc has no cuBLAS next to it, uses that of the Python packages, in every stage: the compiler
# and CMake read these variables.
find_cublas() {
  local wheels
  if ! command -v nvcc >/dev/null; then return; fi
  if [ -f "$(dirname "$(readlink -f "$(command -v nvcc)")")/../include/cublasLt.h" ]; then return; fi
  wheels=$("$python" -c 'import nvidia.cublas as m; print(list(m.__path__)[0])' 2>/dev/null) ||
    wheels=$("$python" -c 'import nvidia, glob
print(next(p for r in nvidia.__path__ for p in glob.glob(r + "/cu1[0-9]")))' 2>/dev/null) || return 0
  if [ ! -f "$wheels/include/cublasLt.h" ]; then return 0; fi
  echo "cuBLAS of the Python packages: $wheels"
  export CPATH=$wheels/include:${CPATH:-} LIBRARY_PATH=$wheels/lib:${LIBRARY_PATH:-}
  export CMAKE_LIBRARY_PATH=$wheels/lib:${CMAKE_LIBRARY_PATH:-}
}

# Adds the NCCL of the Python packages, which CMake does not find, to the options.
find_nccl() {
  local wheel
  wheel=$("$python" -c 'import nvidia.nccl as m; print(list(m.__path__)[0])' 2>/dev/null) || return 0
  if [ ! -f "$wheel/include/nccl.h" ]; then return 0; fi
  options+=("-DBARESTEP_nccl_INCLUDE=$wheel/include" "-DBARESTEP_nccl_LIBRARY=$wheel/lib/libnccl.so.2")
}

# built <target...>: configures if that is still needed, and builds.
built() {
  local options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DBARESTEP_LINT=OFF -DBARESTEP_TEST_TIMEOUT=60)
  if [ ! -f "$build/build.ninja" ]; then
    if [ -n "$no_gpu" ]; then
      options+=(-DBARESTEP_CUDA=AUTO -DCMAKE_CUDA_ARCHITECTURES=90)
    else
      options+=(-DBARESTEP_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$architecture")
      find_nccl
    fi
    cmake -S "$root" -B "$build" "${options[@]}" 2>&1 | tee "$work/configure" >&2
    if [ "${PIPESTATUS[0]}" != 0 ]; then return 1; fi
  fi
  ninja -C "$build" "$@"
}

has_target() { ninja -C "$build" -t query "$1" >/dev/null 2>&1; }

stage_build() {
  local begin=$SECONDS configured failures target
  if ! built -t targets >/dev/null; then
    said "configure:$(grep -A 3 'CMake Error' "$work/configure" | sed -n '2,3p' | tr -s ' \n' ' ')"
    return 1
  fi
  configured=$((SECONDS - begin))
  # Targets that other stages need come first; an error in one program does not stop the others.
  ninja -C "$build" -k 0 mlp_single
  for target in cuda_parity_test barestep_cuda_bench barestep_cuda_epilogues barestep_cuda_fused_update barestep_bench; do
    if has_target "$target"; then ninja -C "$build" -k 0 "$target"; fi
  done
  ninja -C "$build" -k 0 >"$work/ninja" 2>&1
  failures=$(grep -c '^FAILED:' "$work/ninja")
  tail -n 100 "$work/ninja"
  field build configure_s "$configured"
  field build build_s $((SECONDS - begin - configured))
  field build cores "$(nproc)"
  said "architecture ${architecture:-none}, $configured s to configure, $((SECONDS - begin - configured)) s to build on $(nproc) cores, $failures failures"
  [ "$failures" = 0 ] && [ -x "$build/mlp_single" ]
}

# Short runs: the first that a new machine should see. --update separate, as a profile has it.
stage_train() {
  local way line="" bad=0 status loss
  local run=("$build/mlp_single" --dim 1024 --depth 2 --steps 20 --log-every 19 --update separate)
  if [ -n "$no_gpu" ]; then run+=(--device cpu); else run+=(--device cuda); fi
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  for way in "" --graph "--graph --profile"; do
    timeout --kill-after=5 60 "${run[@]}" $way 2>&1 | tee "$work/train"
    status=${PIPESTATUS[0]}
    loss=$(sed -nE 's/^Step 19 .*Loss: ([^ ]+).*/\1/p' "$work/train")
    if [ "$status" != 0 ]; then
      bad=1
      loss="exit $status, $(grep -m 1 'error:' "$work/train" || tail -n 1 "$work/train")"
    fi
    line+="${line:+; }${way:-eager}: ${loss:-no loss}"
  done
  said "loss of step 19, $line"
  return $bad
}

# run_tests <label> <ctest's options...>: the log gets what ctest says as it says it, without the
# tests that pass.
run_tests() {
  ctest --test-dir "$build" -L "^$1\$" -LE '^slow$' --output-on-failure "${@:2}" 2>&1 | tee -a "$work/ctest.$1" |
    grep --line-buffered -vE '^ *Start +[0-9]+: | Passed +[0-9.]+ sec$'
  return "${PIPESTATUS[0]}"
}

# The first tests of a device say most about it, so they run first.
stage_test() {
  local status=0
  if ! built >/dev/null; then
    said "the tests were not built; see the stage build"
    return 1
  fi
  run_tests gpu -R '^gpu\.CudaDevice' || status=1
  run_tests gpu -j 4 -E '^gpu\.CudaDevice' || status=1
  run_tests unit -j "$(nproc)" || status=1
  return $status
}

# Of what ctest said: how many tests passed, the names of the failed, and of those that did not end.
collect_tests() {
  local label ok bad left names line=""
  for label in gpu unit; do
    if [ ! -f "$work/ctest.$label" ]; then continue; fi
    read -r ok bad left < <(count_tests "$work/ctest.$label")
    field test $label "{\"passed\": $ok, \"failed\": $bad, \"skipped\": $left}"
    names=$(awk '
      /^ *Start +[0-9]+: / { running[$NF] = 1 }
      /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
        sub(/^[^:]*: /, "")
        delete running[$1]
        if (/\*\*\*/ && !/\*\*\*(Skipped|Not Run \(Disabled)/ && failed++ < 3) {
          printf " %s%s", $1, /\*\*\*Timeout/ ? " hung" : ""
        }
      }
      END {
        if (failed > 3) printf " ..."
        for (name in running) if (unended++ < 3) printf " %s did not end", name
      }' "$work/ctest.$label")
    line+="${line:+; }$label: $ok passed, $bad failed, $left skipped${names:+ (${names# })}"
  done
  if [ -n "$line" ]; then echo "$line" >"$work/test.why"; fi
}

# sanitized <tool> <name> <command...>: runs in the background as soon as fewer than three do; the
# log gets its output as it comes, each line with its name. Writes <tool>.<name>.log, and .cut if it
# took too long.
sanitized() {
  local tool=$1 name=$2 options=()
  shift 2
  # Calls that the libraries try and that fail do not matter; our code checks what its calls return.
  if [ "$tool" = memcheck ]; then options=(--report-api-errors no); fi
  while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
  {
    timeout --kill-after=5 170 compute-sanitizer --tool "$tool" --print-limit 20 "${options[@]}" "$@" 2>&1 |
      tee "$work/$tool.$name.log" | sed -u "s/^/$tool $name: /"
    [[ ${PIPESTATUS[0]} =~ ^(124|137)$ ]] && touch "$work/$tool.$name.cut"
  } &
}

# A report counts as ours if one of its lines names one of our kernels. racecheck and initcheck may
# not understand the libraries' kernels, so only memcheck and synccheck count those as failures.
stage_sanitize() {
  local tool name log summary all ours line="" bad=0 seen=0 cut=0
  local ops=("$build/tests/cuda_parity_test" '--gtest_filter=CudaDevice.*-*TimesADelay*')
  local train=("$build/mlp_single" --device cuda --dim 64 --depth 2 --steps 3 --warmup 1)
  if [ -n "$no_gpu" ]; then said "$no_gpu"; return 69; fi
  if ! command -v compute-sanitizer >/dev/null; then said "compute-sanitizer is not here"; return 69; fi
  if ! built mlp_single cuda_parity_test >/dev/null; then said "the programs were not built"; return 1; fi
  # What says most comes first.
  sanitized memcheck ops "${ops[@]}"
  sanitized memcheck graph "${train[@]}" --graph
  for tool in memcheck racecheck synccheck initcheck; do sanitized $tool train "${train[@]}"; done
  for tool in racecheck synccheck initcheck; do sanitized $tool ops "${ops[@]}"; done
  wait
  for tool in memcheck racecheck initcheck synccheck; do
    all=0
    ours=0
    for log in "$work/$tool".*.log; do
      name=$(basename "$log" .log)
      summary=$(sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$log" | tail -n 1)
      if [ -z "$summary" ] && [ -f "$work/$name.cut" ]; then
        line+="${line:+, }$name did not end"
        cut=1
        continue
      elif [ -z "$summary" ]; then
        line+="${line:+, }$name did not run: $(grep -m 1 -iE 'error|not supported' "$log" | tr -d '=' || echo no summary)"
        bad=1
        continue
      fi
      seen=1
      all=$((all + summary))
      ours=$((ours + $(grep -cE '^=+ .*\bat .*barestep' "$log")))
    done
    field sanitize $tool "{\"reports\": $all, \"of_our_kernels\": $ours}"
    line+="${line:+, }$tool $all"
    if [ $all != $ours ]; then line+=" ($ours in ours)"; fi
    case $tool in
      memcheck | synccheck) if [ $all -gt 0 ]; then bad=1; fi ;;
      *) if [ $ours -gt 0 ]; then bad=1; fi ;;
    esac
  done
  said "$line"
  if [ $seen = 0 ] && grep -qi 'not supported' "$work"/memcheck.*.log; then return 69; fi
  if [ $bad = 0 ] && [ $cut = 1 ]; then return 75; fi
  return $bad
}

stage_pytorch() {
  local status=0 where=(--device cuda)
  if [ -n "$no_gpu" ]; then where=(--device cpu --small); fi
  if ! "$python" -c 'import torch' 2>/dev/null; then said "$python has no PyTorch"; return 69; fi
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  if has_target cuda_parity_test; then built cuda_parity_test >/dev/null; fi
  # A case takes a minute if PyTorch compiles.
  "$python" "$root/bench/side_by_side.py" --build "$build" "${where[@]}" --output "$work/side.json" \
    --seconds $((stage_seconds > 160 ? stage_seconds - 80 : stage_seconds / 2)) 2>&1 | tee "$work/side.log"
  status=${PIPESTATUS[0]}
  said "$(grep -vE '^    ' "$work/side.log" | tail -n 2 | tr -s ' \n' ' ')"
  return "$status"
}

# step_ms <option...>: mlp_single's median step at 8192 x 6, in milliseconds.
step_ms() {
  timeout 60 "$build/mlp_single" --device cuda --dim 8192 --depth 6 --steps 25 --log-every 25 "$@" |
    tee -a /dev/stderr | sed -nE 's/.*Step time .*p50 ([0-9.e-]+)s.*/\1/p' | awk '{ printf "%.4f", 1000 * $1 }'
}

stage_bench() {
  local program=barestep_cuda_bench chosen timed name line="" status=0
  if [ -n "$no_gpu" ]; then program=barestep_bench; fi
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  if ! has_target $program; then said "Google Benchmark is not here"; return 69; fi
  if ! built $program >/dev/null; then said "$program was not built"; return 1; fi
  if [ -n "$no_gpu" ]; then
    "$build/$program" --threads=1 --benchmark_filter='^randn/65536' --benchmark_min_time=0.01 \
      --benchmark_out="$work/bench.json" || status=1
    said "one op of the CPU"
    return $status
  fi
  timeout 90 "$build/$program" --benchmark_filter='-^cuda_step' --benchmark_out="$work/bench.json" || status=1
  if has_target barestep_cuda_epilogues && built barestep_cuda_epilogues >/dev/null; then
    timeout 60 "$build/barestep_cuda_epilogues" "$work/epilogues.json" || status=1
  fi
  if has_target barestep_cuda_fused_update && built barestep_cuda_fused_update >/dev/null; then
    timeout 60 "$build/barestep_cuda_fused_update" "$work/fused_update.json" || status=1
  fi
  for name in fp32 tf32; do
    chosen=$(step_ms --precision $name --autotune off)
    timed=$(step_ms --precision $name --autotune "$work/choices.$name")
    field bench "step_8192x6_$name" "{\"first_heuristic_ms\": ${chosen:-null}, \"autotuned_ms\": ${timed:-null}}"
    line+=", step $name ${chosen:-?} ms, autotuned ${timed:-?} ms"
  done
  said "$("$python" - "$work/bench.json" <<'END'
import json, sys
rows = {r["name"].split("/manual")[0].split("/min_time")[0]: r for r in json.load(open(sys.argv[1]))["benchmarks"]}
copy, adam = rows["cuda_copy/402702336"], rows["cuda_adam/402702336"]
print("copy {:.0f} GB/s, Adam {:.1f} % of it".format(copy["copy GB/s"], adam["% of copy"]), end="")
END
)$line"
  return $status
}

# Whole steps in every precision: separate updates and fused, eager and as graphs.
stage_steps() {
  if [ -n "$no_gpu" ]; then said "$no_gpu"; return 69; fi
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  if ! has_target barestep_cuda_bench; then said "Google Benchmark is not here"; return 69; fi
  if ! built barestep_cuda_bench >/dev/null; then said "barestep_cuda_bench was not built"; return 1; fi
  "$build/barestep_cuda_bench" --benchmark_filter='^cuda_step' --benchmark_out="$work/steps.json" || return 1
  ! grep -q '"error_occurred": true' "$work/steps.json"
}

collect_steps() {
  file_field steps steps "$work/steps.json"
  if [ ! -s "$work/steps.json.checked" ]; then return; fi
  "$python" - "$work/steps.json.checked" >"$work/steps.why" <<'END'
import json, sys
rows = json.load(open(sys.argv[1]))["benchmarks"]
ran = [row for row in rows if not row.get("error_occurred")]
best = {}
for row in sorted(ran, key=lambda row: row["real_time"]):
    best.setdefault((row["name"].split("/")[1], row["label"].split()[0]), row)
for (dim, precision), row in best.items():
    print("{} {} {:.3f} ms ({:.0f} % of floor, {}); ".format(
        dim, precision, row["real_time"], row["% of floor"], row["label"].split(" ", 1)[1]), end="")
print(f"{len(rows) - len(ran)} of {len(rows)} did not run")
END
}

stage_profile() {
  local train=("$build/mlp_single" --device cuda --dim 8192 --depth 6 --steps 3 --warmup 1)
  local line="" seen=0 status=0
  if [ -n "$no_gpu" ]; then said "$no_gpu"; return 69; fi
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  if command -v ncu >/dev/null; then
    timeout --kill-after=5 80 ncu --csv --print-units base --log-file "$work/ncu.log" --clock-control none \
      --cache-control none --metrics dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum \
      "${train[@]}"
    tail -n 3 "$work/ncu.log"
    if "$python" "$root/bench/ncu_step.py" "$work/ncu.log" >"$work/ncu.json" 2>"$work/ncu.error"; then
      line=$("$python" -c 'import json, sys
step = json.load(open(sys.argv[1]))
print("{:.2f} GB a step, {:.3f} ms in {} kernels".format(step["bytes"] / 1e9, step["us"] / 1e3, len(step["kernels"])))' \
        "$work/ncu.json")
      seen=1
    else
      line="ncu: $(tail -n 1 "$work/ncu.error")"
      status=1
    fi
  else
    line="ncu is not here"
  fi
  if command -v nsys >/dev/null; then
    if timeout --kill-after=5 60 nsys profile --trace=cuda --force-overwrite=true -o "$work/nsys" "${train[@]}" &&
      timeout 30 nsys stats --report cuda_gpu_kern_sum --format csv "$work/nsys.nsys-rep" >"$work/nsys.csv"; then
      cat "$work/nsys.csv"
      line+="; nsys: table in the log"
      seen=1
    else
      line+="; nsys did not report"
    fi
  else
    line+="; nsys is not here"
  fi
  said "$line"
  if [ $status = 0 ] && [ $seen = 0 ]; then return 69; fi
  return $status
}
