// SPDX-License-Identifier: Apache-2.0
// What nvcc compiles, once for each file of kernels: cuda.cmake names the file in QUIRE_KERNEL_FILE.
#include QUIRE_KERNEL_FILE
