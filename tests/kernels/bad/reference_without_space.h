// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: A reference to parameters without an address space.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

FN float scale(const BadParams& p) {  // bad
  return p.t[0];
}

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = scale(p);  // bad
  }
};
KERNEL(bad, Body, BadParams, float, const float)
