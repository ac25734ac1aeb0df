# Compiler flags: one INTERFACE target that every target of ours links.
add_library(barestep_flags INTERFACE)
target_include_directories(barestep_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
# C++ gets its standard as a compile feature, CUDA as a flag: CMake 3.25 does not know nvcc's flag for
# C++20, and stops where CUDA inherits the feature. Its kernels call core's constexpr functions.
target_compile_features(barestep_flags INTERFACE cxx_std_20)
target_compile_options(barestep_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>")
# Profilers show lines of kernels. They are most of a kernel's bytes, so packages go without them.
set(cuda_size -lineinfo)
if(BARESTEP_SHARED)
  set(cuda_size $<$<VERSION_GREATER_EQUAL:$<CUDA_COMPILER_VERSION>,12.8>:--compress-mode=size>)
  # Functions of one library do not replace each other's.
  target_compile_options(barestep_flags INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-fno-semantic-interposition>)
endif()
target_compile_options(barestep_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_size}>")

# Numerics: a multiply-add is fused where the source says fma() and nowhere else, so that results do
# not depend on the compiler. errno and traps of math functions are not used; without them loops with
# sqrt vectorize. -ffast-math is never used.
target_compile_options(barestep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Wdeprecated-copy-dtor
  -ffp-contract=off -fno-math-errno -fno-trapping-math>)

# For what reads options, writes reports or stands for a GPU, where no time is spent: it compiles in two
# thirds of the time or less. Sanitized builds, which are built with -O1, do not optimize it at all.
add_library(barestep_cold_flags INTERFACE)
target_compile_options(barestep_cold_flags INTERFACE $<IF:$<CONFIG:Release>,-O1,-O0>)

# For what parses files, or builds, checks and queues steps: it runs once, or once for each op of a step.
add_library(barestep_warm_flags INTERFACE)
target_compile_options(barestep_warm_flags INTERFACE $<$<CONFIG:Release>:-O1>)

# barestep_hot(<source...>): their loops run over every number of a tensor, so they are optimized in full in a
# target with the flags above, and somewhat in debug builds, whose tests would take minutes.
function(barestep_hot)
  set_source_files_properties(${ARGN} PROPERTIES
    COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>;$<$<CONFIG:Debug>:-O1>")
endfunction()

# GCC looks for memory to free from 128 MB on, again and again, in sources that need several times that; it
# is to begin at 512 MB, here in KB.
target_compile_options(barestep_flags INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)

option(BARESTEP_NATIVE "Compile for the processor of this machine" ON)
if(BARESTEP_NATIVE)
  target_compile_options(barestep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()

option(BARESTEP_WERROR "Warnings are errors" OFF)
if(BARESTEP_WERROR)
  target_compile_options(barestep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

set(BARESTEP_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
if(BARESTEP_SANITIZE)
  # Instrumented code makes GCC see uninitialized values in the standard library where there are none.
  # Clang would compare the types of functions that are loaded at run time with those of their library,
  # whose headers we do without. UBSan's checks of each access for null pointers, types and sizes of objects
  # make builds slower; the address sanitizer reports an access that such an error leads astray.
  target_compile_options(barestep_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:\
-fsanitize=${BARESTEP_SANITIZE};-fno-sanitize=null,object-size,vptr;-fno-omit-frame-pointer;\
-fno-sanitize-recover=all;\
$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;$<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>>")
  target_link_options(barestep_flags INTERFACE -fsanitize=${BARESTEP_SANITIZE})
endif()

# Fill fresh arenas with NaN, so that a read before the first write shows.
option(BARESTEP_POISON "Poison fresh device memory with NaN" OFF)
target_compile_definitions(barestep_flags INTERFACE
  BARESTEP_POISON=$<BOOL:${BARESTEP_POISON}>)

# Builds in several trees, and builds from nothing, take their objects from ccache where it is there. It
# has to be told that precompiled headers are as good as others; what an object depends on it takes from
# the compiler, which is sooner known than by preprocessing.
find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
  ${CCACHE})
foreach(language CXX CUDA)
  if(CCACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${launcher})
  endif()
endforeach()
