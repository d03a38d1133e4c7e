// SPDX-License-Identifier: Apache-2.0
// The quantised linear in plain C++.
#pragma once

#include "backend/cpu/kernels/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Integer dots of 16 columns over groups [begin, end) of a block; `first` is where each sum starts.
static inline void dot_groups(const uint8_t codes[8][64], const int8_t* x, int begin, int end, int32_t first,
                              int32_t dot[kPanel]) {
  int32_t code[kBlock];
  for (int i = 0; i < kBlock; ++i) code[i] = 16 * x[i] + x[kBlock + i];
  for (int c = 0; c < kPanel; ++c) dot[c] = first;
  for (int g = begin; g < end; ++g) {
    for (int c = 0; c < kPanel; ++c) {
      int32_t sum = 0;
      for (int j = 0; j < 4; ++j) sum += codes[g][4 * c + j] * code[4 * g + j];
      dot[c] += sum;
    }
  }
}

template <DType kType>
static void fold_block(const uint8_t codes[8][64], const BlockScales& s, const RowTileBlock& x, const int32_t* high,
                       int r, float acc[kPanel]) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const float sa = x.sa[r];
  int32_t low_dot[kPanel];
  int32_t high_dot[kPanel];
  if constexpr (has_halves(kFormat)) {
    const bool offset = kFormat.offset != 0;
    dot_groups(codes, x.codes[r], 0, 4, offset ? x.aux[r] : 0, low_dot);
    dot_groups(codes, x.codes[r], 4, 8, offset ? high[r] : 0, high_dot);
    for (int c = 0; c < kPanel; ++c) {
      // Rounded as the contract says; starting from +0 keeps zeros positive.
      const float low = std::fma(static_cast<float>(low_dot[c]), s.sc[0][c], 0.0f);
      const float dot = std::fma(static_cast<float>(high_dot[c]), s.sc[1][c], low);
      acc[c] = std::fma(dot, sa * s.sw[c], acc[c]);
      if constexpr (has_min(kFormat)) {
        const float low_sum = std::fma(s.mn[0][c], static_cast<float>(x.aux[r]), 0.0f);
        const float sum = std::fma(s.mn[1][c], static_cast<float>(high[r]), low_sum);
        acc[c] = std::fma(s.wm[c], sa * sum, acc[c]);
      }
    }
  } else {
    dot_groups(codes, x.codes[r], 0, 8, kFormat.offset != 0 ? x.aux[r] : 0, low_dot);
    float scaled_sum;
    std::memcpy(&scaled_sum, &x.aux[r], sizeof scaled_sum);
    for (int c = 0; c < kPanel; ++c) {
      acc[c] = std::fma(static_cast<float>(low_dot[c]), sa * s.sw[c], acc[c]);
      if constexpr (has_min(kFormat)) acc[c] = std::fma(s.wm[c], scaled_sum, acc[c]);
    }
  }
}

template <DType kType>
static void quantised_panels(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                             int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  constexpr QuantFormat kFormat = quant_format(kType);
  float* out = static_cast<float*>(args.out.data);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const uint8_t* panel = w.data + p * w.panel_stride;
    const int64_t columns = w.n - p * kPanel < kPanel ? w.n - p * kPanel : kPanel;
    for (int64_t row = row_begin; row < row_end; row += kRowTile) {
      const int rows = static_cast<int>(row_end - row < kRowTile ? row_end - row : kRowTile);
      float acc[kRowTile][kPanel] = {};
      for (int64_t b = 0; b < x.blocks; ++b) {
        uint8_t codes[8][64];
        BlockScales scales;
        block_codes<kType>(panel + b * code_bytes(kFormat), codes);
        block_scales<kType>(panel + w.scale_offset, b, scales);
        const int64_t index = row / kRowTile * x.blocks + b;
        const int32_t* high = has_halves(kFormat) ? x.high[index] : nullptr;
        for (int r = 0; r < rows; ++r) fold_block<kType>(codes, scales, x.tiles[index], high, r, acc[r]);
      }
      for (int r = 0; r < rows; ++r) {
        float* y = out + (row + r) * args.out.stride + p * kPanel;
        for (int64_t c = 0; c < columns; ++c) {
          y[c] = args.bias == nullptr ? acc[r][c] : acc[r][c] + args.bias[p * kPanel + c];
        }
      }
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
