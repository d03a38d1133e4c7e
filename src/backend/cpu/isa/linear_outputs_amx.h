// SPDX-License-Identifier: Apache-2.0
// What the products of linear_amx.cc and linear_amx_bf16.cc write: sixteen columns of a row at a time.
#pragma once

#include <immintrin.h>

#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Sixteen columns of the output.
struct Columns {
  __m512 bias;
  __mmask16 mask;
  bool has_bias;
};

static inline Columns columns_of(const PackedView& w, const LinearArgs& args, int64_t panel) {
  const int64_t left = w.n - panel * kPanel;
  Columns c;
  c.mask = static_cast<__mmask16>(left < kPanel ? (1u << left) - 1u : 0xffffu);
  c.has_bias = args.bias != nullptr;
  c.bias = c.has_bias ? _mm512_maskz_loadu_ps(c.mask, args.bias + panel * kPanel) : _mm512_setzero_ps();
  return c;
}

static inline __attribute__((always_inline)) __m512 with_bias(const Columns& c, __m512 sum) {
  return c.has_bias ? _mm512_add_ps(sum, c.bias) : sum;
}

static inline __attribute__((always_inline)) void put_values(const Columns& c, __m512 values, float* y) {
  _mm512_mask_storeu_ps(y, c.mask, values);
}

}  // namespace quire::cpu::QUIRE_ISA_NS
