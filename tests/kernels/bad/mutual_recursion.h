// SPDX-License-Identifier: Apache-2.0
// Seeded error for the lint: Two functions that call each other.
#include "kernels/compat/dialect.h"
#include "tests/kernels/bad/params.h"

FN int odd(int n);
FN int even(int n) {  // bad
  return n == 0 ? 1 : odd(n - 1);
}
FN int odd(int n) {  // bad
  return n == 0 ? 0 : even(n - 1);
}

struct Body {
  enum { kThreads = 32 };
  struct Smem {
    float u[4];
  };
  static FN void run(Ctx c, CONSTANT const BadParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[0] = (float)even(3);
  }
};
KERNEL(bad, Body, BadParams, float, const float)
