#!/usr/bin/env bash
# scripts/fuzz.sh [RUNS [TARGET...]]: fuzzes the readers of users' files (idx, npy, safetensors,
# config, card, study, peaks) with libFuzzer under the address and undefined-behavior sanitizers,
# RUNS executions each (default 10000000), one target per core. They start from the named inputs in
# tests/fuzz/seeds/TARGET and from the folder TARGET of tests/fuzz/corpus.tar.gz, to which inputs are
# added that reached new code; every test run replays both. Findings are in build/fuzz/findings.
# Prints a line per target and fails on a finding.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
runs=${1:-10000000}
shift || true
targets=("$@")
if [ ${#targets[@]} = 0 ]; then targets=(idx npy safetensors config card study peaks); fi
build=$root/build/fuzz
findings=$build/findings
if ! command -v clang++-14 >/dev/null || ! ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a >/dev/null 2>&1; then
  echo "fuzz: error: clang 14 with libFuzzer is not installed; apt-get install clang-14 libclang-rt-14-dev" >&2
  exit 69
fi

mkdir -p "$findings"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link -DBARESTEP_SANITIZE=address,undefined \
  -DBARESTEP_FUZZ=ON -DBARESTEP_LINT=OFF -DBARESTEP_CUDA=OFF -DBARESTEP_NCCL=OFF -DBARESTEP_MPI=OFF \
  -DCMAKE_UNITY_BUILD=ON >"$build/configure.log" || { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --target $(printf 'fuzz_%s ' "${targets[@]}") >"$build/build.log" ||
  { cat "$build/build.log"; exit 1; }

# The same inputs always produce the same file.
pack() {  # <folder> <file>
  find "$1" -type f -printf '%P\0' | sort -z |
    tar -C "$1" --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644 --null --files-from=- -cf - |
    gzip -9n >"$2.new"
  mv "$2.new" "$2"
}

fuzz() {  # <target>
  local target=$1 log=$build/$1.log status=0
  local corpus=$build/corpus/$1 grown=$build/grown/$1 seeds=$root/tests/fuzz/seeds/$1
  mkdir -p "$corpus" "$grown"
  "$build/fuzz_$target" -runs="$runs" -max_len=4096 -timeout=10 -rss_limit_mb=4096 -verbosity=1 \
    -print_final_stats=1 -artifact_prefix="$findings/$target-" "$grown" "$corpus" "$seeds" >"$log" 2>&1 || status=$?
  # The smallest set of inputs with the same coverage.
  "$build/fuzz_$target" -merge=1 "$corpus" "$grown" >>"$log" 2>&1 || true
  awk -v target="$target" -v status=$status '
    /^stat::number_of_executed_units/ { runs = $2 }
    /cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") covered = $(i + 1) }
    /^stat::average_exec_per_sec/ { rate = $2 }
    END { printf "%-12s %10d executions, %d a second, %d edges, %s\n", target, runs, rate, covered,
          status == 0 ? "no finding" : "a FINDING" }' "$log"
  return $status
}
export -f fuzz
export root build runs findings
packed=$root/tests/fuzz/corpus.tar.gz status=0
rm -rf "$build/corpus"
mkdir -p "$build/corpus"
tar -xzf "$packed" -C "$build/corpus"
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}' || status=1
pack "$build/corpus" "$packed"
exit $status
