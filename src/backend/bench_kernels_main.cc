// SPDX-License-Identifier: Apache-2.0
// quire_bench_kernels: the micro-benchmark as a program of its own.
#include "backend/bench_kernels.h"

int main(int argc, char** argv) {
  return quire::bench_kernels(argc, argv);
}
