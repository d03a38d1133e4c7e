// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: Threadgroup memory declared outside an entry point.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

FN void helper() {
  TGROUP float x[4];  // bad
  x[0] = 1.0f;
}

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    helper();
  }
};
KERNEL(bad, Body, BadParams, float, const float)
