// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: An element of a parameter's array, reached by a pointer that moves at run time.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    CONSTANT const float* at = p.t;
    out[0] = *(at + 1);
    out[1] = *(at + p.n);  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
