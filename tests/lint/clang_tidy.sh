#!/usr/bin/env bash
# clang_tidy.sh <source root> <build folder> <folder>: runs clang-tidy, on all cores, over the sources
# of the folder that this build compiles. A source that passed is passed over until something that
# clang-tidy reads of it changes: a stamp keeps the hash of all of it.
set -euo pipefail
. "$(dirname "$0")/tool.sh"
find_clang_tool clang-tidy

root=$(cd "$1" && pwd -P)
folder=$3
cd "$2"
mkdir -p lint
export root tool

check() {  # <source> <object>
  local source=$1 object=$2 stamp hash reads text
  stamp=lint/${object//\//_}.stamp
  # Ninja knows the files that the object was last compiled from.
  reads=$(ninja -t deps "$object" 2>/dev/null | sed -n 's/^    //p')
  hash=$({ grep -F -- "$object" compile_commands.json
           xargs -d '\n' cat <<<"$root/.clang-tidy"$'\n'"$source"$'\n'"$reads"; } | sha256sum)
  if [ -n "$reads" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then return; fi
  if text=$("$tool" -p . --quiet "$source" 2>&1); then
    echo "$hash" >"$stamp"
  else
    grep -v ' warnings generated\.$' <<<"$text"
    return 1
  fi
}
export -f check

# "source object" for each source of the compile commands, though several targets may compile it;
# clang-tidy 14 does not know this CUDA.
pairs=$(awk '/^ *"command":/ { object = match($0, / -o [^ ]+ -c /) ? substr($0, RSTART + 4, RLENGTH - 8) : "" }
             /^ *"file":/ { split($0, part, "\""); if (object != "" && part[4] !~ /\.cu$/) print part[4], object }' \
          compile_commands.json | grep "^$root/$folder/" | sort -u -k 1,1 || true)
if [ -z "$pairs" ]; then
  echo "skipped: this build compiles no source in $folder"
  exit 77
fi
xargs -n 2 -P "$(nproc)" bash -c 'check "$@"' check <<<"$pairs"
