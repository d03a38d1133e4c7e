// SPDX-License-Identifier: Apache-2.0
// The translation unit that nvcc compiles once per kernel file; cuda.cmake passes the file's name as QUIRE_KERNEL_FILE.
#include QUIRE_KERNEL_FILE
