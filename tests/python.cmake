# SPDX-License-Identifier: Apache-2.0
# Python tests as ctest entries: quire_pytest for a folder of pytest files, quire_python_test for a plain script.

# quire_pytest(pull ${CMAKE_CURRENT_SOURCE_DIR}/pull [TIMEOUT s] [COST s] [LABELS ...] [ENV A=b ...]): the entry py_<name>. It
# runs with QUIRE_BIN_DIR (where the binaries are) and, unless they are set already, QUIRE_SHARED and QUIRE_TEST_MODEL
# (see tests/house/run_pytest). If the Python environment has not been created, it is skipped and says so.
function(quire_pytest name path)
  if(NOT QUIRE_BUILD_TESTS OR QUIRE_CORE_TESTS_ONLY)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT;COST" "LABELS;ENV" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 40)  # seconds; ctest starts the longest tests first
  endif()
  add_test(NAME py_${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/house/run_pytest ${QUIRE_VENV} ${path})
  set_tests_properties(py_${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST} SKIP_RETURN_CODE 77 LABELS "python;${ARG_LABELS}"
    ENVIRONMENT "QUIRE_BIN_DIR=${CMAKE_BINARY_DIR};${ARG_ENV}")
endfunction()

# quire_python_test(house script.py args...): a script that needs only Python's standard library.
function(quire_python_test name)
  if(NOT QUIRE_BUILD_TESTS OR QUIRE_CORE_TESTS_ONLY)
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME ${name} COMMAND Python3::Interpreter ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS house ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endfunction()
