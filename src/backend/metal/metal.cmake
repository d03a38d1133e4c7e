# SPDX-License-Identifier: Apache-2.0
# The Metal driver; QUIRE_METAL_SOURCES becomes part of quire_backend. Without Metal it is a stub that says so.
#
# scripts/lib.sh (ensure_metal_cpp) fetches the headers of metal-cpp; the repository has no copy of them.
set(QUIRE_METAL_CPP ${CMAKE_SOURCE_DIR}/build/metal-cpp CACHE PATH "Folder with metal-cpp's Foundation and Metal headers")
set(QUIRE_METAL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/metal_absent.cc)
if(APPLE AND CMAKE_SYSTEM_PROCESSOR STREQUAL "arm64")
  if(EXISTS ${QUIRE_METAL_CPP}/Metal/Metal.hpp)
    add_library(quire_metal OBJECT
      ${CMAKE_CURRENT_LIST_DIR}/metal_cores_mac.cc ${CMAKE_CURRENT_LIST_DIR}/metal_device.cc
      ${CMAKE_CURRENT_LIST_DIR}/metal_memory.cc ${CMAKE_CURRENT_LIST_DIR}/metal_pipelines.cc)
    quire_compile_options(quire_metal)
    target_include_directories(quire_metal SYSTEM PRIVATE ${QUIRE_METAL_CPP})
    target_link_libraries(quire_metal PUBLIC quire_base)
    set(QUIRE_METAL_SOURCES $<TARGET_OBJECTS:quire_metal>)
    # The target quire_backend does not exist yet when this file is read.
    cmake_language(DEFER CALL target_link_libraries quire_backend PUBLIC
                   "-framework CoreFoundation" "-framework Foundation" "-framework IOKit" "-framework Metal")
  else()
    message(WARNING "No metal-cpp in ${QUIRE_METAL_CPP}: this build will have no Metal. scripts/test and scripts/quickstart "
                    "fetch it, or set QUIRE_METAL_CPP.")
  endif()
endif()
