// SPDX-License-Identifier: Apache-2.0
// quire: the program, for installations that have it in libquire.
#include "capi/quire.h"

int main(int argc, char** argv) {
  return quire_main(argc, argv);
}
