// SPDX-License-Identifier: Apache-2.0
// Weights as floats: one element of a packed matrix by the definition of its type.
#pragma once

#include "backend/cpu/kernels/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

// The 32 x 16 values of one block, [k][column]. d*q is exact for every type (fp16 times few bits), so only the addition
// of the minimum rounds, and no order of evaluation can change the bits.
template <DType kType>
static inline void block_values(const PackedView& w, const uint8_t* panel, int64_t block,
                                float values[kBlock][kPanel]) {
  constexpr QuantFormat kFormat = quant_format(kType);
  uint8_t codes[8][64];
  BlockScales s;
  block_codes<kType>(panel + block * code_bytes(kFormat), codes);
  block_scales<kType>(panel + w.scale_offset, block, s);
  for (int half = 0; half < 2; ++half) {
    float scale[kPanel];
    float minimum[kPanel];
    for (int c = 0; c < kPanel; ++c) {
      scale[c] = has_halves(kFormat) ? s.sw[c] * s.sc[half][c] : s.sw[c];
      if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
        minimum[c] = s.wm[c] * s.mn[half][c];
      } else {
        minimum[c] = has_min(kFormat) ? s.wm[c] : 0.0f;
      }
    }
    for (int k = 16 * half; k < 16 * half + 16; ++k) {
      for (int c = 0; c < kPanel; ++c) {
        const float q = static_cast<float>(codes[k / 4][4 * c + k % 4] - kFormat.offset);
        values[k][c] = has_min(kFormat) ? scale[c] * q + minimum[c] : scale[c] * q;
      }
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
