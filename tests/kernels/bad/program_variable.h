// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A variable of the program.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

int counter;  // bad

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = (float)counter;
  }
};
KERNEL(bad, Body, BadParams, float, const float)
