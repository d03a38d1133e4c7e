// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: Arithmetic on a storage type.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    bfloat x = to<bfloat>(in[0]);
    bfloat y = x + x;  // bad
    out[0] = to_f(y);
  }
};
KERNEL(bad, Body, BadParams, float, const float)
