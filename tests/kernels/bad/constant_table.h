// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A table of constants, indexed by a value known only at run time.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

CTABLE float kTable[4] = {0.0f, 0.5f, 1.0f, 2.0f};

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = kTable[1];
    out[1] = kTable[(int)c.lane & 3];  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
