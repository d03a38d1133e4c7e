// SPDX-License-Identifier: Apache-2.0
// The kernel dialect: one source for Metal (compiled at run time), CUDA (nvcc), the emulator on the host, and the lint.
//
// The header of each of them defines the address spaces (DEVICE CONSTANT TGROUP THREAD), FN and CTABLE, the types and
// their conversions, the simd operations and barriers, and QUIRE_ENTRY, which KERNEL expands to. docs/dialect.md has
// the rules.
#pragma once

#include "kernels/compat/types.h"

// The position of a thread in the grid. Passed by value, so that it needs no address space. lane = tid % 32, sg = tid /
// 32.
struct Ctx {
  uint tgx, tgy, tgz, tid, sg, lane;
};

// For kernels without threadgroup memory: typedef NoSmem Smem;
struct NoSmem {
  int nothing;
};

#if defined(__METAL_VERSION__)
#include "kernels/compat/metal.h"
#elif defined(__CUDACC__) || defined(QUIRE_CUDA_SHIM)
#include "kernels/compat/cuda.h"
#elif defined(__OPENCL_CPP_VERSION__)
#include "kernels/compat/lint.h"
#else
#include "kernels/compat/host.h"
#endif

// KERNEL(name, Body, Params, A1, ..., An): the entry point `name` on every device, n = 1 to 16. Buffer 0 holds the
// parameters, buffer i is a pointer to Ai. A type that contains a comma cannot be a macro argument: give it a typedef.
// KERNEL_EARLY: the body calls GRID_WAIT() itself, before it reads what an earlier launch wrote and before it writes.
#define KERNEL(name, Body, Params, ...)                                                             \
  QUIRE_ENTRY(name, Body, Params, GRID_WAIT(), QUIRE_DECLARE(__VA_ARGS__), QUIRE_PASS(__VA_ARGS__), \
              QUIRE_COUNT(__VA_ARGS__))
#define KERNEL_EARLY(name, Body, Params, ...)                                                   \
  QUIRE_ENTRY(name, Body, Params, (void)0, QUIRE_DECLARE(__VA_ARGS__), QUIRE_PASS(__VA_ARGS__), \
              QUIRE_COUNT(__VA_ARGS__))

#define QUIRE_GLUE_(a, b) a##b
#define QUIRE_GLUE(a, b) QUIRE_GLUE_(a, b)
#define QUIRE_UNWRAP(...) __VA_ARGS__
#define QUIRE_COUNT(...) QUIRE_COUNT_(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define QUIRE_COUNT_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
// Lists of D(type, index), for declarations and for arguments; in parentheses, so that they pass as one macro argument.
#define QUIRE_DECLARE(...) (QUIRE_GLUE(QUIRE_EACH_, QUIRE_COUNT(__VA_ARGS__))(QUIRE_PARAMETER, __VA_ARGS__))
#define QUIRE_PASS(...) (QUIRE_GLUE(QUIRE_EACH_, QUIRE_COUNT(__VA_ARGS__))(QUIRE_ARGUMENT, __VA_ARGS__))
#define QUIRE_EACH_1(D, a) D(a, 1)
#define QUIRE_EACH_2(D, a, b) QUIRE_EACH_1(D, a), D(b, 2)
#define QUIRE_EACH_3(D, a, b, c) QUIRE_EACH_2(D, a, b), D(c, 3)
#define QUIRE_EACH_4(D, a, b, c, d) QUIRE_EACH_3(D, a, b, c), D(d, 4)
#define QUIRE_EACH_5(D, a, b, c, d, e) QUIRE_EACH_4(D, a, b, c, d), D(e, 5)
#define QUIRE_EACH_6(D, a, b, c, d, e, f) QUIRE_EACH_5(D, a, b, c, d, e), D(f, 6)
#define QUIRE_EACH_7(D, a, b, c, d, e, f, g) QUIRE_EACH_6(D, a, b, c, d, e, f), D(g, 7)
#define QUIRE_EACH_8(D, a, b, c, d, e, f, g, h) QUIRE_EACH_7(D, a, b, c, d, e, f, g), D(h, 8)
#define QUIRE_EACH_9(D, a, b, c, d, e, f, g, h, i) QUIRE_EACH_8(D, a, b, c, d, e, f, g, h), D(i, 9)
#define QUIRE_EACH_10(D, a, b, c, d, e, f, g, h, i, j) QUIRE_EACH_9(D, a, b, c, d, e, f, g, h, i), D(j, 10)
#define QUIRE_EACH_11(D, a, b, c, d, e, f, g, h, i, j, k) QUIRE_EACH_10(D, a, b, c, d, e, f, g, h, i, j), D(k, 11)
#define QUIRE_EACH_12(D, a, b, c, d, e, f, g, h, i, j, k, l) QUIRE_EACH_11(D, a, b, c, d, e, f, g, h, i, j, k), D(l, 12)
#define QUIRE_EACH_13(D, a, b, c, d, e, f, g, h, i, j, k, l, m) \
  QUIRE_EACH_12(D, a, b, c, d, e, f, g, h, i, j, k, l), D(m, 13)
#define QUIRE_EACH_14(D, a, b, c, d, e, f, g, h, i, j, k, l, m, n) \
  QUIRE_EACH_13(D, a, b, c, d, e, f, g, h, i, j, k, l, m), D(n, 14)
#define QUIRE_EACH_15(D, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) \
  QUIRE_EACH_14(D, a, b, c, d, e, f, g, h, i, j, k, l, m, n), D(o, 15)
#define QUIRE_EACH_16(D, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  QUIRE_EACH_15(D, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o), D(p, 16)
