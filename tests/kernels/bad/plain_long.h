// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: long, which has 32 bits for some compilers.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    long offset = 4;  // bad
    out[offset] = 1.0f;
  }
};
KERNEL(bad, Body, BadParams, float, const float)
