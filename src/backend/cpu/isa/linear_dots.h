// SPDX-License-Identifier: Apache-2.0
// The quantised linear around an ISA's integer dots: one block of one panel and one tile of rows at a time, dots to L1,
// then folded over sixteen lanes of float. Every level but AVX-512 and AMX, which keep more in registers.
//
// A level's header linear_dots_*.h gives:
//   struct DotCodes                              a block's codes, in the order of its dots
//   kSignedCodes<type>                           true when prepare_codes() has already subtracted the offset
//   prepare_codes<type>(src, DotCodes&)
//   dot_rows<type>(codes, x, rows, low, high)    dots of 16 columns for each row; types with halves use both outputs
#pragma once

#include "backend/cpu/isa/linear_block.h"
#include "backend/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA_NS {

using DotRows = int32_t[kRowTile][kPanel];

struct Scales16 {
  F32x16 sw, wm;
  F32x16 sc[2], mn[2];  // integer scales of halves, exact in float
};

QUIRE_INLINE F32x16 load_scale_halves(const uint8_t* p) {
  uint16_t halves[kPanel];
  std::memcpy(halves, p, sizeof halves);
  return load_f16(halves);
}

template <typename Byte>
QUIRE_INLINE F32x16 load_scale_bytes(const uint8_t* p, int shift, int mask) {
  float values[kPanel];
  for (int c = 0; c < kPanel; ++c) values[c] = static_cast<float>((static_cast<Byte>(p[c]) >> shift) & mask);
  return load(values);
}

template <DType kType>
QUIRE_INLINE Scales16 load_scales(const uint8_t* panel_scales, int64_t block, int group_shift) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kGroup = scale_group(kFormat);
  const uint8_t* record = panel_scales + scale_record_at(kFormat, block, group_shift);
  const uint8_t* part = record + scale_header_bytes(kFormat) + block % kGroup * block_scale_bytes(kFormat);
  Scales16 s;
  for (int h = 0; h < 2; ++h) s.sc[h] = s.mn[h] = zero();
  if constexpr (kFormat.scheme == Scheme::kGroupMin) {
    s.sw = load(reinterpret_cast<const float*>(record));
    s.wm = load(reinterpret_cast<const float*>(record) + kPanel);
    return s;
  }
  if constexpr (kFormat.scheme == Scheme::kExponent) {
    float values[kPanel];
    for (int c = 0; c < kPanel; ++c) values[c] = exponent_to_float(record[c]);
    s.sw = load(values);
    s.wm = zero();
    return s;
  }
  s.sw = load_scale_halves(record);
  s.wm = has_min(kFormat) ? load_scale_halves(record + 2 * kPanel) : zero();
  if constexpr (kFormat.scheme == Scheme::kSuperMin) {
    s.sw = s.sw * load_scale_bytes<uint8_t>(part, 0, 255);
    s.wm = neg(s.wm * load_scale_bytes<uint8_t>(part + kPanel, 0, 255));
  } else if constexpr (kFormat.scheme == Scheme::kSuperScale) {
    s.sw = s.sw * load_scale_bytes<int8_t>(part, 0, -1);
  } else if constexpr (kFormat.scheme == Scheme::kSubScale) {
    for (int h = 0; h < 2; ++h) s.sc[h] = load_scale_bytes<int8_t>(part + h * kPanel, 0, -1);
  } else if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    s.wm = neg(s.wm);
    for (int h = 0; h < 2; ++h) {
      s.sc[h] = load_scale_bytes<uint8_t>(part + h * kPanel, 0, 15);
      s.mn[h] = load_scale_bytes<uint8_t>(part + h * kPanel, 4, 15);
    }
  }
  return s;
}

// Dots (below 2^24, so exact) to float.
QUIRE_INLINE F32x16 dots_to_float(const int32_t* dots, int32_t start) {
  float raw[kPanel];
  std::memcpy(raw, dots, sizeof raw);
  return to_float(iadd(bits(load(raw)), isplat(start)));
}

template <DType kType>
QUIRE_INLINE F32x16 fold_dots(F32x16 acc, const int32_t* low, const int32_t* high, const Scales16& s,
                              const RowTileBlock& x, const int32_t* x_high, int r) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr bool kStart = kFormat.offset != 0 && !kSignedCodes<kType>;
  const F32x16 sa = splat(x.sa[r]);
  F32x16 dot = dots_to_float(low, !kStart ? 0 : has_min(kFormat) ? x_high[r] : x.aux[r]);
  if constexpr (has_halves(kFormat)) {  // from +0 on, so that a zero is +0
    dot = fma(dot, s.sc[0], zero());
    dot = fma(dots_to_float(high, kStart ? x_high[r] : 0), s.sc[1], dot);
  }
  acc = fma(dot, sa * s.sw, acc);
  if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    F32x16 sum = fma(s.mn[0], splat(static_cast<float>(x.aux[r])), zero());
    sum = fma(s.mn[1], splat(static_cast<float>(x_high[r])), sum);
    acc = fma(s.wm, sa * sum, acc);
  } else if constexpr (has_min(kFormat)) {
    float scaled_sum;
    std::memcpy(&scaled_sum, &x.aux[r], sizeof scaled_sum);
    acc = fma(s.wm, splat(scaled_sum), acc);
  }
  return acc;
}

template <DType kType>
static void tile_times_panel(const QuantisedRows& x, const PackedView& w, const uint8_t* panel, int64_t row, int rows,
                             float (*acc)[kPanel]) {
  constexpr QuantFormat kFormat = quant_format(kType);
  alignas(64) DotRows low;
  alignas(64) DotRows high;
  for (int64_t b = 0; b < x.blocks; ++b) {
    DotCodes codes;
    prepare_codes<kType>(panel + b * code_bytes(kFormat), codes);
    const int64_t index = row / kRowTile * x.blocks + b;
    dot_rows<kType>(codes, x.tiles[index], rows, low, high);
    const Scales16 s = load_scales<kType>(panel + w.scale_offset, b, w.group_shift);
    const int32_t* x_high = has_second_sum(kFormat) ? x.high[index] : nullptr;
    for (int r = 0; r < rows; ++r) {
      store(acc[r], fold_dots<kType>(load(acc[r]), low[r], high[r], s, x.tiles[index], x_high, r));
    }
  }
}

template <DType kType>
static void quantised_panels(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                             int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const int64_t columns = w.n - p * kPanel < kPanel ? w.n - p * kPanel : kPanel;
    const F32x16 bias = args.bias == nullptr ? zero() : load_n(args.bias + p * kPanel, columns);
    for (int64_t row = row_begin; row < row_end; row += kRowTile) {
      const int rows = static_cast<int>(row_end - row < kRowTile ? row_end - row : kRowTile);
      alignas(64) float acc[kRowTile][kPanel] = {};
      tile_times_panel<kType>(x, w, w.data + p * w.panel_stride, row, rows, acc);
      for (int r = 0; r < rows; ++r) {
        float* y = static_cast<float*>(args.out.data) + (row + r) * args.out.stride + p * kPanel;
        store_n(y, args.bias == nullptr ? load(acc[r]) : load(acc[r]) + bias, columns);
      }
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
