// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A method called on an object in device memory.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Pair {
  float a, b;
  float sum() const { return a + b; }
};

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = ((DEVICE const Pair*)in)->sum();  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
