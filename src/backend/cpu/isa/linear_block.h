// SPDX-License-Identifier: Apache-2.0
// Unpacks one packed block in plain C++: for the portable level, and as the specification of the others.
#pragma once

#include <cmath>
#include <cstring>

#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Scalar fp16 to float, in the level's own namespace (base/half.h's would be shared between levels by name).
static inline float half_to_float(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  uint32_t bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  if (exponent == 31) bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u);
  float f;
  if (exponent == 0) {
    f = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -f : f;
  }
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// codes[group][4 * column + j], as packed.h numbers them.
template <DType kType>
static inline void block_codes(const uint8_t* src, uint8_t codes[8][64]) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* high = src + 64 * kFormat.low_bits;
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 64; ++i) {
      int code;
      if constexpr (kFormat.low_bits == 8) {
        code = src[64 * g + i];
      } else if constexpr (kFormat.low_bits == 4) {
        code = (src[64 * (g / 2) + i] >> (4 * (g % 2))) & 15;
      } else {
        code = (src[64 * (g / 4) + i] >> (2 * (g % 4))) & 3;
      }
      if constexpr (kFormat.high_bits == 2) {
        code |= ((high[64 * (g / 4) + i] >> (2 * (g % 4))) & 3) << kFormat.low_bits;
      } else if constexpr (kFormat.high_bits == 1) {
        code |= ((high[8 * g + i / 8] >> (i % 8)) & 1) << kFormat.low_bits;
      }
      if constexpr (has_table(kFormat)) code = table_values(kFormat)[code] + kFormat.offset;
      codes[g][i] = static_cast<uint8_t>(code);
    }
  }
}

// 2^(e-128), or zero.
static inline float exponent_to_float(uint8_t e) {
  const uint32_t bits = static_cast<uint32_t>(e == 0 ? 0 : e - 1) << 23;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// The scales of one block for 16 columns, as the contract names them. Unused members hold zeros.
struct BlockScales {
  float sw[kPanel];     // d, or d*sc
  float wm[kPanel];     // m, -(dmin*mn), or -dmin
  float sc[2][kPanel];  // integer scales of the halves, exact in float
  float mn[2][kPanel];
};

template <DType kType>
static inline void block_scales(const uint8_t* panel_scales, int64_t block, int group_shift, BlockScales& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kGroup = scale_group(kFormat);
  const uint8_t* record = panel_scales + scale_record_at(kFormat, block, group_shift);
  if constexpr (kFormat.scheme == Scheme::kGroupMin) {
    std::memcpy(out.sw, record, sizeof out.sw);
    std::memcpy(out.wm, record + sizeof out.sw, sizeof out.wm);
    return;
  }
  if constexpr (kFormat.scheme == Scheme::kExponent) {
    for (int c = 0; c < kPanel; ++c) out.sw[c] = exponent_to_float(record[c]);
    return;
  }
  const uint8_t* part = record + scale_header_bytes(kFormat) + block % kGroup * block_scale_bytes(kFormat);
  for (int c = 0; c < kPanel; ++c) {
    const float d = half_to_float(record + 2 * c);
    const float m = has_min(kFormat) ? half_to_float(record + 2 * kPanel + 2 * c) : 0.0f;
    if constexpr (kFormat.scheme == Scheme::kScale) {
      out.sw[c] = d;
    } else if constexpr (kFormat.scheme == Scheme::kScaleMin) {
      out.sw[c] = d;
      out.wm[c] = m;
    } else if constexpr (kFormat.scheme == Scheme::kSuperScale) {
      out.sw[c] = d * static_cast<float>(static_cast<int8_t>(part[c]));
    } else if constexpr (kFormat.scheme == Scheme::kSuperMin) {
      out.sw[c] = d * static_cast<float>(part[c]);
      out.wm[c] = -(m * static_cast<float>(part[kPanel + c]));
    } else if constexpr (kFormat.scheme == Scheme::kSubScale) {
      out.sw[c] = d;
      for (int h = 0; h < 2; ++h) out.sc[h][c] = static_cast<float>(static_cast<int8_t>(part[h * kPanel + c]));
    } else {
      out.sw[c] = d;
      out.wm[c] = -m;
      for (int h = 0; h < 2; ++h) {
        out.sc[h][c] = static_cast<float>(part[h * kPanel + c] & 15);
        out.mn[h][c] = static_cast<float>(part[h * kPanel + c] >> 4);
      }
    }
  }
}

// Calls fn with the type as a template argument.
#define QUIRE_DISPATCH_QUANT(type, fn, ...)   \
  switch (type) {                             \
    case DType::kQ8_0:                        \
      return fn<DType::kQ8_0>(__VA_ARGS__);   \
    case DType::kQ4_0:                        \
      return fn<DType::kQ4_0>(__VA_ARGS__);   \
    case DType::kQ4_1:                        \
      return fn<DType::kQ4_1>(__VA_ARGS__);   \
    case DType::kQ5_0:                        \
      return fn<DType::kQ5_0>(__VA_ARGS__);   \
    case DType::kQ5_1:                        \
      return fn<DType::kQ5_1>(__VA_ARGS__);   \
    case DType::kQ2_K:                        \
      return fn<DType::kQ2_K>(__VA_ARGS__);   \
    case DType::kQ3_K:                        \
      return fn<DType::kQ3_K>(__VA_ARGS__);   \
    case DType::kQ4_K:                        \
      return fn<DType::kQ4_K>(__VA_ARGS__);   \
    case DType::kQ5_K:                        \
      return fn<DType::kQ5_K>(__VA_ARGS__);   \
    case DType::kQ6_K:                        \
      return fn<DType::kQ6_K>(__VA_ARGS__);   \
    case DType::kIQ4_NL:                      \
      return fn<DType::kIQ4_NL>(__VA_ARGS__); \
    case DType::kIQ4_XS:                      \
      return fn<DType::kIQ4_XS>(__VA_ARGS__); \
    case DType::kMXFP4:                       \
      return fn<DType::kMXFP4>(__VA_ARGS__);  \
    case DType::kG4:                          \
      return fn<DType::kG4>(__VA_ARGS__);     \
    case DType::kG8:                          \
      return fn<DType::kG8>(__VA_ARGS__);     \
    default:                                  \
      return;                                 \
  }

}  // namespace quire::cpu::QUIRE_ISA_NS
