// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: Device memory passed to a function that takes threadgroup memory.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

FN float first(TGROUP const float* x) {
  return x[0];
}

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = first(in);  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
