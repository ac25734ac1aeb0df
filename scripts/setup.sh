#!/usr/bin/env bash
# scripts/setup.sh [--demo | --tests]: installs the Debian packages that barestep's build uses and that are missing;
# with --demo only those that it cannot do without, with --tests also those of its tests and benchmarks. Prints
# little; running it again does nothing. Needs root or sudo only if something is missing.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd -P)
. "$root/scripts/phase.sh"

needed=(g++ cmake ninja-build zlib1g-dev libfmt-dev nlohmann-json3-dev libcli11-dev libxxhash-dev
  libmd4c-dev libmd4c-html0-dev)
used=(ccache libopenblas-pthread-dev libdnnl-dev libhwloc-dev libopenmpi-dev openmpi-bin)
# clang-tidy needs omp.h of libomp-dev; sanitizers get function names from llvm's symbolizer.
tested=(libgtest-dev libgmock-dev libbenchmark-dev clang libclang-rt-dev lld llvm clang-format clang-tidy libomp-dev)
case "${1:-}" in
  --demo) packages=("${needed[@]}") ;;
  "") packages=("${needed[@]}" "${used[@]}") ;;
  --tests) packages=("${needed[@]}" "${used[@]}" "${tested[@]}") ;;
  *)
    echo "setup: error: option '$1': not known; take --demo, --tests or nothing" >&2
    exit 2
    ;;
esac

# Sets `missing` to the packages that are not installed.
look() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/^installed //p') || true
  mapfile -t missing < <(printf '%s\n' "${packages[@]}" | grep -vxF -e "$installed")
}

# Without apt, continues if the tools are installed. CMake reports missing libraries when it
# configures.
without_apt() {
  local tool
  echo "setup: apt-get is not here; barestep needs these packages, as Debian names them:" >&2
  echo "  ${packages[*]}" >&2
  for tool in c++ cmake ninja; do
    if ! command -v "$tool" >/dev/null; then
      echo "setup: error: tool '$tool': not found; install what is named above" >&2
      exit 69
    fi
  done
  exit 0
}

install() {
  "${as_root[@]}" apt-get install --yes --quiet \
    --no-install-recommends -o DPkg::Lock::Timeout=120 "${missing[@]}"
}

# The package lists are fetched only if the install fails with the existing ones. A package source
# that does not respond does not matter if the packages come from another one.
update_and_install() {
  "${as_root[@]}" apt-get update --quiet -o DPkg::Lock::Timeout=120 || true
  install
}

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || without_apt
look
if [ ${#missing[@]} = 0 ]; then exit 0; fi

as_root=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: error: packages '${missing[*]}': not installed, and this user is not root" \
      "and has no sudo; install them" >&2
    exit 69
  fi
  sudo -v
  as_root=(sudo "${as_root[@]}")
fi

if install >"$logs/setup.log" 2>&1 </dev/null; then exit 0; fi
if logged setup update_and_install; then exit 0; fi
cause=$(grep '^E: ' "$logs/setup.log" | head -n 1 | cut -c 4-)
echo "setup: error: packages '${missing[*]}': ${cause:-apt-get failed}; see $logs/setup.log" >&2
exit 69
