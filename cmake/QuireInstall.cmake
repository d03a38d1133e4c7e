# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` adds to the program, so that find_package(quire) works: quire::quire, the shared library with
# the C API, and quire::llm, the C++ API as static libraries with their headers.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
if(NOT TARGET quire_shared)
  return()
endif()

# quire_closure(out target): our libraries that a target links, itself among them.
function(quire_closure out target)
  set(found ${${out}})
  if(target IN_LIST found)
    return()
  endif()
  list(APPEND found ${target})
  get_target_property(linked ${target} INTERFACE_LINK_LIBRARIES)
  foreach(library ${linked})
    if(library MATCHES "^quire_" AND TARGET ${library})
      quire_closure(found ${library})
    endif()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

set(libraries "")
quire_closure(libraries quire_llm)
foreach(library ${libraries} quire_shared)
  target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/quire>)
endforeach()
foreach(library ${libraries})
  target_compile_features(${library} INTERFACE cxx_std_20)
  string(REGEX REPLACE "^quire_" "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
endforeach()

# OPTIONAL: a build of the program alone can be installed, too.
install(TARGETS quire_shared EXPORT quireC OPTIONAL LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(FILES src/capi/quire.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire COMPONENT development)
install(TARGETS ${libraries} EXPORT quireCpp OPTIONAL ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
foreach(library ${libraries})
  get_target_property(folder ${library} SOURCE_DIR)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR}/src ${folder})
  string(REGEX REPLACE "/.*" "" folder ${folder})
  list(APPEND folders ${folder})
endforeach()
list(REMOVE_DUPLICATES folders)
foreach(folder ${folders})
  install(DIRECTORY src/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire COMPONENT development
          FILES_MATCHING PATTERN "*.h" PATTERN "testing" EXCLUDE PATTERN "test_*" EXCLUDE)
endforeach()

set(destination ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
install(EXPORT quireC NAMESPACE quire:: DESTINATION ${destination} COMPONENT development)
install(EXPORT quireCpp NAMESPACE quire:: DESTINATION ${destination} COMPONENT development)
configure_package_config_file(cmake/quireConfig.cmake.in ${CMAKE_BINARY_DIR}/quireConfig.cmake
                              INSTALL_DESTINATION ${destination})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/quireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/quireConfig.cmake ${CMAKE_BINARY_DIR}/quireConfigVersion.cmake
        DESTINATION ${destination} COMPONENT development)
