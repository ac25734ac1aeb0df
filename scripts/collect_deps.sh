#!/usr/bin/env bash
# scripts/collect_deps.sh: copies what barestep needs for its build and tests from the packages
# installed here into .deps/, a few megabytes. A copy of the source tree with that folder builds on
# a machine that has a compiler, CMake and Ninja but no network; CUDA also needs nvcc. CMake uses
# .deps/ before anything else; remove it to build with this machine's packages again.
#
# Headers and sources work on any machine. The libraries are for this machine's architecture: zlib,
# which is linked statically, md4c, and Google Benchmark, which may be missing.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
new=$root/.deps.new

if ! command -v dpkg-query >/dev/null; then
  echo "collect_deps: error: tool 'dpkg-query': not found; run this on Debian or Ubuntu and copy" \
    ".deps/ from there" >&2
  exit 69
fi

# collect <package> <pattern> <prefix> <folder>: copies the files of a package whose full paths
# match the pattern to .deps/<folder>/, each under its path without the prefix.
collect() {
  local package=$1 pattern=$2 prefix=$3 folder=$4 file to count=0
  while read -r file; do
    to=$new/$folder/$(sed -E "s|^$prefix||" <<<"$file")
    mkdir -p "$(dirname "$to")"
    cp -L "$file" "$to"
    count=$((count + 1))
  done < <(dpkg-query -L "$package" 2>/dev/null | grep -xE "$pattern" || true)
  if [ "$count" = 0 ]; then
    echo "collect_deps: error: package '$package': not installed; run scripts/setup.sh --tests" >&2
    exit 69
  fi
}

trap 'rm -rf "$new"' EXIT
rm -rf "$new"
header='/usr/include/.*\.(h|hpp)'
packages=(libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev zlib1g-dev libmd4c-dev libbenchmark-dev)
for package in "${packages[@]}"; do
  collect "$package" "$header" '/usr/include/([^/]*-linux-gnu[^/]*/)?' include
done
collect zlib1g-dev '.*/libz\.a' '.*/' lib
for package in libmd4c0 libmd4c-html0; do
  collect "$package" '.*/libmd4c[^/]*\.so\.0' '.*/' lib
done
collect libbenchmark1debian '.*/libbenchmark\.so\.[0-9.]+' '.*/' lib
# The library's soname, which programs look for when they start.
mv "$new"/lib/libbenchmark.so.* "$new/lib/libbenchmark.so.1debian"
collect googletest '/usr/src/googletest/[^/]*/(src|include)/.*\.(cc|h)' /usr/src/googletest/ googletest
dpkg-query -W "${packages[@]}" googletest >"$new/versions"

rm -rf "$root/.deps"
mv "$new" "$root/.deps"
du -sh "$root/.deps" | sed -E 's|^(\S+)\s.*|.deps/ holds \1:|'
cat "$root/.deps/versions"
