// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A parameter that is an array, indexed by a value known only at run time.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

struct Body {
  enum { kThreads = 32, kLast = 3 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = p.t[0] + p.t[kLast] + p.t[(int)kLast - 1];
    out[1] = p.t[c.tid & 3];  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
