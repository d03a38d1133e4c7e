// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: if constexpr, which is C++17.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    if constexpr (kThreads == 32) out[0] = 1.0f;  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
