// SPDX-License-Identifier: Apache-2.0
// The coefficients of exp, exp2, log, tanh and erf, one list for the CPU (backend/cpu/simd_math.h) and for GPU kernels:
// results depend on their bits.
//
// Each list is minimax fitted (relative error of the value) and rounded to float one coefficient after the other, the
// lower power first. It stands in the order of Horner's rule: with FIRST(p, x, c) as "p = c" and NEXT(p, x, c) as
// "p = fma(p, x, c)", a list leaves the polynomial in p.
#pragma once

// e^r for |r| <= ln(2) / 2.
#define QUIRE_EXP_POLYNOMIAL(FIRST, NEXT, p, r) \
  FIRST(p, r, 0x1.6a524ep-10f)                  \
  NEXT(p, r, 0x1.12396ep-7f)                    \
  NEXT(p, r, 0x1.5558aap-5f)                    \
  NEXT(p, r, 0x1.555492p-3f)                    \
  NEXT(p, r, 0x1.fffffcp-2f)                    \
  NEXT(p, r, 1.0f)                              \
  NEXT(p, r, 1.0f)

// 2^r for |r| <= 1/2.
#define QUIRE_EXP2_POLYNOMIAL(FIRST, NEXT, p, r) \
  FIRST(p, r, 0x1.416b52p-13f)                   \
  NEXT(p, r, 0x1.5f082ep-10f)                    \
  NEXT(p, r, 0x1.3b2de0p-7f)                     \
  NEXT(p, r, 0x1.c6af7cp-5f)                     \
  NEXT(p, r, 0x1.ebfbdcp-3f)                     \
  NEXT(p, r, 0x1.62e430p-1f)                     \
  NEXT(p, r, 1.0f)

// q(u) where 2 atanh(t) = 2t + 2t u q(u) with u = t^2 and |t| <= 1/3.
#define QUIRE_ATANH_POLYNOMIAL(FIRST, NEXT, q, u) \
  FIRST(q, u, 0x1.f17340p-4f)                     \
  NEXT(q, u, 0x1.b6e6ccp-4f)                      \
  NEXT(q, u, 0x1.2508b2p-3f)                      \
  NEXT(q, u, 0x1.9996b0p-3f)                      \
  NEXT(q, u, 0x1.555558p-2f)

// q(u) where tanh(x) = x + x u q(u) with u = x^2 and |x| < 0.6.
#define QUIRE_TANH_POLYNOMIAL(FIRST, NEXT, q, u) \
  FIRST(q, u, -0x1.828776p-8f)                   \
  NEXT(q, u, 0x1.54c3c2p-6f)                     \
  NEXT(q, u, -0x1.b89abap-5f)                    \
  NEXT(q, u, 0x1.1109bep-3f)                     \
  NEXT(q, u, -0x1.55553ep-2f)

// p(u) where erf(x) = x + x p(u) with u = x^2 and |x| < 0.95.
#define QUIRE_ERF_POLYNOMIAL(FIRST, NEXT, p, u) \
  FIRST(p, u, 0x1.4fa924p-14f)                  \
  NEXT(p, u, -0x1.a61810p-11f)                  \
  NEXT(p, u, 0x1.544b08p-8f)                    \
  NEXT(p, u, -0x1.b80124p-6f)                   \
  NEXT(p, u, 0x1.ce2d64p-4f)                    \
  NEXT(p, u, -0x1.812740p-2f)                   \
  NEXT(p, u, 0x1.06eba8p-3f)

// g(a) = -log(erfc(a)) for 0.95 <= a <= 4.
#define QUIRE_ERFC_POLYNOMIAL(FIRST, NEXT, g, a) \
  FIRST(g, a, -0x1.93c9e0p-13f)                  \
  NEXT(g, a, 0x1.8a7c2cp-9f)                     \
  NEXT(g, a, -0x1.69f5aap-6f)                    \
  NEXT(g, a, 0x1.a88ceep-4f)                     \
  NEXT(g, a, 0x1.46672ap-1f)                     \
  NEXT(g, a, 0x1.20a2a4p+0f)                     \
  NEXT(g, a, 0x1.fdc146p-13f)
