# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` installs of the program, and the packages that cpack makes of it: a Debian package and a tarball.
include(GNUInstallDirs)

install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)

# The program itself prints manual pages and completions, when it is installed, so that they always match it.
set(printed ${CMAKE_BINARY_DIR}/printed)
install(CODE "
  file(REMOVE_RECURSE \"${printed}\")
  file(MAKE_DIRECTORY \"${printed}\")
  execute_process(COMMAND \"$<TARGET_FILE:quire>\" man --output-dir \"${printed}/man\" COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND \"$<TARGET_FILE:quire>\" completions \${shell} OUTPUT_FILE \"${printed}/\${shell}\"
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()" COMPONENT program)
install(DIRECTORY ${printed}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
install(FILES ${printed}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME quire
        COMPONENT program)
install(FILES ${printed}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _quire COMPONENT program)
install(FILES ${printed}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME quire.fish
        COMPONENT program)

install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program FILES_MATCHING PATTERN "*.md"
        PATTERN guides EXCLUDE PATTERN notes EXCLUDE PATTERN img EXCLUDE)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};quire;program;/")
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "quire contributors")
set(CPACK_PACKAGE_CONTACT "quire contributors <contributors@quire.invalid>" CACHE STRING "The packages' maintainer")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM inference server with a paged KV cache")
set(CPACK_SYSTEM_NAME ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
# Files and folders in packages have the usual modes whatever the builder's umask is.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
# The unit, the settings in /etc and what Debian's policy asks for.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/packaging/stage.cmake)
set(CPACK_QUIRE_SOURCE_DIR ${CMAKE_SOURCE_DIR})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "\
quire serves language models over an API like OpenAI's, and runs them from the
command line. Its answer to a request is the same bits whatever else is
running. It needs no Python, and runs on CPUs and on NVIDIA GPUs.")
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libzmq5, openmpi-bin")  # --kv-events-config loads the first, ranks the library of the other
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(script postinst prerm postrm conffiles)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/packaging/debian/${script})
endforeach()
include(CPack)
