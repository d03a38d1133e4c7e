# SPDX-License-Identifier: Apache-2.0
# The functions with which each folder declares its library, tests and fuzz targets.

# A newer compiler has new warnings, which must not stop someone who only wants to run quire.
option(QUIRE_STRICT "Show the compiler's warnings and stop at them; off where quire is only built, not changed" ON)
set(QUIRE_WARNINGS -w)
if(QUIRE_STRICT)
  set(QUIRE_WARNINGS -Wall -Wextra -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # gcc 12 and 13 warn of overlaps inside std::string's own operator+ (gcc bug 105651).
  list(APPEND QUIRE_WARNINGS -Wno-restrict)
endif()
# Arithmetic is a contract: no contraction, no fast math; fused multiply-adds are written out.
set(QUIRE_ARITHMETIC -ffp-contract=off -fno-fast-math)

set(QUIRE_SANITIZE_FLAGS "")
set(QUIRE_INLINE_CHECKS "")  # for what tests spend their time in
if(QUIRE_SANITIZE)
  set(QUIRE_SANITIZE_FLAGS -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
  if(QUIRE_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Checks as calls compile in half the time. What null, object-size and vptr find, AddressSanitizer finds as well.
    set(QUIRE_INLINE_CHECKS -fno-sanitize-address-outline-instrumentation)
    list(APPEND QUIRE_SANITIZE_FLAGS -fsanitize-address-outline-instrumentation -fno-sanitize=null,object-size,vptr)
  endif()
endif()
# What fuzz targets steer by: in libraries, which they run, but not in kernels and tests.
set(QUIRE_FUZZ_FLAGS "")
if(QUIRE_BUILD_FUZZERS)
  set(QUIRE_FUZZ_FLAGS -fsanitize=fuzzer-no-link)
endif()

# Some 70 programs of tests are linked with the same libraries, for which lld takes a fraction of the time of GNU ld.
if((QUIRE_BUILD_TESTS OR QUIRE_BUILD_FUZZERS) AND NOT APPLE)
  find_program(QUIRE_LLD ld.lld DOC "The linker of a build with tests, if it is there")
  if(QUIRE_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()

find_package(Threads REQUIRED)
if(QUIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# gcc collects garbage whenever its heap has doubled. With these limits it seldom does, which saves 5% of the time of a
# build; a large file then needs about 1 GiB.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(QUIRE_COMPILER_MEMORY --param=ggc-min-expand=1000 --param=ggc-min-heapsize=1000000)
endif()

function(quire_compile_options target)
  target_compile_options(${target} PRIVATE ${QUIRE_WARNINGS} ${QUIRE_COMPILER_MEMORY} ${QUIRE_ARITHMETIC}
                         ${QUIRE_SANITIZE_FLAGS})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
endfunction()

# What arithmetic and loops over tensors take is in the kernels, which are compiled with -O3. For the rest of a release -O2
# is as quick, and compiles in five sixths of the time; gcc then needs to be told to vectorise as freely as with -O3.
set(QUIRE_RELEASE_OPTIMISATION "")
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT QUIRE_SANITIZE)
  set(QUIRE_RELEASE_OPTIMISATION -O2)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND QUIRE_RELEASE_OPTIMISATION -fvect-cost-model=dynamic)
  endif()
endif()

# What ThreadSanitizer's build runs are a few tests with threads: but for the kernels, nothing is worth optimising.
set(QUIRE_ALL_COLD OFF)
if(QUIRE_SANITIZE STREQUAL "thread")
  set(QUIRE_ALL_COLD ON)
endif()

# What takes little time to run is optimised less, since that halves the time of its compilation: tests in a release, tests
# and libraries that are COLD in sanitizer builds. A further argument is the option for a release in place of -Og.
function(quire_cold target)
  if(QUIRE_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    set(level -Og ${ARGN})
    list(GET level -1 level)
    target_compile_options(${target} PRIVATE ${level})
  endif()
endfunction()

# Headers that most files include, compiled once for libraries and once for tests; with gcc, which needs seconds to
# precompile and reads them quickly, for tests alone. Off unless asked for, since a file that lacks an #include of its own
# builds all the same.
option(QUIRE_PRECOMPILE "Precompile the headers that most files include" OFF)
if(QUIRE_PRECOMPILE)
  set(common_headers <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstdio> <cstdlib> <cstring> <filesystem>
      <functional> <limits> <map> <memory> <mutex> <optional> <random> <set> <span> <string> <string_view> <thread>
      <unordered_map> <utility> <variant> <vector>)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers.cc CONTENT "int main() {}\n")
  set(QUIRE_PRECOMPILED "")  # the targets of such headers
  set(QUIRE_PRECOMPILE_FLAGS "")
  if(QUIRE_BUILD_TESTS)
    list(APPEND QUIRE_PRECOMPILED quire_test_headers)
    add_executable(quire_test_headers ${CMAKE_BINARY_DIR}/headers.cc)
    target_link_libraries(quire_test_headers PRIVATE GTest::gmock)
    target_precompile_headers(quire_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
    quire_cold(quire_test_headers)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    list(APPEND QUIRE_PRECOMPILED quire_library_headers quire_cold_headers)
    set(QUIRE_PRECOMPILE_FLAGS "SHELL:-Xclang -fno-pch-timestamp")  # as ccache wants it
    add_library(quire_library_headers OBJECT ${CMAKE_BINARY_DIR}/headers.cc)
    add_library(quire_cold_headers OBJECT ${CMAKE_BINARY_DIR}/headers.cc)
    target_compile_options(quire_library_headers PRIVATE ${QUIRE_FUZZ_FLAGS})
    target_compile_options(quire_cold_headers PRIVATE ${QUIRE_FUZZ_FLAGS})
    quire_cold(quire_cold_headers)
  endif()
  foreach(target ${QUIRE_PRECOMPILED})
    quire_compile_options(${target})
    target_compile_options(${target} PRIVATE ${QUIRE_PRECOMPILE_FLAGS})
    target_precompile_headers(${target} PRIVATE ${common_headers})
  endforeach()
endif()
function(quire_precompiled target headers)
  if(headers IN_LIST QUIRE_PRECOMPILED)
    target_compile_options(${target} PRIVATE ${QUIRE_PRECOMPILE_FLAGS})
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()

# Compiles the sources of a library as one file, or those of several libraries (see QUIRE_JOINT_GROUPS), which takes
# half the processor time: headers are read once, and what they make of templates is compiled once. Off unless asked for: a changed file is compiled with its neighbours, and
# a missing #include stays hidden. Two files of a target must not give the same name to things in their unnamed namespaces;
# the compiler calls that a redefinition, in Unity/unity_*.cxx.
option(QUIRE_UNITY "Compile several files of a target at once" OFF)
set(QUIRE_UNITY_FILES 40)      # at most so many as one, so that the compiler needs about 1 GiB of memory
set(QUIRE_UNITY_TEST_FILES 8)  # tests' names are alike more often
# quire_unity(target [a.cc ...]): applies the option to a target, except to the files that are named.
function(quire_unity target)
  if(QUIRE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${QUIRE_UNITY_FILES})
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Options of a library's target. `cold`: optimised less; further arguments are those of quire_cold.
function(quire_library_options target cold)
  quire_compile_options(${target})
  target_compile_options(${target} PRIVATE ${QUIRE_FUZZ_FLAGS})
  if(cold)
    quire_cold(${target} ${ARGN})
    quire_precompiled(${target} quire_cold_headers)
  else()
    target_compile_options(${target} PRIVATE ${QUIRE_RELEASE_OPTIMISATION})
    quire_precompiled(${target} quire_library_headers)
  endif()
endfunction()

# What QUIRE_UNITY compiles as one file in a release: libraries, or the LIGHT part of one ("weights_light"). They share the
# headers and the code of templates that both use, which saves a fifth of the time. A group has one level of optimisation,
# and takes the compiler half a minute and 2 GiB of memory at most. What quire::llm needs is not in a group with the rest.
set(QUIRE_JOINT_GROUPS core engine words files steps texts server net front)
set(QUIRE_JOINT_core base ops weights sampling)
set(QUIRE_JOINT_engine scheduler engine)
set(QUIRE_JOINT_words text grammar)
set(QUIRE_JOINT_files weights_light model_config text_light)
set(QUIRE_JOINT_steps metrics distributed kv model llm)
set(QUIRE_JOINT_texts jinja grammar_light)
set(QUIRE_JOINT_server markup telemetry api_handler api)
set(QUIRE_JOINT_net asio http bench_core bench_client)
set(QUIRE_JOINT_front hub cli bench)
if(NOT QUIRE_GPU)  # which makes it long enough to be alone
  list(APPEND QUIRE_JOINT_core backend)
endif()

# quire_joint_group(kv group): which group a library, or its LIGHT part, is in; none: it is compiled by itself.
function(quire_joint_group name result)
  set(${result} "" PARENT_SCOPE)
  if(QUIRE_UNITY AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT QUIRE_SANITIZE)
    foreach(group ${QUIRE_JOINT_GROUPS})
      if(name IN_LIST QUIRE_JOINT_${group})
        set(${result} quire_joint_${group} PARENT_SCOPE)
      endif()
    endforeach()
  endif()
endfunction()

# quire_join(group cold sources...): adds sources to the archive of a group; `cold` is that of quire_library_options.
function(quire_join group cold)
  set(sources ${ARGN})
  list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/$]")
  if(NOT TARGET ${group})
    add_library(${group} STATIC)
    set_target_properties(${group} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    quire_library_options(${group} ${cold})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # gcc takes all files but the one that includes them for headers, in which unnamed namespaces are a mistake.
      target_compile_options(${group} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
  target_sources(${group} PRIVATE ${sources})
endfunction()

# quire_library(base SOURCES a.cc b.cc DEPS quire_x PkgConfig::Y [SEPARATE c.cc] [LIGHT d.cc] [DEFINES E=1] [COLD] [ONCE] [SELDOM]):
# the static library quire_<folder>. SEPARATE names further sources, which are like each other by design or have options of
# their own, and so cannot be compiled as one file. ONCE: all sources run once per step or less, and are optimised less in a
# release. SELDOM: all of them run once per request, model or start of the program, and are hardly optimised; LIGHT names
# further sources that do. COLD: tests spend little time in the library, and sanitizer builds optimise it less (see
# quire_cold). Arithmetic that ends in a logit is in neither LIGHT nor ONCE.
function(quire_library folder)
  cmake_parse_arguments(ARG "COLD;ONCE;SELDOM" "" "SOURCES;SEPARATE;LIGHT;DEPS;DEFINES" ${ARGN})
  set(target quire_${folder})
  if(QUIRE_ALL_COLD)
    set(light ON)
    set(cold ON)
  elseif(QUIRE_SANITIZE)
    set(light ${ARG_COLD})
    set(cold ${ARG_COLD})
  else()
    set(light ON)
    set(cold OFF)
    if(ARG_ONCE)
      set(cold ON -O1)
    elseif(ARG_SELDOM)
      set(cold ON)
    endif()
  endif()
  set(deps ${ARG_DEPS} Threads::Threads)
  quire_joint_group(${folder} group)
  if(NOT ARG_SOURCES)
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
    target_link_libraries(${target} INTERFACE ${deps})
    return()
  elseif(group)
    quire_join(${group} "${cold}" ${ARG_SOURCES})
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${group} ${deps})
    target_compile_definitions(${group} PRIVATE ${ARG_DEFINES})
    set(part ${target}_separate)
    if(ARG_SEPARATE)
      add_library(${part} STATIC ${ARG_SEPARATE})
      quire_library_options(${part} ${cold})
      target_link_libraries(${part} PRIVATE ${target})
      target_link_libraries(${target} INTERFACE ${part})
    endif()
  else()
    add_library(${target} STATIC ${ARG_SOURCES} ${ARG_SEPARATE})
    quire_unity(${target} ${ARG_SEPARATE})
    quire_library_options(${target} ${cold})
    target_link_libraries(${target} PUBLIC ${deps})
    target_compile_definitions(${target} PRIVATE ${ARG_DEFINES})
  endif()
  quire_joint_group(${folder}_light light_group)
  if(ARG_LIGHT AND light_group)
    quire_join(${light_group} "${light}" ${ARG_LIGHT})
    target_link_libraries(${light_group} PRIVATE ${target})
    target_link_libraries(${target} INTERFACE ${light_group})
  elseif(ARG_LIGHT)
    add_library(${target}_light OBJECT ${ARG_LIGHT})
    quire_unity(${target}_light)
    quire_library_options(${target}_light ${light})
    target_link_libraries(${target}_light PRIVATE ${deps})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_light>)
  endif()
  if(group)  # the archives of a library call each other
    target_link_libraries(${group} PRIVATE ${target})
  endif()
endfunction()

# The sanitizer builds want the core tests alone, under names of their own, so that one ctest run can hold every build.
option(QUIRE_CORE_TESTS_ONLY "Leave out the tests that are not labelled core" OFF)
set(QUIRE_TEST_PREFIX "" CACHE STRING "Goes in front of each test's name (for example asan_), and is a label too")
add_custom_target(quire_sanitized COMMENT "What the sanitizer builds are for: core tests and fuzz targets")

# quire_test(base SOURCES a_test.cc DEPS ... [LABELS core] [THREADED filter [THREADED_IN b_test.cc ...]] [OPTIMISED] [COST s]
# [PROGRAM all]): the executable quire_<name>_tests, one ctest entry. The label "core" marks what the sanitizer builds run; the
# target quire_sanitized builds those. ThreadSanitizer's build has only the tests that start threads: THREADED, with gtest's
# filter for them. THREADED_IN names the files that have such tests, if some have none; the others are not compiled there.
# OPTIMISED: the test's own code takes long, and sanitizer builds optimise it a little. COST: seconds that it takes in a
# release, if they are many; ctest starts the longest tests first. PROGRAM: all entries that name the same one are the
# executable quire_<program>_tests, so that their headers are read once; its main() takes the files of an entry
# (tests/models/main.cc).
function(quire_test name)
  if(NOT QUIRE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "OPTIMISED" "TIMEOUT;THREADED;COST;PROGRAM" "SOURCES;THREADED_IN;DEPS;LABELS;ENV" ${ARGN})
  if(QUIRE_CORE_TESTS_ONLY AND NOT "core" IN_LIST ARG_LABELS)
    return()
  endif()
  if(QUIRE_SANITIZE STREQUAL "thread")
    if(NOT ARG_THREADED)
      return()
    endif()
    list(APPEND ARG_ENV GTEST_FILTER=${ARG_THREADED})
    if(ARG_THREADED_IN)
      list(FILTER ARG_SOURCES EXCLUDE REGEX "_test\\.cc$")
      list(APPEND ARG_SOURCES ${ARG_THREADED_IN})
    endif()
  endif()
  set(target quire_${name}_tests)
  set(files "")
  if(ARG_PROGRAM)
    set(target quire_${ARG_PROGRAM}_tests)
    set(files ${ARG_SOURCES})
    list(FILTER files INCLUDE REGEX "_test\\.cc$")
    list(PREPEND files --tests-of)
  endif()
  if(NOT TARGET ${target})
    add_executable(${target})
    quire_unity(${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${QUIRE_UNITY_TEST_FILES})
    quire_compile_options(${target})
    target_compile_definitions(${target} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    if(NOT ARG_OPTIMISED OR NOT QUIRE_SANITIZE OR QUIRE_ALL_COLD)
      quire_cold(${target})
      quire_precompiled(${target} quire_test_headers)
    endif()
  endif()
  target_sources(${target} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  if("core" IN_LIST ARG_LABELS)
    add_dependencies(quire_sanitized ${target})
  endif()
  if(QUIRE_TEST_PREFIX)
    string(REGEX REPLACE "_$" "" prefix_label ${QUIRE_TEST_PREFIX})
    list(APPEND ARG_LABELS ${prefix_label})
  endif()
  set(test ${QUIRE_TEST_PREFIX}${name})
  add_test(NAME ${test} COMMAND ${target} --gtest_brief=1 ${files})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(QUIRE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc 13 places 64-byte vectors on AddressSanitizer's second stack without their alignment (gcc bug 110027).
    list(APPEND ARG_ENV ASAN_OPTIONS=detect_stack_use_after_return=0)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 1)
  elseif(QUIRE_SANITIZE MATCHES "address")
    math(EXPR ARG_COST "2 * ${ARG_COST}")
  elseif(QUIRE_SANITIZE)
    set(ARG_COST 8)  # few of its tests have threads
  endif()
  set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST} LABELS "${ARG_LABELS}"
                       ENVIRONMENT "${ARG_ENV}")
  if(QUIRE_SANITIZE STREQUAL "thread")  # or the filter fits no test
    set_tests_properties(${test} PROPERTIES FAIL_REGULAR_EXPRESSION "\\] 0 tests from")
  endif()
endfunction()

# quire_fuzzer(gguf SOURCES gguf_fuzz.cc DEPS quire_weights): quire_fuzz_<name>, and a bounded run over its seeds
# (fuzz/seeds/<name>) as the ctest entry fuzz_<name>.
set(QUIRE_FUZZ_SECONDS 10 CACHE STRING "Seconds that each fuzz target runs in the tests")
function(quire_fuzzer name)
  if(NOT QUIRE_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "MAX_LEN" "SOURCES;DEPS" ${ARGN})
  set(target quire_fuzz_${name})
  add_executable(${target} ${ARG_SOURCES})
  quire_compile_options(${target})
  target_compile_options(${target} PRIVATE ${QUIRE_FUZZ_FLAGS})
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  add_dependencies(quire_sanitized ${target})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
  if(NOT ARG_MAX_LEN)
    set(ARG_MAX_LEN 65536)
  endif()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/corpus/${name})
  add_test(NAME fuzz_${name}
           COMMAND ${target} -max_total_time=${QUIRE_FUZZ_SECONDS} -timeout=20 -rss_limit_mb=2048 -max_len=${ARG_MAX_LEN}
                   -print_final_stats=1 ${CMAKE_BINARY_DIR}/corpus/${name} ${CMAKE_SOURCE_DIR}/fuzz/seeds/${name})
  set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz TIMEOUT 300 COST ${QUIRE_FUZZ_SECONDS})
endfunction()
