# SPDX-License-Identifier: Apache-2.0
# Builds the kernels for CUDA, one embedded fatbin per file, and sets cuda_sources for quire_kernels. Needs no GPU.
#
# nvcc is searched for in PATH, where CUDA installs itself, and in a Python environment with PyPI's nvidia-cuda-nvcc
# (QUIRE_CUDA_VENV; ensure_nvcc in scripts/lib.sh creates one).
set(QUIRE_CUDA auto CACHE STRING "Build the CUDA kernels: auto (where nvcc is found), on, off")
set(QUIRE_CUDA_TARGETS default CACHE STRING
    "GPUs: default (sm_80, sm_90a and PTX), all (also sm_86, sm_89, sm_100a, sm_120), hopper (sm_90a alone), \
ptx (built sooner; the driver compiles the kernels when a model is loaded), or check (PTX that is hardly optimised, to see that it compiles)")
set(QUIRE_CUDA_VENV ${CMAKE_SOURCE_DIR}/build/cuda-venv CACHE PATH "A Python environment with nvidia-cuda-nvcc")
set(cuda_sources cuda_none.cc)
if(QUIRE_CUDA STREQUAL "off" OR APPLE)
  return()
endif()
if(QUIRE_CUDA STREQUAL "auto" AND (QUIRE_SANITIZE OR QUIRE_BUILD_FUZZERS))
  return()  # sanitizers and fuzzers do not instrument GPU code
endif()

# Leaves this file because of ${cuda_missing}; an error if QUIRE_CUDA is on.
macro(quire_without_cuda)
  if(QUIRE_CUDA STREQUAL "on")
    message(FATAL_ERROR "QUIRE_CUDA is on, but ${cuda_missing}")
  endif()
  message(STATUS "CUDA: this build cannot use NVIDIA GPUs: ${cuda_missing}")
  return()
endmacro()

file(GLOB venv_folders ${QUIRE_CUDA_VENV}/lib/python3*/site-packages/nvidia/cu*/bin
     ${QUIRE_CUDA_VENV}/lib/python3*/site-packages/nvidia/cuda_nvcc/bin)
find_program(QUIRE_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin ${venv_folders})
if(NOT QUIRE_NVCC)
  set(cuda_missing "there is no nvcc (put it in PATH, or set QUIRE_NVCC or QUIRE_CUDA_VENV)")
  quire_without_cuda()
endif()

# An nvcc that cannot compile (no headers, or a host compiler that is too new for it) counts as none.
if(NOT QUIRE_NVCC_TRIED STREQUAL QUIRE_NVCC)
  file(WRITE ${CMAKE_BINARY_DIR}/nvcc_probe.cu "#include <cuda_bf16.h>\n__global__ void probe(__nv_bfloat16* x) { x[0] = x[1]; }\n")
  execute_process(COMMAND ${QUIRE_NVCC} -std=c++20 -gencode arch=compute_90a,code=sm_90a -c ${CMAKE_BINARY_DIR}/nvcc_probe.cu
                          -o ${CMAKE_BINARY_DIR}/nvcc_probe.o RESULT_VARIABLE code OUTPUT_VARIABLE why ERROR_VARIABLE why)
  if(NOT code EQUAL 0)
    string(REGEX MATCH "[^\n]*([Ee]rror|fatal)[^\n]*" first "${why}")
    set(cuda_missing "${QUIRE_NVCC} does not work (${first})")
    quire_without_cuda()
  endif()
  execute_process(COMMAND ${QUIRE_NVCC} --version OUTPUT_VARIABLE version)
  string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
  set(QUIRE_NVCC_TRIED_VERSION "${version}" CACHE INTERNAL "Its version")
  set(QUIRE_NVCC_TRIED ${QUIRE_NVCC} CACHE INTERNAL "The nvcc that was found to work")
endif()

set(cuda_flags -std=c++20 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false --threads 2 -I${CMAKE_SOURCE_DIR}/src
    -Wno-deprecated-gpu-targets -Xcompiler=-w)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND cuda_flags -ccbin ${CMAKE_CXX_COMPILER})
endif()
set(portable_targets -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a)
if(QUIRE_CUDA_TARGETS STREQUAL "all")
  foreach(target 86 89 100a 120)
    list(APPEND portable_targets -gencode arch=compute_${target},code=sm_${target})
  endforeach()
endif()
set(hopper_targets -gencode arch=compute_90a,code=sm_90a)
if(QUIRE_CUDA_TARGETS STREQUAL "hopper")
  set(portable_targets ${hopper_targets})
endif()
if(QUIRE_CUDA_TARGETS MATCHES "^(ptx|check)$")
  set(portable_targets -gencode arch=compute_80,code=compute_80)
  set(hopper_targets -gencode arch=compute_90a,code=compute_90a)
endif()
if(QUIRE_CUDA_TARGETS STREQUAL "check" AND QUIRE_NVCC_TRIED_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND cuda_flags --Ofast-compile=max)  # optimising is nine tenths of the time of the large files
endif()

file(MAKE_DIRECTORY ${generated}/cuda)
set(cuda_fatbins "")
set(cuda_declarations "")
set(cuda_entries "")
# In ccache's depend mode it compares every file that was read; its other mode runs the preprocessor, which does not see the
# code under #if __CUDA_ARCH__. It takes the script for nvcc, and tells versions apart by what nvcc says of itself.
set(nvcc_fatbin ${CMAKE_COMMAND} -E env QUIRE_NVCC=${QUIRE_NVCC})
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  list(APPEND nvcc_fatbin CCACHE_DEPEND=1 CCACHE_NOHASHDIR=1 CCACHE_COMPILERTYPE=nvcc
       "CCACHE_COMPILERCHECK=%compiler% --version" ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
list(APPEND nvcc_fatbin ${CMAKE_SOURCE_DIR}/tools/kernels/nvcc_fatbin)
# quire_fatbin(name include hopper targets...): builds the fatbin of one file and adds it to the list.
function(quire_fatbin name include hopper)
  set(unit ${CMAKE_CURRENT_SOURCE_DIR}/compat/cuda_unit.cu)
  set(stem ${generated}/cuda/${name})
  set(fatbin ${stem}.fatbin)
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${nvcc_fatbin} ${cuda_flags} ${ARGN} "-DQUIRE_KERNEL_FILE=\"${include}\"" -MD -MT ${fatbin} -MF ${stem}.d
            -c ${unit} -o ${fatbin}
    DEPENDS ${unit} DEPFILE ${stem}.d VERBATIM COMMENT "Compiling ${include} for CUDA")
  set(cuda_fatbins ${cuda_fatbins} ${fatbin} PARENT_SCOPE)
  string(APPEND cuda_declarations "QUIRE_EMBED(${name}, \"${fatbin}\")\n")
  set(cuda_declarations "${cuda_declarations}" PARENT_SCOPE)
  string(APPEND cuda_entries "    QUIRE_ENTRY(${name}, ${hopper}),\n")
  set(cuda_entries "${cuda_entries}" PARENT_SCOPE)
endfunction()
foreach(header ${kernel_headers})
  get_filename_component(name ${header} NAME_WE)
  quire_fatbin(${name} kernels/${name}.h false ${portable_targets})
endforeach()
file(GLOB hopper_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cuh)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${hopper_files})
foreach(file ${hopper_files})
  file(STRINGS ${file} entries REGEX "^ *KERNEL|__global__" LIMIT_COUNT 1)
  if(entries)  # otherwise only other files include it
    get_filename_component(name ${file} NAME_WE)
    quire_fatbin(${name}_sm90 kernels/cuda/${name}.cuh true ${hopper_targets})
  endif()
endforeach()

file(CONFIGURE OUTPUT ${generated}/cuda_binaries.cc @ONLY CONTENT [=[
// Generated by src/kernels/cuda.cmake: the CUDA binaries of this build.
#include "kernels/embedded.h"

#define QUIRE_EMBED(name, file)                                                              \
  extern "C" const uint8_t quire_cuda_##name[], quire_cuda_##name##_end[];                   \
  asm(".pushsection .rodata\n.balign 64\n.globl quire_cuda_" #name "\nquire_cuda_" #name ":\n" \
      ".incbin \"" file "\"\n.globl quire_cuda_" #name "_end\nquire_cuda_" #name "_end:\n.byte 0\n.popsection\n");
#define QUIRE_ENTRY(name, hopper) \
  EmbeddedBinary { #name, {quire_cuda_##name, quire_cuda_##name##_end}, hopper }

@cuda_declarations@
namespace quire::kernels {

std::span<const EmbeddedBinary> cuda_binaries() {
  static const EmbeddedBinary binaries[] = {
@cuda_entries@  };
  return binaries;
}

}  // namespace quire::kernels
]=])
set_source_files_properties(${generated}/cuda_binaries.cc PROPERTIES OBJECT_DEPENDS "${cuda_fatbins}")
set(cuda_sources ${generated}/cuda_binaries.cc)
add_custom_target(quire_fatbins DEPENDS ${cuda_fatbins})
list(LENGTH cuda_fatbins count)
message(STATUS "CUDA: ${QUIRE_NVCC} builds ${count} files of kernels, targets: ${QUIRE_CUDA_TARGETS}")
