#!/usr/bin/env bash
# clang_tidy.sh <source root> <build folder> <folder...>: runs clang-tidy over the sources in the
# folders that this build compiles, joined into a single source, so that their headers, which are
# most of the work, are read once. A source that passed is skipped until a source, a header or a
# flag changes.
set -euo pipefail
. "$(dirname "$0")/tool.sh"
find_clang_tool clang-tidy

root=$(cd "$1" && pwd -P)
build=$(cd "$2" && pwd -P)
shift 2
folders="($(IFS='|'; echo "$*"))"
cd "$build"

# Sources are compiled separately or included in one of CMake's unity files. clang-tidy 14 does not
# support this CUDA version.
compiled=$(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' compile_commands.json | grep -v '\.cu$')
sources=$({ grep -v '/Unity/' <<<"$compiled"
            grep '/Unity/' <<<"$compiled" | xargs -r sed -n 's/^#include "\(.*\)"$/\1/p'; } |
  grep -E "^$root/$folders/" | sort -u || true)
if [ -z "$sources" ]; then
  echo "skipped: this build compiles no source in $*"
  exit 77
fi

# Every flag that any of them is compiled with; the value of a string macro does not matter.
mapfile -t flags < <(
  grep -E "^ *\"command\": .* -c ($root|$build)/$folders/[^ ]*\.(cpp|cxx)" compile_commands.json |
    grep -oE -- '(-isystem |-I|-D|-std=|-march=)[^ ]+' |
    sed -E 's/^(-D.*)=\\.*/\1="text"/' | sort -u | sed 's/^-isystem /-isystem\n/')

# tidy <name>: checks $name.cpp, unless it already passed unchanged.
tidy() {
  local all=$build/lint/tidy/$1.cpp hash text
  hash=$({ printf '%s\n' "$tool" "${flags[@]}"
           cat "$root/.clang-tidy" "$all"
           find "$root/src" "$root/apps" -name '*.h' -print0 | sort -z | xargs -0 cat; } | sha256sum)
  if [ "$(cat "$all.stamp" 2>/dev/null)" = "$hash" ]; then return; fi
  if text=$("$tool" --config-file="$root/.clang-tidy" --quiet "$all" -- "${flags[@]}" 2>&1); then
    echo "$hash" >"$all.stamp"
  else
    # clang-tidy ignores #line: translates its line numbers to those of the sources.
    awk -v all="$all" '
      NR == FNR { if (/^#line 1 /) { source[NR] = $3; gsub(/"/, "", source[NR]) } next }
      index($0, all ":") == 1 {
        rest = substr($0, length(all) + 2)
        line = rest + 0
        sub(/^[0-9]+/, "", rest)
        for (at = line; !(at in source); at--) { }
        $0 = source[at] ":" line - at rest
      }
      !/ warnings generated\.$/' "$all" - <<<"$text"
    failed=1
  fi
}

# check <name> <source...>: checks them as one source; each program's main gets its own name.
check() {
  local name=$1 source
  shift
  for source; do
    if grep -q '^int main(' "$source"; then
      printf '#undef main\n#define main main_of_%s  // NOLINT\n' "$(basename "$source" .cpp)"
    fi
    printf '#line 1 "%s"\n' "$source"
    cat "$source"
  done >"$build/lint/tidy/$name.cpp"
  tidy "$name"
}

# Replacements for missing libraries define the same names, so they are checked separately.
mkdir -p "$build/lint/tidy"
failed=0
name=${*//\//_}
name=${name// /_}
mapfile -t absent < <(grep '_absent\.cpp$' <<<"$sources")
mapfile -t others < <(grep -v '_absent\.cpp$' <<<"$sources")
check "$name" "${others[@]}"
if [ ${#absent[@]} -gt 0 ]; then check "${name}_absent" "${absent[@]}"; fi
exit $failed
