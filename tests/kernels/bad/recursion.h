// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A function that calls itself.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

FN int depth(int n) {  // bad
  return n > 0 ? depth(n - 1) : 0;
}

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = (float)depth(3);
  }
};
KERNEL(bad, Body, BadParams, float, const float)
