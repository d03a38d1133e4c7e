// SPDX-License-Identifier: Apache-2.0
// embedding: reads one row out of packed panels, a strided walk.
#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

// The code of element k of one column, from the bit planes of its block.
template <DType kType>
int pair_code_at(const uint8_t* planes, int column, int k) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const PlanePlace low = pair_place(kFormat.low_bits, column, k);
  int code = ((planes[low.byte] >> low.shift) & ((1 << kFormat.low_bits) - 1)) ^ pair_flip(kFormat);
  if constexpr (kFormat.high_bits > 0) {
    const PlanePlace high = pair_place(kFormat.high_bits, column, k);
    const int bits = planes[16 * kFormat.low_bits + high.byte] >> high.shift;
    code |= (bits & ((1 << kFormat.high_bits) - 1)) << kFormat.low_bits;
  }
  return code;
}

// `block`: the codes of a block; with Packing::kPairs those of the column's quad.
template <DType kType>
int code_at(const uint8_t* block, Packing packing, int column, int k) {
  constexpr QuantFormat kFormat = quant_format(kType);
  if (packing == Packing::kPairs) return pair_code_at<kType>(block, column, k);
  const uint8_t* high = block + 64 * kFormat.low_bits;
  const int g = k / 4;
  const int i = 4 * column + k % 4;
  int code;
  if constexpr (kFormat.low_bits == 8) {
    code = block[64 * g + i];
  } else if constexpr (kFormat.low_bits == 4) {
    code = (block[64 * (g / 2) + i] >> (4 * (g % 2))) & 15;
  } else {
    code = (block[64 * (g / 4) + i] >> (2 * (g % 4))) & 3;
  }
  if constexpr (kFormat.high_bits == 2) {
    code |= ((high[64 * (g / 4) + i] >> (2 * (g % 4))) & 3) << kFormat.low_bits;
  } else if constexpr (kFormat.high_bits == 1) {
    code |= ((high[8 * g + i / 8] >> (i % 8)) & 1) << kFormat.low_bits;
  }
  return packing == Packing::kFixed ? code ^ fixed_flip(kFormat) : code;
}

// Scale and minimum of one column in the 16 k of one half of a block.
struct ColumnScale {
  float scale;
  float minimum;
};

template <DType kType>
ColumnScale column_scale(const PackedView& w, const uint8_t* panel_scales, int64_t block, int half, int column) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kGroup = scale_group(kFormat);
  const uint8_t* record = panel_scales + scale_record_at(kFormat, block, w.group_shift);
  if constexpr (kFormat.scheme == Scheme::kGroupMin) {
    ColumnScale out;
    std::memcpy(&out.scale, record + 4 * column, sizeof out.scale);
    std::memcpy(&out.minimum, record + 4 * kPanel + 4 * column, sizeof out.minimum);
    return out;
  }
  const uint8_t* part = record + scale_header_bytes(kFormat) + block % kGroup * block_scale_bytes(kFormat) + column;
  if constexpr (kFormat.scheme == Scheme::kExponent) return {exponent_to_float(record[column]), 0.0f};
  const float d = half_to_float(record + 2 * column);
  const float m = has_min(kFormat) ? half_to_float(record + 2 * kPanel + 2 * column) : 0.0f;
  if constexpr (kFormat.scheme == Scheme::kSuperMin) {
    return {d * static_cast<float>(part[0]), -(m * static_cast<float>(part[kPanel]))};
  } else if constexpr (kFormat.scheme == Scheme::kSuperScale) {
    return {d * static_cast<float>(static_cast<int8_t>(part[0])), 0.0f};
  } else if constexpr (kFormat.scheme == Scheme::kSubScale) {
    return {d * static_cast<float>(static_cast<int8_t>(part[half * kPanel])), 0.0f};
  } else if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    const uint8_t both = part[half * kPanel];
    return {d * static_cast<float>(both & 15), -(m * static_cast<float>(both >> 4))};
  } else {
    return {d, m};
  }
}

template <DType kType>
void quantised_row(const PackedView& w, int64_t row, float scale, float* out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* panel = w.data + row / kPanel * w.panel_stride;
  const int column = static_cast<int>(row % kPanel);
  const int64_t blocks = w.k / kBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* codes =
        panel + (w.packing == Packing::kPairs ? pair_codes_at(kFormat, blocks, b, column) : b * code_bytes(kFormat));
    for (int half = 0; half < 2; ++half) {
      const ColumnScale s = column_scale<kType>(w, panel + w.scale_offset, b, half, column);
      for (int k = 16 * half; k < 16 * half + 16; ++k) {
        const int code = code_at<kType>(codes, w.packing, column, k);
        float value = static_cast<float>(has_table(kFormat) ? table_values(kFormat)[code] : code - kFormat.offset);
        if constexpr (kFormat.scheme == Scheme::kGroupMin) {
          value = __builtin_fmaf(s.scale, value, s.minimum);
        } else {
          value = s.scale * value;
          if constexpr (has_min(kFormat)) value = value + s.minimum;
        }
        out[b * kBlock + k] = value * scale;
      }
    }
  }
}

template <DType kType>
void quantised_rows(const PackedView& w, const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const int32_t* tokens = args.tokens.data();
  float* out = static_cast<float*>(args.out.data);
  for (int64_t i = begin; i < end; ++i) quantised_row<kType>(w, tokens[i], args.scale, out + i * args.out.stride);
}

void plain_row(const PackedView& w, int64_t row, float scale, float* out) {
  const int64_t size = info(w.dtype).block_bytes;
  const uint8_t* panel = w.data + row / kPanel * w.panel_stride;
  const int column = static_cast<int>(row % kPanel);
  for (int64_t k = 0; k < w.k; ++k) {
    int64_t at = k * kPanel + column;
    if (w.packing == Packing::kRows) at = k / 2 * 2 * kPanel + 2 * column + k % 2;
    if (w.packing == Packing::kPairs) at = pair_element_at(column, k);
    const uint8_t* p = panel + size * at;
    float value;
    if (w.dtype == DType::kF32) {
      std::memcpy(&value, p, sizeof value);
    } else if (w.dtype == DType::kF16) {
      value = half_to_float(p);
    } else {
      uint16_t h;
      std::memcpy(&h, p, sizeof h);
      const uint32_t bits = static_cast<uint32_t>(h) << 16;
      std::memcpy(&value, &bits, sizeof value);
    }
    out[k] = value * scale;
  }
}

}  // namespace

void embedding(const PackedView& table, const EmbeddingArgs& args, int64_t row_begin, int64_t row_end) {
  const int32_t* tokens = args.tokens.data();
  float* out = static_cast<float*>(args.out.data);
  if (!is_quantised(table.dtype)) {
    for (int64_t i = row_begin; i < row_end; ++i) plain_row(table, tokens[i], args.scale, out + i * args.out.stride);
    return;
  }
  QUIRE_DISPATCH_QUANT(table.dtype, quantised_rows, table, args, row_begin, row_end)
}

}  // namespace quire::cpu::QUIRE_ISA_NS
