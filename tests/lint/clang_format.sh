#!/usr/bin/env bash
# clang_format.sh <source root>: fails if clang-format would change a source.
set -euo pipefail
. "$(dirname "$0")/tool.sh"
find_clang_tool clang-format

cd "$1"
mapfile -d '' folders < <(find src apps tests bench web -maxdepth 0 -print0 2>/dev/null)
find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.js' \) -print0 |
  xargs -0 -r "$tool" --dry-run -Werror
