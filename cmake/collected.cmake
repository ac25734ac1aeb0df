# Targets for what scripts/collect_deps.sh copied to .deps/, under the names that the packages give
# them. Google Benchmark may be missing.
set(deps ${PROJECT_SOURCE_DIR}/.deps)

foreach(target fmt::fmt CLI11::CLI11 nlohmann_json::nlohmann_json)
  add_library(${target} INTERFACE IMPORTED)
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${deps}/include)
endforeach()
set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY)

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/xxhash.cpp
  CONTENT "#define XXH_STATIC_LINKING_ONLY\n#define XXH_IMPLEMENTATION\n#include <xxhash.h>\n")
add_library(xxhash STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/xxhash.cpp)
target_include_directories(xxhash SYSTEM PUBLIC ${deps}/include)
add_library(barestep::xxhash ALIAS xxhash)

add_library(ZLIB::ZLIB STATIC IMPORTED)
set_target_properties(ZLIB::ZLIB PROPERTIES IMPORTED_LOCATION ${deps}/lib/libz.a
  INTERFACE_INCLUDE_DIRECTORIES ${deps}/include)

# Older dynamic tags, because programs find the second library through the first one.
add_library(barestep::md4c SHARED IMPORTED)
set_target_properties(barestep::md4c PROPERTIES IMPORTED_LOCATION ${deps}/lib/libmd4c-html.so.0
  INTERFACE_INCLUDE_DIRECTORIES ${deps}/include
  INTERFACE_LINK_OPTIONS "LINKER:--disable-new-dtags,-rpath-link,${deps}/lib")

if(EXISTS ${deps}/lib/libbenchmark.so.1debian)
  add_library(benchmark::benchmark SHARED IMPORTED)
  set_target_properties(benchmark::benchmark PROPERTIES
    IMPORTED_LOCATION ${deps}/lib/libbenchmark.so.1debian
    INTERFACE_INCLUDE_DIRECTORIES ${deps}/include)
endif()

# barestep_googletest(<name> <source> <folder> [targets to link])
function(barestep_googletest name source folder)
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${deps}/googletest/${folder}/src/${source})
  target_include_directories(${name} SYSTEM PUBLIC ${deps}/googletest/${folder}/include
    PRIVATE ${deps}/googletest/${folder})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC Threads::Threads ${ARGN})
  add_library(GTest::${name} ALIAS ${name})
endfunction()
barestep_googletest(gtest gtest-all.cc googletest)
barestep_googletest(gtest_main gtest_main.cc googletest gtest)
barestep_googletest(gmock gmock-all.cc googlemock gtest)
