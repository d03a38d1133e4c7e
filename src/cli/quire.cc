// SPDX-License-Identifier: Apache-2.0
// quire: the program.
#include "cli/program.h"

int main(int argc, char** argv) {
  return quire::cli::run_program(argc, argv);
}
