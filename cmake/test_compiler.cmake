# What tests are compiled with, where that is to be another compiler than the rest's. Included by tests/,
# and holds there and below. docs/decisions/0010-tests-are-compiled-by-clang.md says why.
set(BARESTEP_TEST_COMPILER "" CACHE STRING "A clang++ that compiles the tests; empty: as all else is")
if(NOT BARESTEP_TEST_COMPILER OR CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  return()
endif()

execute_process(COMMAND ${BARESTEP_TEST_COMPILER} --version
  OUTPUT_VARIABLE version ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT version MATCHES "clang version ([0-9.]+)")
  message(FATAL_ERROR "BARESTEP_TEST_COMPILER '${BARESTEP_TEST_COMPILER}': is no clang++; leave it empty")
endif()

# CMake has one compiler of a language. What it knows of it are variables, which it looks up where a target
# was made, and its own module sets those that follow from these.
set(CMAKE_CXX_COMPILER ${BARESTEP_TEST_COMPILER})
set(CMAKE_CXX_COMPILER_ID Clang)
set(CMAKE_CXX_COMPILER_VERSION ${CMAKE_MATCH_1})
set(CMAKE_CXX_COMPILER_FRONTEND_VARIANT GNU)
include(Compiler/Clang-CXX)
