// SPDX-License-Identifier: Apache-2.0
// SimdProbe: lets tests call the F32x16 operations and functions of each ISA level; in no library.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "backend/cpu/isa_level.h"

namespace quire::cpu {

constexpr float kInf = std::numeric_limits<float>::infinity();

enum class ProbeOp {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFma,
  kNeg,
  kAbs,
  kSqrt,
  kMax,
  kMin,
  kSelectLt,  // a < b ? a : c, and so on
  kSelectLe,
  kSelectGt,
  kSelectGe,
  kSelectEq,
  kReduceAdd,  // of each sixteen lanes, to the first of them; the others get 0
  kReduceMax,
  kDeinterleave,  // of each 32: evens, then odds
  kInterleave,    // the inverse
  kExp,
  kExp2Clamped,
  kSigmoid,
  kSoftplus,
  kTanh,
  kErf,
};

struct SimdProbe {
  // out[i] = op(a[i], b[i], c[i]); whole groups of sixteen, then a partial one by load_n and store_n.
  void (*map)(ProbeOp op, const float* a, const float* b, const float* c, float* out, int64_t n);
  void (*to_f16)(const float* x, uint16_t* out, int64_t n);
  void (*from_f16)(const uint16_t* x, float* out, int64_t n);
  void (*to_bf16)(const float* x, uint16_t* out, int64_t n);
  void (*from_bf16)(const uint16_t* x, float* out, int64_t n);
};

// The levels of this machine that have kernels of their own (the others add integer dot products only).
std::vector<Isa> probed_isas();
const SimdProbe& simd_probe(Isa isa);

}  // namespace quire::cpu
