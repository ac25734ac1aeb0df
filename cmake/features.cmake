# Settles what barestep is built with.
#
# The packages that it cannot do without come first, from .deps/ where scripts/collect_deps.sh made
# one. Then the features: each of BARESTEP_CUDA, _NCCL, _MPI, _ONEDNN, _CBLAS, _HWLOC, _WASM and _TESTS is
# AUTO (take it if it is there), ON (stop if it is not) or OFF. For each one this file sets
# BARESTEP_HAVE_<FEATURE>, for choosing sources, and, where that is true, provides the target to link:
#
#   CUDA    CUDA::cudart, CUDA::cublas, ... (FindCUDAToolkit); the language CUDA is enabled
#   NCCL    barestep::nccl                             MPI     MPI::MPI_CXX
#   ONEDNN  barestep::onednn                           CBLAS   barestep::cblas
#   HWLOC   barestep::hwloc
#   WASM    BARESTEP_WASM_COMPILER, a path           TESTS   GTest::gtest, GTest::gmock

# barestep_require(<package> <Debian package>)
macro(barestep_require package debian)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found; run scripts/setup.sh, or install ${debian}")
  endif()
endmacro()

barestep_require(Threads libc6-dev)
if(EXISTS ${PROJECT_SOURCE_DIR}/.deps)
  include(cmake/collected.cmake)
else()
  barestep_require(fmt libfmt-dev)
  barestep_require(ZLIB zlib1g-dev)
  barestep_require(CLI11 libcli11-dev)
  barestep_require(nlohmann_json nlohmann-json3-dev)
  find_package(benchmark QUIET)
endif()

# barestep_library(<name> <header> <library> [HINTS...]): an imported target barestep::<name>. Sets
# found, and where to the library's path.
macro(barestep_library name header library)
  find_path(BARESTEP_${name}_INCLUDE ${header} ${ARGN})
  find_library(BARESTEP_${name}_LIBRARY ${library} ${ARGN})
  mark_as_advanced(BARESTEP_${name}_INCLUDE BARESTEP_${name}_LIBRARY)
  if(BARESTEP_${name}_INCLUDE AND BARESTEP_${name}_LIBRARY)
    add_library(barestep::${name} UNKNOWN IMPORTED)
    set_target_properties(barestep::${name} PROPERTIES
      IMPORTED_LOCATION ${BARESTEP_${name}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${BARESTEP_${name}_INCLUDE})
    set(found ON)
    set(where ${BARESTEP_${name}_LIBRARY})
  endif()
endmacro()

# Sets `version` from the numbers of `#define <prefix>_MAJOR 1`, _MINOR and _PATCH in a header.
macro(barestep_version header prefix)
  set(version "")
  file(STRINGS ${header} lines REGEX "#define +${prefix}_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(part MAJOR MINOR PATCH)
    string(REGEX MATCH "${prefix}_${part} +([0-9]+)" ignored "${lines}")
    string(APPEND version ".${CMAKE_MATCH_1}")
  endforeach()
  string(SUBSTRING "${version}" 1 -1 version)
endmacro()

macro(barestep_xxhash)
  barestep_library(xxhash xxhash.h xxhash)
  if(NOT found)
    message(FATAL_ERROR "xxHash was not found; run scripts/setup.sh, or install libxxhash-dev")
  endif()
endmacro()
if(NOT TARGET barestep::xxhash)
  barestep_xxhash()
endif()

macro(barestep_md4c)
  barestep_library(md4c md4c-html.h md4c-html)
  if(NOT found)
    message(FATAL_ERROR "md4c was not found; run scripts/setup.sh, or install libmd4c-dev and libmd4c-html0-dev")
  endif()
endmacro()
if(NOT TARGET barestep::md4c)
  barestep_md4c()
endif()

# Sets CMAKE_CUDA_ARCHITECTURES where nobody chose: to those of the GPUs that are here if the build is for this
# machine, else to every major one, which takes six times as long to compile.
function(barestep_choose_cuda_architectures)
  if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
    return()
  endif()
  set(here "")
  if(NOT DEFINED BARESTEP_NATIVE OR BARESTEP_NATIVE)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE here ERROR_QUIET RESULT_VARIABLE status)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" here "${here}")
    string(REPLACE "." "" here "${here}")
    list(REMOVE_DUPLICATES here)
  endif()
  if(NOT here OR NOT status EQUAL 0)
    set(here all-major)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${here} CACHE STRING "GPU architectures that code is made for")
endfunction()

# Sets BARESTEP_CUDA_ARCHITECTURES_TEXT to what code is made for: "80, 90". What `all` and `all-major`
# stand for only this nvcc knows; CMake's own lists are of the versions that it knew.
function(barestep_cuda_architectures)
  set(list ${CMAKE_CUDA_ARCHITECTURES})
  if(list MATCHES "^(all|all-major)$")
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
    string(REGEX MATCHALL "[0-9]+" known "${known}")
    list(SORT known COMPARE NATURAL)
    list(GET known 0 oldest)
    if(list STREQUAL "all-major")
      list(FILTER known INCLUDE REGEX "^(${oldest}|[0-9]+0)$")
    endif()
    set(list ${known})
  endif()
  string(REGEX REPLACE "-(real|virtual)" "" list "${list}")
  list(REMOVE_DUPLICATES list)
  list(JOIN list ", " list)
  set(BARESTEP_CUDA_ARCHITECTURES_TEXT ${list} PARENT_SCOPE)
endfunction()

# CUDA 12 is the first whose nvcc compiles C++20. check_language tries the compiler in a project of
# its own, so that one that does not get on with this machine's g++ counts as missing under AUTO.
# -DCUDAToolkit_ROOT=<site-packages>/nvidia/cu13 takes the toolkit of the pip wheels: its libraries
# lie in lib, where nvcc does not look, and only under names with the version appended.
macro(barestep_find_CUDA)
  set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
  list(APPEND CMAKE_FIND_LIBRARY_SUFFIXES .so.13 .so.12)
  if(CUDAToolkit_ROOT)
    list(APPEND CMAKE_LIBRARY_PATH ${CUDAToolkit_ROOT}/lib)
    set(ENV{LIBRARY_PATH} "${CUDAToolkit_ROOT}/lib:$ENV{LIBRARY_PATH}")
  endif()
  # CMake 3.25.1 stops at toolkits without nvToolsExt, CUDA 13 for one, if a project asks for 3.25.
  set(minimum ${CMAKE_MINIMUM_REQUIRED_VERSION})
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(CUDAToolkit 12.0 QUIET)
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${minimum})
  set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})
  if(CUDAToolkit_FOUND)
    if(NOT DEFINED ENV{CUDACXX})
      set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    include(CheckLanguage)
    check_language(CUDA)
  elseif(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.0)
    set(why "CUDA ${CUDAToolkit_VERSION} has nvcc, but no headers or no runtime library")
  elseif(CUDAToolkit_VERSION)
    set(why "CUDA ${CUDAToolkit_VERSION} is too old")
  endif()
  if(CMAKE_CUDA_COMPILER)
    barestep_choose_cuda_architectures()
    enable_language(CUDA)
    barestep_cuda_architectures()
    set(found ON)
    set(version ${CMAKE_CUDA_COMPILER_VERSION})
    set(where "${CMAKE_CUDA_COMPILER}, for ${BARESTEP_CUDA_ARCHITECTURES_TEXT}")
  endif()
endmacro()

# NCCL 2.18 is the first that splits a communicator into those of groups.
macro(barestep_find_NCCL)
  if(BARESTEP_HAVE_CUDA)
    barestep_library(nccl nccl.h nccl HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_DIR})
    if(found)
      barestep_version(${BARESTEP_nccl_INCLUDE}/nccl.h NCCL)
      if(version VERSION_LESS 2.18)
        set(found OFF)
        set(why "NCCL ${version} is too old")
      endif()
    endif()
  else()
    set(why "it needs CUDA, which this build has not")
  endif()
endmacro()

macro(barestep_find_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface only: the C++ one was removed from MPI
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(found ON)
    set(version ${MPI_CXX_VERSION})
    set(where "${MPI_CXX_COMPILER}")
  endif()
endmacro()

# Not by find_package(dnnl): Debian's package file stops the configure where OpenCL is not installed.
# Version 3 has another interface. libgomp, which oneDNN runs on, is linked to tell it how many threads
# to take.
macro(barestep_find_ONEDNN)
  barestep_library(onednn oneapi/dnnl/dnnl.hpp dnnl)
  if(found)
    barestep_version(${BARESTEP_onednn_INCLUDE}/oneapi/dnnl/dnnl_version.h DNNL_VERSION)
    target_link_libraries(barestep::onednn INTERFACE gomp)
    if(NOT version MATCHES "^2\\.")
      set(found OFF)
      set(why "version ${version} has another interface than 2")
    endif()
  endif()
endmacro()

# OpenBLAS, and its pthread build: the OpenMP build ignores a thread count that another thread set.
# Debian keeps each build in a folder of its own name.
macro(barestep_find_CBLAS)
  barestep_library(cblas cblas.h openblas NO_DEFAULT_PATH
    PATHS /usr/include /usr/lib PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
  if(found)
    file(STRINGS ${BARESTEP_cblas_INCLUDE}/openblas_config.h version REGEX "OPENBLAS_VERSION")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${version}")
  endif()
endmacro()

# Version 1 has another interface.
macro(barestep_find_HWLOC)
  barestep_library(hwloc hwloc.h hwloc)
  if(found)
    file(STRINGS ${BARESTEP_hwloc_INCLUDE}/hwloc.h version REGEX "#define HWLOC_API_VERSION 0x")
    string(REGEX MATCH "0x[0-9a-f]+" version "${version}")
    math(EXPR minor "(${version} >> 8) & 255")
    math(EXPR version "${version} >> 16")
    if(NOT version EQUAL 2)
      set(found OFF)
      set(why "version ${version} has another interface than 2")
    endif()
    string(APPEND version ".${minor}")
  endif()
endmacro()

# A clang that compiles C++ for WebAssembly, for the page of `mlp_lab explore`. Programs that use
# exceptions need a library that knows them or, as here, none that throws (web/runtime.cpp).
set(BARESTEP_WASM_PACKAGES
  "clang-19, lld-19, libc++-19-dev-wasm32, libc++abi-19-dev-wasm32, libclang-rt-19-dev-wasm32 and wasi-libc")
macro(barestep_find_WASM)
  find_program(BARESTEP_WASM_COMPILER NAMES clang++-19)
  mark_as_advanced(BARESTEP_WASM_COMPILER)
  if(BARESTEP_WASM_COMPILER)
    set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/wasm_probe)
    file(WRITE ${probe}.cpp "#include <string>\nint main() { return std::string(9, 'x').size(); }\n")
    execute_process(COMMAND ${BARESTEP_WASM_COMPILER} --target=wasm32-wasi -fwasm-exceptions
      ${probe}.cpp -o ${probe}.wasm RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    if(result EQUAL 0)
      set(found ON)
      set(version 19)
      set(where ${BARESTEP_WASM_COMPILER})
    else()
      set(why "${BARESTEP_WASM_COMPILER} has no C++ library for WebAssembly")
    endif()
  endif()
endmacro()

macro(barestep_find_TESTS)
  if(NOT TARGET GTest::gmock)
    find_package(GTest QUIET)
  endif()
  if(TARGET GTest::gmock)
    set(found ON)
    set(version "${GTest_VERSION}")
    set(where "target barestep_tests")
  endif()
endmacro()

# barestep_settle(<feature> <what to install>): asks, looks, decides, and adds a line to the summary.
macro(barestep_settle feature install)
  set(BARESTEP_${feature} AUTO CACHE STRING "Use ${feature}: AUTO, ON or OFF")
  set_property(CACHE BARESTEP_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT BARESTEP_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR
      "BARESTEP_${feature} '${BARESTEP_${feature}}': not a choice; take AUTO, ON or OFF")
  endif()
  set(found OFF)
  set(version "")
  set(where "")
  set(why "it was not found")
  if(NOT BARESTEP_${feature} STREQUAL "OFF")
    cmake_language(CALL barestep_find_${feature})
  endif()
  if(BARESTEP_${feature} STREQUAL "ON" AND NOT found)
    message(FATAL_ERROR "BARESTEP_${feature} 'ON': ${why}; install ${install}, or take AUTO or OFF")
  endif()
  set(BARESTEP_HAVE_${feature} ${found})
  set(state "no")
  if(BARESTEP_${feature} STREQUAL "OFF")
    set(state "left out")
  elseif(found)
    set(state "${version}, ${where}")
  elseif(NOT why STREQUAL "it was not found")
    set(state "no: ${why}")
  endif()
  string(SUBSTRING "${feature}      " 0 7 name)
  string(SUBSTRING "${BARESTEP_${feature}}    " 0 5 asked)
  list(APPEND BARESTEP_SUMMARY "${name} ${asked} ${state}")
endmacro()

set(BARESTEP_SUMMARY "")
barestep_settle(CUDA "the CUDA toolkit, 12.0 or newer")
barestep_settle(NCCL "the NCCL library, 2.18 or newer, and its header")
barestep_settle(MPI "libopenmpi-dev and openmpi-bin")
barestep_settle(ONEDNN "libdnnl-dev")
barestep_settle(CBLAS "libopenblas-pthread-dev")
barestep_settle(HWLOC "libhwloc-dev")
barestep_settle(WASM ${BARESTEP_WASM_PACKAGES})
barestep_settle(TESTS "libgtest-dev and libgmock-dev")

# The last thing that the configure prints.
function(barestep_print_summary)
  message(STATUS "barestep ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} "
                 "${CMAKE_CXX_COMPILER_VERSION}")
  message(STATUS "  feature asked found")
  foreach(line IN LISTS BARESTEP_SUMMARY)
    message(STATUS "  ${line}")
  endforeach()
endfunction()
