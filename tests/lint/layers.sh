#!/usr/bin/env bash
# layers.sh <source root>: fails, with one line each, if a source breaks these project rules:
#
#   which layer may include which, and which library's headers may be used where (the tables below);
#   no #if in src/, except in kernels/host_device.h;
#   every source is listed in a CMakeLists.txt.
set -euo pipefail
cd "$1"

mapfile -t folders < <(find src apps tests bench -maxdepth 0 2>/dev/null)
mapfile -t sources < <(find "${folders[@]}" -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort)

includes() {
  awk '
    BEGIN {
      # layer: the layers whose headers it may include
      may["core"] = "core"
      may["data"] = "core data"
      may["options"] = "core options"
      may["kernels"] = "core kernels"
      may["model"] = "core model"
      may["profiler"] = "core data model train profiler"
      may["train"] = "core data model train"
      may["parallel"] = "core options data model train parallel"
      may["session"] = "core options data kernels model profiler train parallel session"
      may["lab"] = "core options data kernels model profiler train parallel session lab"
      # part of a layer: the other parts of that layer whose headers it may include
      room_may["parallel/schemes"] = ""
      room_may["parallel/comm"] = "parallel/job"
      room_may["parallel/job"] = ""
      room_may["kernels/cpu"] = ""
      room_may["kernels/cuda"] = ""
      room_may["lab/report"] = ""
      room_may["lab/predict"] = "lab/report"
      room_may["lab/study"] = "lab/report lab/predict"
      room_may["lab/experiments"] = "lab/report lab/predict lab/study"
      room_may["lab/sheets"] = "lab/report lab/predict lab/study lab/experiments"
      room_may["lab/class"] = "lab/report lab/predict lab/study lab/experiments lab/sheets"
      room_may["lab/explain"] = "lab/report lab/predict lab/study"

      # headers of a library, the files that may use them, and a description of those files
      library("^(cuda|cublas|curand|cooperative_groups|cub/|thrust/|nv/)",
              "^src/(kernels/cuda/|parallel/comm/nccl_|profiler/cupti_)",
              "kernels/cuda/, parallel/comm/nccl_*, profiler/cupti_*")
      library("^nvtx3/", "^src/kernels/cuda/", "kernels/cuda/")
      library("^cupti", "^src/profiler/cupti_", "profiler/cupti_*")
      library("^nvml", "^src/profiler/nvml_", "profiler/nvml_*")
      library("^mpi\\.h", "^src/parallel/comm/mpi_", "parallel/comm/mpi_*")
      library("^nccl", "^src/parallel/comm/nccl_", "parallel/comm/nccl_*")
      library("^(oneapi/dnnl/|dnnl)", "^src/kernels/cpu/product_onednn", "kernels/cpu/product_onednn*")
      library("^hwloc", "^src/kernels/cpu/topology_hwloc", "kernels/cpu/topology_hwloc*")
      library("^(cblas|openblas)", "^src/kernels/cpu/product_cblas", "kernels/cpu/product_cblas*")
      library("^CLI/", "^apps/argument_parser\\.cpp$", "apps/argument_parser.cpp")
      library("^fmt/", "(\\.cpp$|^apps/)", "sources")
      library("^nlohmann/", "^(src/(core|data|options|profiler|session|lab)/.*\\.cpp$|src/profiler/trace\\.h$|apps/)",
              "sources of core/, data/, options/, profiler/ and lab/, profiler/trace.h, and apps/")
      library("^(zlib|zconf)", "^src/(core|data|lab)/.*\\.cpp$", "sources of core/, data/ and lab/")
      library("^md4c", "^src/lab/report/.*\\.cpp$", "sources of lab/report/")
      library("^xxhash", "^src/core/.*\\.cpp$", "sources of core/")
      library("^[a-z0-9_]+$", ".", "")  # the standard library
      # system headers
      library("^(sys/|linux/|(unistd|fcntl|sched|pthread|dlfcn|signal|spawn|poll|glob|fnmatch|immintrin|cxxabi)\\.h)",
              "(\\.cpp$|\\.cu$|^apps/|^src/kernels/)", "sources")
    }
    function library(headers, places, words) {
      count++
      library_headers[count] = headers
      library_places[count] = places
      library_words[count] = words
    }
    function report(text) { print FILENAME ":" FNR ": " text }
    FNR == 1 {
      split(FILENAME, part, "/")
      layer = part[1] == "src" ? part[2] : ""
      if (part[1] == "src" && !(layer in may)) report("src/" layer " is not a layer")
    }
    layer != "" && FILENAME != "src/kernels/host_device.h" &&
        /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else)([^a-z]|$)/ {
      report("#if stands only in src/kernels/host_device.h; let CMake choose a file")
    }
    /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
      match($0, /[<"][^>"]*/)
      header = substr($0, RSTART + 1, RLENGTH - 1)
      quoted = substr($0, RSTART, 1) == "\""
      split(header, path, "/")
      if (quoted && layer != "" && path[1] in may) {
        if (index(" " may[layer] " ", " " path[1] " ") == 0)
          report("src/" layer " may not include " path[1] "/")
        room = layer "/" part[3]
        other = path[1] "/" path[2]
        if (path[1] == layer && room in room_may && other in room_may && other != room &&
            index(" " room_may[room] " ", " " other " ") == 0)
          report("src/" room " may not include " other "/")
        next
      }
      if (quoted && layer == "") next
      for (i = 1; i <= count; i++) {
        if (header !~ library_headers[i]) continue
        if (FILENAME !~ library_places[i]) report("<" header "> stands only in " library_words[i])
        next
      }
      report("\"" header "\" is of no layer and no library that src/ and apps/ may use")
    }
  ' "$@"
}

check_lists() {
  local list
  comm -23 <(printf '%s\n' "$@" | sort) <(
    find "${folders[@]}" -name CMakeLists.txt | while read -r list; do
      if grep -q '^file(GLOB sources CONFIGURE_DEPENDS \*\.cpp)$' "$list"; then ls "$(dirname "$list")"/*.cpp; fi
      sed 's/#.*//' "$list" | tr -s ' ()\t' '\n' | grep -E '^[^$].*\.(cpp|cu)$' |
        sed "s|^|$(dirname "$list")/|"
    done | xargs -r realpath -m --relative-to=. | sort -u
  ) | sed 's/$/: in no CMakeLists.txt/'
}

of() { printf '%s\n' "${sources[@]}" | grep -E "$1" || true; }

violations=$(
  mapfile -t own < <(of '^(src|apps)/')
  mapfile -t compiled < <(of '\.(cpp|cu)$')
  if [ ${#own[@]} -gt 0 ]; then includes "${own[@]}"; fi
  check_lists "${compiled[@]}"
)
if [ -n "$violations" ]; then
  echo "$violations"
  exit 1
fi
echo "${#sources[@]} sources keep the rules"
