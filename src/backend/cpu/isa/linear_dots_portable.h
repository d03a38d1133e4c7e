// SPDX-License-Identifier: Apache-2.0
// Integer dots in plain C++; see linear_dots.h.
#pragma once

#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

struct DotCodes {
  uint8_t group[8][64];
};

template <DType kType>
constexpr bool kSignedCodes = false;

template <DType kType>
static inline void prepare_codes(const uint8_t* src, DotCodes& out) {
  block_codes<kType>(src, out.group);
}

static inline void dot_groups(const DotCodes& codes, const int8_t* x, int begin, int end, int32_t dot[kPanel]) {
  int32_t code[kBlock];
  for (int i = 0; i < kBlock; ++i) code[i] = 16 * x[i] + x[kBlock + i];
  for (int c = 0; c < kPanel; ++c) {
    int32_t sum = 0;
    for (int g = begin; g < end; ++g) {
      for (int j = 0; j < 4; ++j) sum += codes.group[g][4 * c + j] * code[4 * g + j];
    }
    dot[c] = sum;
  }
}

template <DType kType>
static inline void dot_rows(const DotCodes& codes, const RowTileBlock& x, int rows, int32_t (*low)[kPanel],
                            int32_t (*high)[kPanel]) {
  constexpr bool kHalves = has_halves(quant_format(kType));
  for (int r = 0; r < rows; ++r) {
    dot_groups(codes, x.codes[r], 0, kHalves ? 4 : 8, low[r]);
    if (kHalves) dot_groups(codes, x.codes[r], 4, 8, high[r]);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
