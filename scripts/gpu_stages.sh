# The stages of gpu_check.sh, which sources this file. A stage describes its result in one line
# (said) and may add fields to its part of the JSON (field). It returns 0, 1, or 69 if it is
# skipped.

build=${GPU_BUILD:-$root/build/gpu}
archive=${GPU_PACKED:-$root/build/packed.tar.xz}

# Unpacks what gpu_pack.sh packed, and links the places that its programs know. From then on,
# $build/packed says that nothing is to be built. Prints an error and returns 1 if that is impossible.
unpack() {
  local folder=${archive%.tar.xz} from place sum
  if [ -n "${GPU_BUILD:-}" ] || [ ! -f "$archive" ] || [ -f "$folder/build.ninja" ]; then return 0; fi
  build=$folder
  export GPU_BUILD=$folder
  sum=$(cksum <"$archive")
  if [ "$(cat "$folder/unpacked" 2>/dev/null)" != "$sum" ]; then
    rm -rf "$folder"
    if ! (cd "${folder%/*}" && python3 -m tarfile -e "$archive" .); then
      echo "gpu_check: error: file '$archive': cannot be unpacked; copy it again, or remove it" >&2
      return 1
    fi
    echo "$sum" >"$folder/unpacked"
  fi
  from=$(sed -n 's/^root //p' "$folder/packed")
  while read -r place; do
    if [ -e "$place" ]; then continue; fi
    mkdir -p "${place%/*}" && ln -s "$folder/root$place" "$place" || return 1
  done <"$folder/links"
  if [ ! -e "$from" ]; then mkdir -p "${from%/*}" && ln -s "$root" "$from"; fi
  if [ "$(readlink -f "$from")" != "$root" ]; then
    echo "gpu_check: error: folder '$from': the packed programs expect this source tree there; move what is" \
      "there, or remove $archive" >&2
    return 1
  fi
}

# Where packed programs find their libraries: those packed with them, and those of the Python packages.
find_libraries() {
  local wheels
  wheels=$("$python" - 2>/dev/null <<'END'
import glob, nvidia
print(":".join(place for root in nvidia.__path__
               for pattern in ("cu1[0-9]", "cublas", "nccl") for place in glob.glob(root + "/" + pattern + "/lib")))
END
  ) || wheels=""
  export LD_LIBRARY_PATH=$build/lib${wheels:+:$wheels}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PATH=$build/bin:$PATH
  echo "packed programs of commit $(sed -n 's/^commit //p' "$build/packed"), libraries in $LD_LIBRARY_PATH"
}

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

# file_field <stage> <name> <file> [<kept>]: adds the file's JSON, if there is any, and on a GPU keeps
# it as <kept>.json beside the check's own file, with the commit. Google Benchmark appends each result
# as it is measured; of a file whose program was ended, those are taken.
file_field() {
  local kept=""
  if [ -n "${4:-}" ] && [ -z "$no_gpu" ]; then kept=$results/$4.json; fi
  if [ -s "$3" ] && "$python" - "$3" "$commit" $kept >"$3.checked" 2>/dev/null <<'END'; then
import json, sys
text = open(sys.argv[1]).read()
try:
    value = json.loads(text)
except ValueError:
    value = json.loads(text[:text.rindex("\n    }") + 6] + "]}")
json.dump(value, sys.stdout, indent=1)
for kept in sys.argv[3:]:
    if isinstance(value, dict) and "loads" not in value:  # a card has no other members
        value["commit"] = sys.argv[2]
    open(kept, "w").write(json.dumps(value, indent=1) + "\n")
END
    field "$1" "$2" "$(cat "$3.checked")"
  fi
}

# row <stage> <JSON object>: a measured line, which stays if the stage is ended.
row() { echo "$2" >>"$work/$1.rows"; }

# rows_field <stage> <kept>: adds these lines.
rows_field() {
  if [ ! -s "$work/$1.rows" ]; then return; fi
  printf '{"runs": [\n%s\n]}\n' "$(sed '$!s/$/,/' "$work/$1.rows")" >"$work/$1.runs"
  file_field "$1" measured "$work/$1.runs" "$2"
}

# collect <stage>: adds the results of its programs, even if the stage was ended.
collect() {
  case $1 in
    test) collect_tests ;;
    observe) rows_field observe observers ;;
    blocks) file_field blocks comparison "$work/side.blocks.json" pytorch_blocks ;;
    pytorch) file_field pytorch comparison "$work/side.pytorch.json" pytorch_8192x6 ;;
    small) file_field small comparison "$work/side.small.json" pytorch_1024x2 ;;
    card)
      file_field card card "$work/card.json" card
      rows_field card predictions
      ;;
    rows) rows_field rows update_by_rows ;;
    products) rows_field products products ;;
    several) rows_field several several_gpus ;;
    bench)
      file_field bench ops "$work/bench.json" ops
      file_field bench epilogues "$work/epilogues.json" epilogues
      file_field bench fused_update "$work/fused_update.json" fused_update
      ;;
    steps) collect_steps ;;
    profile) file_field profile step_by_ncu "$work/ncu.json" step_by_ncu ;;
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
  gpu="" driver="" architecture="" no_gpu="" gpus=0
  if ! command -v nvidia-smi >/dev/null; then
    no_gpu="no NVIDIA driver (nvidia-smi was not found)"
  elif ! line=$(timeout 30 nvidia-smi --query-gpu=name,driver_version,compute_cap \
    --format=csv,noheader 2>&1 | head -n 1) || [[ $line != *,*,* ]]; then
    no_gpu="no GPU (nvidia-smi: ${line:-said nothing})"
  else
    IFS=, read -r gpu driver architecture <<<"$line"
    driver=${driver# }
    architecture=${architecture//[ .]/}
    gpus=$(timeout 30 nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
    name=$gpu
  fi
  if [ -z "$name" ]; then
    name=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    name="${name:-$(uname -m)} $(nproc) cores"
  fi
  machine=$(tr '[:upper:]' '[:lower:]' <<<"$name" | sed -E 's/[^a-z0-9]+/-/g; s/^-|-$//g')
  export gpu gpus driver architecture no_gpu machine
}

# What stages train: the sizes of the tables in docs/gpu.md or, in a rehearsal, small ones.
set_shapes() {
  device=cuda
  dim=8192
  depth=6
  if [ -n "$no_gpu" ]; then
    device=cpu
    dim=64
    depth=2
  fi
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

# built <target...>: configures if that is still needed, and builds. Packed programs are there or not.
built() {
  local target
  if [ -f "$build/packed" ]; then
    for target; do has_target "$target" || return 1; done
    return 0
  fi
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

has_target() {
  if [ -f "$build/packed" ]; then
    [ -x "$build/$1" ] || [ -x "$build/tests/$1" ]
  else
    ninja -C "$build" -t query "$1" >/dev/null 2>&1
  fi
}

stage_build() {
  local begin=$SECONDS configured failures target packed
  if [ -f "$build/packed" ]; then
    packed=$(sed -n 's/^architecture //p' "$build/packed")
    said "packed programs of commit $(sed -n 's/^commit //p' "$build/packed"), architecture $packed"
    [ -n "$no_gpu" ] || [ "$packed" = "$architecture" ]
    return
  fi
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
  target=all
  if has_target barestep_tests; then target=barestep_tests; fi
  ninja -C "$build" -k 0 "$target" >"$work/ninja" 2>&1
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
  local run=("$build/mlp_single" --dim 1024 --depth 2 --steps 20 --log-every 19 --update separate --device "$device")
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
  if [ ! -f "$build/packed" ]; then run_tests unit -j "$(nproc)" || status=1; fi
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
  local blocks=("${train[@]}" --block transformer --length 40 --batch-size 2)
  if [ -n "$no_gpu" ]; then said "$no_gpu"; return 69; fi
  if ! command -v compute-sanitizer >/dev/null; then said "compute-sanitizer is not here"; return 69; fi
  if ! built mlp_single cuda_parity_test >/dev/null; then said "the programs were not built"; return 1; fi
  # What says most comes first.
  sanitized memcheck ops "${ops[@]}"
  sanitized memcheck graph "${train[@]}" --graph
  for tool in memcheck racecheck synccheck initcheck; do
    sanitized $tool blocks "${blocks[@]}"
    sanitized $tool train "${train[@]}"
  done
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

# beside_pytorch <stage> <cases> <precisions>
beside_pytorch() {
  local status=0 where=(--device "$device" --cases "$2" --precisions "$3") log=$work/side.$1.log
  if [ -n "$no_gpu" ]; then where+=(--small); fi
  if ! "$python" -c 'import torch' 2>/dev/null; then echo "$python has no PyTorch" >"$work/$1.why"; return 69; fi
  if ! built mlp_single >/dev/null; then echo "mlp_single was not built" >"$work/$1.why"; return 1; fi
  if has_target cuda_parity_test; then built cuda_parity_test >/dev/null; fi
  # A case takes a minute if PyTorch compiles.
  "$python" "$root/bench/side_by_side.py" --build "$build" "${where[@]}" --output "$work/side.$1.json" \
    --seconds $((stage_seconds > 160 ? stage_seconds - 80 : stage_seconds / 2)) 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  grep -vE '^    ' "$log" | tail -n 2 | tr -s ' \n' ' ' | sed -E 's/^ | $//g' >"$work/$1.why"
  return "$status"
}

stage_blocks() { beside_pytorch blocks blocks fp32,bf16; }
stage_pytorch() { beside_pytorch pytorch large bf16,fp16,fp32,tf32; }
stage_small() { beside_pytorch small small fp32,tf32,bf16; }

# ms_of <command...>: the median step of a trainer's run, in milliseconds; nothing if it fails.
ms_of() {
  timeout --kill-after=5 90 "$@" 2>&1 | tee -a /dev/stderr "$work/run" |
    sed -nE 's/.*Step time .*p50 ([0-9.e-]+)s.*/\1/p' | awk '{ printf "%.4f", 1000 * $1 }'
}

# step_ms <option...>: mlp_single's median step at 8192 x 6.
step_ms() {
  ms_of "$build/mlp_single" --device "$device" --dim "$dim" --depth "$depth" --steps 25 --log-every 25 "$@"
}

# What --profile, --trace and --monitor cost a step, all at once, and what the program says of it. Its tables,
# also those of attention, are in the log.
stage_observe() {
  local options plain observed line="" bad=0
  local run=("$build/mlp_single" --device "$device" --graph --update separate --steps 120 --log-every 120)
  local blocks="--block transformer --dim $((dim / 8)) --length $((dim / 16)) --batch-size 8"
  if ! built mlp_single mlp_lab >/dev/null; then said "mlp_single or mlp_lab was not built"; return 1; fi
  for options in "--dim $dim --batch-size "{64,256,1024} "$blocks" "$blocks --precision "{tf32,bf16} \
    "$blocks --precision bf16 --attention standard"; do
    if [[ $device$options = cpu*tf32* ]]; then continue; fi
    options+=" --depth $depth"
    # shellcheck disable=SC2086
    {
      plain=$(ms_of "${run[@]}" $options)
      : >"$work/run"
      observed=$(ms_of "${run[@]}" $options --profile --profile-steps 20:119 --monitor --trace "$work/observed.json")
    }
    if [ -z "$plain" ] || [ -z "$observed" ] || ! "$build/mlp_lab" explain "$work/observed.json"; then bad=1; fi
    row observe "{\"options\": \"$options\", \"plain_ms\": ${plain:-null}, \"observed_ms\": ${observed:-null}, \
\"said\": $(quoted "$(grep -m 1 -E 'error:|Profiling adds' "$work/run")")}"
    line+="${line:+, }${plain:-?} and ${observed:-?} ms"
  done
  said "without and with --profile --trace --monitor: $line"
  return $bad
}

# predicted_ms <card> <dim> <depth> <precision>: a step on one rank, simulated.
predicted_ms() {
  "$build/mlp_lab" predict --machine "$1" --ranks 1 --dim "$2" --depth "$3" --precision "$4" | tee -a /dev/stderr |
    awk '$1 == "1" && !seen++ { print $2 * ($3 == "us" ? 1e-3 : $3 == "s" ? 1e3 : 1) }'
}

# The measured card has rates in fp32 only; data sheets have more.
stage_card() {
  local shape card precision predicted measured line="" bad=0 quick=()
  if ! built mlp_single mlp_lab >/dev/null; then said "mlp_single or mlp_lab was not built"; return 1; fi
  if [ -n "$no_gpu" ]; then quick=(--quick); fi
  if ! timeout 150 "$build/mlp_lab" card --device "$device" "${quick[@]}" --output "$work/card.json"; then
    said "the card was not measured; see the log"
    return 1
  fi
  for shape in "$dim $depth" "1024 2"; do
    for precision in fp32 tf32 bf16; do
      if [ "$device/$precision" = cpu/tf32 ]; then continue; fi
      # shellcheck disable=SC2086
      set -- $shape
      measured=$(ms_of "$build/mlp_single" --device "$device" --dim "$1" --depth "$2" --steps 60 --log-every 60 \
        --update separate --precision $precision)
      for card in "$work/card.json" h200-nvlink; do
        if [ "$card/$precision" != "$work/card.json/$precision" ] || [ $precision = fp32 ]; then
          predicted=$(predicted_ms "$card" "$1" "$2" $precision)
          row card "{\"dim\": $1, \"depth\": $2, \"precision\": \"$precision\", \"card\": \"$(basename "$card" .json)\", \
\"predicted_ms\": ${predicted:-null}, \"measured_ms\": ${measured:-null}}"
          if [ -z "$predicted" ] || [ -z "$measured" ]; then bad=1; fi
          line+="${line:+, }$1 x $2 $precision $(awk -v a="${predicted:-0}" -v b="${measured:-1}" \
            'BEGIN { printf "%+.0f %%", 100 * (a / b - 1) }')"
          if [ "$card" = h200-nvlink ]; then line+=" (data sheet)"; fi
        fi
      done
    done
  done
  said "predicted compared with measured: $line"
  return $bad
}

# Where the fused update stops being worth it; up to 128 rows --update auto takes it.
stage_rows() {
  local batch precision separate fused line="" bad=0
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  depth=2
  for batch in 256 512; do
    for precision in fp32 tf32 bf16; do
      if [ "$device/$precision" = cpu/tf32 ]; then continue; fi
      separate=$(step_ms --graph --precision $precision --batch-size $batch --update separate)
      fused=$(step_ms --graph --precision $precision --batch-size $batch --update fused)
      if [ -z "$separate" ] || [ -z "$fused" ]; then bad=1; fi
      row rows "{\"dim\": $dim, \"depth\": $depth, \"batch\": $batch, \"precision\": \"$precision\", \
\"separate_ms\": ${separate:-null}, \"fused_ms\": ${fused:-null}}"
      line+="${line:+, }$batch $precision ${separate:-?} and ${fused:-?} ms"
    done
  done
  said "$dim x $depth, separate and fused: $line"
  return $bad
}

# The kernel for few rows beside cuBLASLt's algorithms, as --autotune times them, and the rate of tensor cores.
stage_products() {
  local precision choices line="" bad=0
  if [ -n "$no_gpu" ]; then said "$no_gpu"; return 69; fi
  if ! built mlp_single >/dev/null; then said "mlp_single was not built"; return 1; fi
  if has_target barestep_cuda_fused_update && built barestep_cuda_fused_update >/dev/null; then
    timeout 20 "$build/barestep_cuda_fused_update" --tensor-rate "$work/rate.json" || bad=1
    row products "$(cat "$work/rate.json" 2>/dev/null || echo '{}')"
  fi
  # timed_choices <name> <precision> <options...>: a step with choices that are timed now.
  timed_choices() {
    choices=$work/choices.$1.$2
    ms=$(step_ms --graph --precision "$2" --autotune "$choices" "${@:3}")
    if [ -z "$ms" ] || [ ! -s "$choices" ]; then bad=1; return; fi
    row products "{\"run\": \"$1\", \"precision\": \"$2\", \"step_ms\": $ms, \"choices\": $(cat "$choices")}"
    line+="${line:+, }$1 $2 $("$python" - "$choices" <<'END'
import json, sys
read = json.load(open(sys.argv[1]))
pairs = [(c["own_us"], c["library_us"]) for c in read["choices"] if "own_us" in c and "library_us" in c]
pairs += [(k["other_us"], k["usual_us"]) for k in read.get("kernels", []) if "other_us" in k]
print("/".join("{:.0f} against {:.0f}".format(*pair) for pair in pairs), "us", end="")
END
)"
  }
  depth=2
  for dim in 8192 1024; do
    for precision in fp32 tf32 bf16; do timed_choices "$dim" $precision --update separate; done
  done
  for precision in fp32 tf32 bf16; do timed_choices "$dim fused" $precision --update fused; done
  for precision in fp32 tf32 bf16 fp16; do
    timed_choices attention $precision --block transformer --length 512 --batch-size 16
  done
  said "ours against the best of cuBLASLt, or the usual kernels: $line"
  return $bad
}

# Ranks with a GPU each. In a rehearsal, two ranks on the CPU.
stage_several() {
  local ranks=$((gpus < 8 ? gpus : 8)) devices line="" bad=0 name ms kind
  if [ -n "$no_gpu" ]; then ranks=2; fi
  if [ "$ranks" -lt 2 ]; then said "there is one GPU; the stage test has ranks that share it"; return 69; fi
  if ! command -v mpirun >/dev/null; then said "mpirun is not here"; return 69; fi
  if ! built mlp_single mlp_dp mlp_ddp mlp_lab >/dev/null; then said "the programs were not built"; return 1; fi
  . "$root/scripts/mpi_env.sh"
  # A run's options by its name; the batch is that of one GPU, shared.
  local shape=(--dim "$dim" --depth "$depth" --steps 25 --log-every 25)
  devices=$(seq -s , 0 $((ranks - 1)) | sed "s/[0-9]*/$device:&/g")
  if [ "$device" = cpu ]; then devices=cpu,cpu; fi
  local ddp=(mpirun -np "$ranks" "$build/mlp_ddp" --device "$device" "${shape[@]}")
  # measured <name> <command...>: its step, and its account's lines about backward and communication.
  measured() {
    : >"$work/run"
    ms=$(ms_of "${@:2}")
    if [ -z "$ms" ]; then bad=1; fi
    row several "{\"run\": \"$1\", \"ranks\": $ranks, \"ms\": ${ms:-null}, \
\"account\": $(quoted "$(grep -E 'error:|^  (backward|communication|waiting) ' "$work/run" | head -n 4)")}"
    line+=", $1 ${ms:-?}"
  }
  measured "one GPU" "$build/mlp_single" --device "$device" "${shape[@]}" --update separate
  measured "mlp_dp" "$build/mlp_dp" --devices "$devices" "${shape[@]}"
  measured "ddp" "${ddp[@]}"
  measured "ddp, no overlap" "${ddp[@]}" --no-overlap
  measured "ddp, graph" "${ddp[@]}" --graph
  for name in factor zero1 zero2; do measured "$name" "${ddp[@]}" --scheme "$name"; done
  measured "ddp, 64 rows a GPU" "${ddp[@]}" --global-batch-size $((64 * ranks))
  measured "ddp over MPI" "${ddp[@]}" --transport mpi
  for kind in auto mpi; do
    timeout --kill-after=5 90 mpirun -np "$ranks" "$build/mlp_lab" all-reduce --device "$device" --transport $kind \
      >"$work/sums" || bad=1
    cat "$work/sums"
    row several "{\"run\": \"all-reduce, $kind\", \"ranks\": $ranks, \"said\": $(quoted "$(cat "$work/sums")")}"
  done
  said "ms a step on $ranks ranks: ${line#, }"
  return $bad
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
