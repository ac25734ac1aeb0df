# What is installed besides the programs and what they read: scripts, pages for man, completions for
# shells; and the Debian package of all of it, which `cpack` makes.

# The programs write these texts about themselves.
set(folder ${PROJECT_BINARY_DIR}/texts)
file(MAKE_DIRECTORY ${folder})
set(texts "")
# barestep_text(<file> <program> <options>)
macro(barestep_text file program)
  add_custom_command(OUTPUT ${folder}/${file}
    # Open MPI does not free all its allocations.
    COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0
      $<TARGET_FILE:${program}> ${ARGN} > ${folder}/${file}
    DEPENDS ${program} COMMENT "Writing ${file}" VERBATIM)
  list(APPEND texts ${folder}/${file})
endmacro()

# Debian's zsh looks for completions of packages in another folder than for those of /usr/local.
set(zsh share/zsh/site-functions)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(zsh share/zsh/vendor-completions)
endif()
foreach(program mlp_single mlp_dp mlp_ddp mlp_lab)
  barestep_text(${program}.1 ${program} --man)
  barestep_text(${program} ${program} --completion bash)
  barestep_text(_${program} ${program} --completion zsh)
  install(FILES ${folder}/${program}.1 DESTINATION share/man/man1)
  install(FILES ${folder}/${program} DESTINATION share/bash-completion/completions)
  install(FILES ${folder}/_${program} DESTINATION ${zsh})
endforeach()
add_custom_target(barestep_texts ALL DEPENDS ${texts})
if(TARGET barestep_web)
  add_dependencies(barestep_texts barestep_web)
endif()

install(FILES scripts/mpi_env.sh DESTINATION share/barestep/scripts)
install(PROGRAMS scripts/mlp_ddp.sbatch DESTINATION share/barestep/scripts)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION share/doc/barestep)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the authors of barestep <barestep@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains models in parallel and accounts for every step")
set(CPACK_PACKAGE_DESCRIPTION
"Training of multi-layer perceptrons and transformer blocks on the CPU or on bare CUDA,
on one device, several devices or many ranks, with an account of every microsecond and
byte of a step.")
if(BARESTEP_NATIVE)
  string(APPEND CPACK_PACKAGE_DESCRIPTION
    "\nCompiled for the processor of the machine that built it; the preset package makes one for all.")
endif()
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(BARESTEP_HAVE_MPI)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)
endif()
include(CPack)
