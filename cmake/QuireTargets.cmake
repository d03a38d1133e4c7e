# SPDX-License-Identifier: Apache-2.0
# The functions with which each folder declares its library, tests and fuzz targets.

set(QUIRE_WARNINGS -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # gcc 12 and 13 warn of overlaps inside std::string's own operator+ (gcc bug 105651).
  list(APPEND QUIRE_WARNINGS -Wno-restrict)
endif()
# Arithmetic is a contract: no contraction, no fast math; fused multiply-adds are written out.
set(QUIRE_ARITHMETIC -ffp-contract=off -fno-fast-math)

set(QUIRE_SANITIZE_FLAGS "")
if(QUIRE_SANITIZE)
  set(QUIRE_SANITIZE_FLAGS -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_BUILD_FUZZERS)
  list(APPEND QUIRE_SANITIZE_FLAGS -fsanitize=fuzzer-no-link)
endif()

find_package(Threads REQUIRED)
if(QUIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

function(quire_compile_options target)
  target_compile_options(${target} PRIVATE ${QUIRE_WARNINGS} ${QUIRE_ARITHMETIC} ${QUIRE_SANITIZE_FLAGS})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
endfunction()

# quire_library(base SOURCES a.cc b.cc DEPS quire_x PkgConfig::Y): the static library quire_<folder>.
function(quire_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  set(target quire_${folder})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    quire_compile_options(${target})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS} Threads::Threads)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS} Threads::Threads)
  endif()
endfunction()

# quire_test(base SOURCES a_test.cc DEPS ... [LABELS core]): the executable quire_<name>_tests, one ctest entry.
# The label "core" marks what the sanitizer builds run.
function(quire_test name)
  if(NOT QUIRE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;ENV" ${ARGN})
  set(target quire_${name}_tests)
  add_executable(${target} ${ARG_SOURCES})
  quire_compile_options(${target})
  target_compile_definitions(${target} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${target} --gtest_brief=1)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "${ARG_ENV}")
endfunction()

# quire_fuzzer(gguf SOURCES gguf_fuzz.cc DEPS quire_weights): quire_fuzz_<name>, and a bounded run over its seeds
# (fuzz/seeds/<name>) as the ctest entry fuzz_<name>.
set(QUIRE_FUZZ_SECONDS 30 CACHE STRING "Seconds that each fuzz target runs in the tests")
function(quire_fuzzer name)
  if(NOT QUIRE_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "MAX_LEN" "SOURCES;DEPS" ${ARGN})
  set(target quire_fuzz_${name})
  add_executable(${target} ${ARG_SOURCES})
  quire_compile_options(${target})
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
  if(NOT ARG_MAX_LEN)
    set(ARG_MAX_LEN 65536)
  endif()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/corpus/${name})
  add_test(NAME fuzz_${name}
           COMMAND ${target} -max_total_time=${QUIRE_FUZZ_SECONDS} -timeout=20 -rss_limit_mb=2048 -max_len=${ARG_MAX_LEN}
                   -print_final_stats=1 ${CMAKE_BINARY_DIR}/corpus/${name} ${CMAKE_SOURCE_DIR}/fuzz/seeds/${name})
  set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz TIMEOUT 300)
endfunction()
