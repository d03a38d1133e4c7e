// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A sum by atomics.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    atomic_fetch_add((DEVICE atomic_int*)out, 1);  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
