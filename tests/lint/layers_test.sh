#!/usr/bin/env bash
# Plants each violation that layers.sh checks into a small clean tree and requires that it is
# reported, alone; allowed code must not be reported.
set -euo pipefail
layers=$(cd "$(dirname "$0")" && pwd)/layers.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

clean_tree() {
  rm -rf "$work/tree"
  mkdir -p "$work"/tree/{apps,tests/core} "$work"/tree/src/{core,data,options,kernels,model,profiler,train,parallel,session,lab}
  cd "$work/tree"
  local folder
  for folder in src/{core,data,options,kernels,model,profiler,train,parallel,session,lab} apps tests/core; do
    touch "$folder/CMakeLists.txt"
  done
  printf '#pragma once\n#include <vector>\n' >src/core/ops.h
  echo 'add_library(core ops.cpp ../core/lone.cpp) # b.cpp' >src/core/CMakeLists.txt
  touch src/core/lone.cpp
  echo '#include "core/ops.h"' >src/core/ops.cpp
}

# plant <file> <line>: appends the line to the file, which is listed in CMake.
plant() {
  mkdir -p "$(dirname "$1")"
  [ -e "$1" ] || echo "add_library(x $(basename "$1"))" >>"$(dirname "$1")/CMakeLists.txt"
  echo "$2" >>"$1"
}

wrong() {
  echo "FAILED: $1"
  echo "$found" | sed 's/^/    /'
  failures=$((failures + 1))
}

forbidden() {  # <file> <line> <message>
  clean_tree
  plant "$1" "$2"
  if found=$("$layers" . 2>&1); then
    wrong "$1 with $2 was not found"
  elif [ "$(wc -l <<<"$found")" != 1 ] || [[ $found != *"$3"* ]]; then
    wrong "$1 with $2: asked for one line with '$3'"
  fi
}

allowed() {  # <file> <line>
  clean_tree
  plant "$1" "$2"
  found=$("$layers" . 2>&1) || wrong "$1 with $2 was refused"
}

# Layers.
forbidden src/core/a.h '#include "kernels/cpu/device.h"' 'src/core may not include kernels/'
forbidden src/core/a.cpp '#include "train/draft.h"' 'src/core may not include train/'
forbidden src/core/a.cpp '#include "data/dataset.h"' 'src/core may not include data/'
forbidden src/data/a.cpp '#include "train/step.h"' 'src/data may not include train/'
forbidden src/data/a.cpp '#include "kernels/pool.h"' 'src/data may not include kernels/'
forbidden src/kernels/a.cpp '#include "data/dataset.h"' 'src/kernels may not include data/'
forbidden src/options/a.cpp '#include "train/draft.h"' 'src/options may not include train/'
forbidden src/core/a.cpp '#include "options/options.h"' 'src/core may not include options/'
forbidden src/train/a.cpp '#include "options/options.h"' 'src/train may not include options/'
forbidden src/kernels/a.cpp '#include "train/draft.h"' 'src/kernels may not include train/'
forbidden src/kernels/a.cpp '# include "parallel/schemes/ddp.h"' 'src/kernels may not include parallel/'
forbidden src/profiler/a.h '#include "kernels/pool.h"' 'src/profiler may not include kernels/'
forbidden src/train/a.cpp '#include "kernels/pool.h"' 'src/train may not include kernels/'
forbidden src/train/a.cpp '#include "parallel/schemes/ddp.h"' 'src/train may not include parallel/'
forbidden src/parallel/a.cpp '#include "kernels/pool.h"' 'src/parallel may not include kernels/'
forbidden src/parallel/a.cpp '#include "profiler/x.h"' 'src/parallel may not include profiler/'
forbidden src/kernels/a.cpp '#include "pool.h"' 'of no layer'
forbidden src/extra/a.h '#pragma once' 'src/extra is not a layer'
allowed src/options/a.cpp '#include <nlohmann/json.hpp>'
allowed src/options/a.cpp '#include "core/ops.h"'
allowed src/lab/a.cpp '#include "options/options.h"'
allowed src/lab/a.cpp '#include <nlohmann/json.hpp>'
allowed src/lab/a.cpp '#include <spawn.h>'
allowed src/kernels/a.cpp '#include "core/ops.h"'
allowed src/data/a.cpp '#include "core/ops.h"'
allowed src/train/a.cpp '#include "data/dataset.h"'
allowed src/parallel/a.cpp '#include "train/draft.h"'
allowed src/lab/a.cpp '#include "profiler/x.h"'
allowed apps/a.cpp '#include "lab/x.h"'

# Rooms.
forbidden src/parallel/schemes/a.cpp '#include "parallel/comm/x.h"' 'src/parallel/schemes may not include parallel/comm/'
forbidden src/parallel/job/a.cpp '#include "parallel/comm/x.h"' 'src/parallel/job may not include parallel/comm/'
forbidden src/kernels/cpu/a.cpp '#include "kernels/cuda/x.h"' 'src/kernels/cpu may not include kernels/cuda/'
allowed src/parallel/comm/a.cpp '#include "parallel/job/x.h"'
allowed src/parallel/comm/a.cpp '#include "parallel/comm/x.h"'
allowed src/kernels/cuda/a.cpp '#include "kernels/formulas.h"'
allowed src/kernels/make_device.cpp '#include "kernels/cuda/x.h"'

# Libraries.
forbidden src/core/a.h '#include <fmt/core.h>' 'stands only in sources'
forbidden src/core/a.h '#include <unistd.h>' 'stands only in sources'
forbidden src/train/a.cpp '#include <nlohmann/json.hpp>' 'stands only in sources of core/, data/, options/, profiler/ and lab/'
forbidden src/lab/a.h '#include <nlohmann/json.hpp>' 'stands only in sources of core/, data/, options/, profiler/ and lab/'
allowed src/data/a.cpp '#include <nlohmann/json.hpp>'
allowed src/data/a.cpp '#include <zlib.h>'
allowed src/session/a.cpp '#include "parallel/x.h"'
forbidden src/parallel/a.cpp '#include "session/x.h"' 'may not include session/'
forbidden src/session/a.cpp '#include "lab/x.h"' 'may not include lab/'
forbidden src/data/a.cpp '#include <xxhash.h>' 'stands only in sources of core/'
forbidden src/lab/a.h '#include <spawn.h>' 'stands only in sources'
forbidden src/kernels/a.cpp '#include <zlib.h>' 'stands only in sources of core/'
forbidden src/lab/a.cpp '#include <md4c-html.h>' 'stands only in sources of lab/report/'
forbidden src/kernels/a.cpp '#include <xxhash.h>' 'stands only in sources of core/'
forbidden src/train/a.cpp '#include <CLI/CLI.hpp>' 'stands only in apps/'
forbidden src/kernels/pool.cpp '#include <cuda_runtime.h>' 'stands only in kernels/cuda/'
forbidden src/kernels/pool.cpp '#include <cublas_v2.h>' 'stands only in kernels/cuda/'
forbidden src/kernels/cuda/a.cpp '#include <nccl.h>' 'stands only in parallel/comm/nccl_*'
forbidden src/parallel/comm/nccl_a.cpp '#include <mpi.h>' 'stands only in parallel/comm/mpi_*'
forbidden src/profiler/a.cpp '#include <cupti.h>' 'stands only in profiler/cupti_*'
forbidden src/profiler/a.cpp '#include <nvml.h>' 'stands only in profiler/nvml_*'
forbidden src/kernels/cpu/product_cblas.cpp '#include <oneapi/dnnl/dnnl.hpp>' 'product_onednn*'
forbidden src/kernels/cpu/product_onednn.cpp '#include <cblas.h>' 'product_cblas*'
forbidden src/kernels/a.cpp '#include "cblas.h"' 'product_cblas*'
forbidden src/kernels/a.cpp '#include <boost/any.hpp>' 'of no layer and no library'
forbidden apps/a.cpp '#include <mpi.h>' 'stands only in parallel/comm/mpi_*'
allowed src/core/a.cpp '#include <fmt/core.h>'
allowed src/core/a.cpp '#include <unistd.h>'
allowed src/kernels/cuda/a.cu '#include <cuda_runtime.h>'
allowed src/kernels/cpu/product_cblas.cpp '#include <cblas.h>'
allowed src/parallel/comm/mpi_a.cpp '#include <mpi.h>'
allowed apps/argument_parser.cpp '#include <CLI/CLI.hpp>'
forbidden apps/a.cpp '#include <CLI/CLI.hpp>' 'stands only in apps/argument_parser.cpp'

# Conditions, lists.
forbidden src/kernels/a.cpp '#ifdef BARESTEP_CUDA' '#if stands only in'
forbidden src/core/a.h '#  if 1' '#if stands only in'
forbidden src/kernels/cuda/a.cuh '#if 1' '#if stands only in'
allowed src/kernels/host_device.h '#if defined(__CUDACC__)'
allowed apps/a.cpp '// #if'
plant() { echo "$2" >"$1"; }  # from here on, CMake does not list the file
forbidden src/core/b.cpp '// new' 'src/core/b.cpp: in no CMakeLists.txt'
forbidden tests/core/b_test.cpp '// new' 'tests/core/b_test.cpp: in no CMakeLists.txt'
forbidden src/kernels/b.cu '// new' 'src/kernels/b.cu: in no CMakeLists.txt'

[ $failures = 0 ] || exit 1
echo "every planted violation was found"
