# Finds the packages barestep is built with.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)

find_path(BARESTEP_xxhash_INCLUDE xxhash.h REQUIRED)
find_library(BARESTEP_xxhash_LIBRARY xxhash REQUIRED)
add_library(barestep::xxhash UNKNOWN IMPORTED)
set_target_properties(barestep::xxhash PROPERTIES
  IMPORTED_LOCATION ${BARESTEP_xxhash_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${BARESTEP_xxhash_INCLUDE})
