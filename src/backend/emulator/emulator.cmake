# SPDX-License-Identifier: Apache-2.0
# The emulator and the host build of the kernels; QUIRE_EMULATOR_OBJECTS becomes part of quire_backend.
option(QUIRE_EMULATOR "Include --device emulator, which runs GPU kernels on the CPU; tests need it" ON)
if(NOT QUIRE_EMULATOR)
  if(QUIRE_BUILD_TESTS)
    message(FATAL_ERROR "The tests need the emulator: set QUIRE_EMULATOR to ON, or QUIRE_BUILD_TESTS to OFF")
  endif()
  set(QUIRE_EMULATOR_OBJECTS ${CMAKE_CURRENT_LIST_DIR}/emulator_absent.cc)
  return()
endif()
file(GLOB QUIRE_EMULATOR_KERNELS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cc)
set(listed "")
foreach(source ${QUIRE_EMULATOR_KERNELS})
  get_filename_component(name ${source} NAME_WE)
  string(APPEND listed " X(${name})")
endforeach()
# The entries of the kernel table: X(name) for each file, which ends with EMULATOR_KERNELS(name).
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/emulator_kernel_files.h
     CONTENT "#define QUIRE_KERNEL_FILES(X)${listed}\n")
add_library(quire_emulator_core OBJECT
  ${CMAKE_CURRENT_LIST_DIR}/emulator.cc ${CMAKE_CURRENT_LIST_DIR}/emulator_device.cc
  ${CMAKE_CURRENT_LIST_DIR}/fiber.cc ${CMAKE_CURRENT_LIST_DIR}/kernel_table.cc ${CMAKE_CURRENT_LIST_DIR}/worker.cc)
# A test of Metal's texts brings a table of its own instead of this file.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernel_table.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
add_library(quire_emulator_kernels OBJECT ${QUIRE_EMULATOR_KERNELS})

# Options for host builds of kernels. They are optimised even in sanitizer builds. The dialect allows pointer casts within
# an address space (hence -fno-strict-aliasing) and unused parameters.
set(kernel_options -O2 -fno-strict-aliasing -Wno-unused-parameter -Wno-sign-compare)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kernel_options -ftree-vectorize -Wno-maybe-uninitialized)
elseif(QUIRE_SANITIZE MATCHES "address")
  # Kernels compute addresses in buffers that a launch left out (null), but do not access them.
  list(APPEND kernel_options -fno-sanitize=pointer-overflow)
endif()
set(QUIRE_KERNEL_OPTIONS ${kernel_options} CACHE INTERNAL "Options of host builds of kernel text")
foreach(target quire_emulator_core quire_emulator_kernels)
  quire_unity(${target})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # see quire_join
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  quire_compile_options(${target})
  if(QUIRE_SANITIZE STREQUAL "thread")
    # ThreadSanitizer does not know the fibers' stacks. A threadgroup runs on one thread, and the mutex of the pool that
    # distributes threadgroups over threads is still checked, by the interceptors.
    target_compile_options(${target} PRIVATE -fno-sanitize=thread)
  endif()
endforeach()
if(NOT QUIRE_SANITIZE)  # as one file they would be the last one to end in a release
  set_target_properties(quire_emulator_kernels PROPERTIES UNITY_BUILD_BATCH_SIZE 7)
endif()
target_compile_options(quire_emulator_core PRIVATE -O2)
target_include_directories(quire_emulator_core PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
target_compile_options(quire_emulator_kernels PRIVATE ${QUIRE_KERNEL_OPTIONS})
if(QUIRE_ALL_COLD)
  quire_cold(quire_emulator_core)
  quire_cold(quire_emulator_kernels)
endif()
set(QUIRE_EMULATOR_OBJECTS $<TARGET_OBJECTS:quire_emulator_core> $<TARGET_OBJECTS:quire_emulator_kernels>)
