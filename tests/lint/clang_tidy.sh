#!/usr/bin/env bash
# clang_tidy.sh <source root> <build folder> <folder...>: runs clang-tidy over the sources in the
# folders that this build compiles, joined into few sources, since reading the headers takes 8 s
# each time. A joined source that passed is skipped until a source, a header or a flag changes.
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

# own_names <source...>: what they define in anonymous namespaces, functions with the types of their
# arguments as far as these are on the first line. Aliases such as Json may be repeated.
own_names() {
  awk '/^namespace \{$/ { inside = 1 } /^}  \/\/ namespace$/ { inside = 0 }
       inside && /^[A-Za-z[]/ && !/^(namespace|template|using|static_assert)/' "$@" |
    sed -nE 's/^enum class/enum/; s/^(struct|class|enum) (\w+).*/\2/p; t
             s/^[^(=]*[ &*>](\w+)\(/\1(/; t function
             s/^[^(={;]*[ &*>](\w+)(\[\w*\])*( =|\{|;).*/\1/p; b
             : function; s/\).*/)/; s/ \w+([,)]|$)/\1/g; p' | sort -u
}

# Two folders may use the same name in anonymous namespaces. So each goes to the first joined source
# that has none of its names. Replacements for missing libraries define public names again, and are
# checked separately.
mkdir -p "$build/lint/tidy"
failed=0
name=${*//\//_}
name=${name// /_}
mapfile -t absent < <(grep '_absent\.cpp$' <<<"$sources")
others=$(grep -v '_absent\.cpp$' <<<"$sources")
joined=() names=()
while read -r folder; do
  mapfile -t own < <(grep "^$folder/" <<<"$others")
  folder_names=$(own_names "${own[@]}")
  at=0
  while [ -n "$(comm -12 - <(echo "${names[at]:-}") <<<"$folder_names")" ]; do at=$((at + 1)); done
  names[at]=$(sort -m - <(echo "${names[at]:-}") <<<"$folder_names")
  joined[at]+=$(printf '%s\n' "${own[@]}")$'\n'
done < <(sed -E "s,^($root/(src/)?[^/]*)/.*,\1," <<<"$others" | uniq)
for at in "${!joined[@]}"; do
  mapfile -t own < <(grep . <<<"${joined[at]}")
  check "$name$at" "${own[@]}"
done
if [ ${#absent[@]} -gt 0 ]; then check "${name}_absent" "${absent[@]}"; fi
exit $failed
