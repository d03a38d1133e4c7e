// SPDX-License-Identifier: Apache-2.0
// Quantised weights as floats: one block of a panel, sixteen columns at a time.
#pragma once

#include "backend/cpu/isa/linear_block.h"
#include "backend/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA_NS {

// The 32 x 16 values of one block, [k][column]. d*q is exact for every type of GGUF (fp16 times few bits), so only the
// addition of the minimum rounds, and no order of evaluation can change the bits; groups round once with an fma.
template <DType kType>
static inline void block_values(const PackedView& w, const uint8_t* panel, int64_t block, float* values) {
  constexpr QuantFormat kFormat = quant_format(kType);
  alignas(64) uint8_t codes[8][64];
  alignas(64) BlockScales s;
  block_codes<kType>(panel + block * code_bytes(kFormat), codes);
  block_scales<kType>(panel + w.scale_offset, block, w.group_shift, s);
  for (int half = 0; half < 2; ++half) {
    F32x16 scale = load(s.sw);
    F32x16 minimum = zero();
    if constexpr (has_halves(kFormat)) scale = scale * load(s.sc[half]);
    if constexpr (has_min(kFormat)) minimum = load(s.wm);
    if constexpr (kFormat.scheme == Scheme::kSubScaleMin) minimum = minimum * load(s.mn[half]);
    for (int g = 4 * half; g < 4 * half + 4; ++g) {
      float raw[kPanel];  // a lane of 32 bits is a column, its bytes are four k
      std::memcpy(raw, codes[g], sizeof raw);
      const I32x16 four = bits(load(raw));
      const I32x16 q[4] = {iand(four, isplat(255)), iand(shr<8>(four), isplat(255)), iand(shr<16>(four), isplat(255)),
                           shr<24>(four)};
      for (int j = 0; j < 4; ++j) {
        const F32x16 code = to_float(isub(q[j], isplat(kFormat.offset)));
        F32x16 value;
        if constexpr (kFormat.scheme == Scheme::kGroupMin) {
          value = fma(scale, code, minimum);
        } else {
          value = has_min(kFormat) ? scale * code + minimum : scale * code;
        }
        store(values + (4 * g + j) * kPanel, value);
      }
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
