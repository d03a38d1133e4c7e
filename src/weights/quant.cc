// SPDX-License-Identifier: Apache-2.0
// Reference dequantisers: one element at a time, straight from the formulas in quant.h. The backends have fast ones.
#include "weights/quant.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace quire::weights {
namespace {

// The nibble of element i in the 32-element formats.
int nibble(const uint8_t qs[16], int i) {
  return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}
int fifth_bit(const uint8_t qh[4], int i) {
  return (qh[i / 8] >> (i % 8)) & 1;
}
// The two low bits of element i in Q2_K and Q3_K.
int low_pair(const uint8_t qs[64], int i) {
  return (qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
}
// The nibble of element i in Q4_K and Q5_K.
int nibble_k(const uint8_t qs[128], int i) {
  const int byte = qs[i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}
// Bit i / 32 of the mask byte i % 32: the third bit of Q3_K, the fifth of Q5_K.
int mask_bit(const uint8_t mask[32], int i) {
  return (mask[i % 32] >> (i / 32)) & 1;
}
// The six bits of element i in Q6_K.
int six_bits(const BlockQ6_K& b, int i) {
  const int half = i / 128;
  const int quarter = i % 128 / 32;
  const int byte = b.ql[half * 64 + i % 64];
  const int low = quarter < 2 ? byte & 15 : byte >> 4;
  const int high = (b.qh[half * 32 + i % 32] >> (quarter * 2)) & 3;
  return low | high << 4;
}

float element(const BlockQ8_0& b, int i) {
  return fp16_to_float(b.d) * static_cast<float>(b.qs[i]);
}
float element(const BlockQ4_0& b, int i) {
  return fp16_to_float(b.d) * static_cast<float>(nibble(b.qs, i) - 8);
}
float element(const BlockQ4_1& b, int i) {
  return fp16_to_float(b.d) * static_cast<float>(nibble(b.qs, i)) + fp16_to_float(b.m);
}
float element(const BlockQ5_0& b, int i) {
  return fp16_to_float(b.d) * static_cast<float>((nibble(b.qs, i) | fifth_bit(b.qh, i) << 4) - 16);
}
float element(const BlockQ5_1& b, int i) {
  return fp16_to_float(b.d) * static_cast<float>(nibble(b.qs, i) | fifth_bit(b.qh, i) << 4) + fp16_to_float(b.m);
}
float element(const BlockQ2_K& b, int i) {
  const uint8_t sub = b.scales[i / 16];
  const float scale = fp16_to_float(b.d) * static_cast<float>(sub & 15);
  const float min = fp16_to_float(b.dmin) * static_cast<float>(sub >> 4);
  return scale * static_cast<float>(low_pair(b.qs, i)) - min;
}
float element(const BlockQ3_K& b, int i) {
  const float scale = fp16_to_float(b.d) * static_cast<float>(unpack_scale_q3_k(b.scales, i / 16));
  return scale * static_cast<float>((low_pair(b.qs, i) | mask_bit(b.hmask, i) << 2) - 4);
}
float element(const BlockQ4_K& b, int i) {
  const ScaleMin sub = unpack_scale_min_k4(b.scales, i / 32);
  const float scale = fp16_to_float(b.d) * static_cast<float>(sub.scale);
  const float min = fp16_to_float(b.dmin) * static_cast<float>(sub.min);
  return scale * static_cast<float>(nibble_k(b.qs, i)) - min;
}
float element(const BlockQ5_K& b, int i) {
  const ScaleMin sub = unpack_scale_min_k4(b.scales, i / 32);
  const float scale = fp16_to_float(b.d) * static_cast<float>(sub.scale);
  const float min = fp16_to_float(b.dmin) * static_cast<float>(sub.min);
  return scale * static_cast<float>(nibble_k(b.qs, i) | mask_bit(b.qh, i) << 4) - min;
}
float element(const BlockQ6_K& b, int i) {
  const float scale = fp16_to_float(b.d) * static_cast<float>(b.scales[i / 16]);
  return scale * static_cast<float>(six_bits(b, i) - 32);
}

float element(const BlockIQ4_NL& b, int i) {
  return fp16_to_float(b.d) * static_cast<float>(kIq4Values[nibble(b.qs, i)]);
}
float element(const BlockIQ4_XS& b, int i) {
  const float scale = fp16_to_float(b.d) * static_cast<float>(unpack_scale_iq4_xs(b, i / 32));
  return scale * static_cast<float>(kIq4Values[nibble(b.qs + i / 32 * 16, i % 32)]);
}
float element(const BlockMXFP4& b, int i) {
  return std::ldexp(static_cast<float>(kFp4Values[nibble(b.qs, i)]), b.e - 128);
}

template <typename Block>
void blocks_to_floats(DType type, const std::byte* src, float* dst, int64_t k) {
  const int elems = static_cast<int>(info(type).block_elems);
  for (int64_t at = 0; at < k; at += elems, src += sizeof(Block), dst += elems) {
    Block block;
    std::memcpy(&block, src, sizeof block);  // the source needs no alignment
    for (int i = 0; i < elems; ++i) dst[i] = element(block, i);
  }
}

void halves_to_floats(const std::byte* src, float* dst, int64_t k, float (*convert)(uint16_t)) {
  for (int64_t i = 0; i < k; ++i) {
    uint16_t h;
    std::memcpy(&h, src + i * 2, sizeof h);
    dst[i] = convert(h);
  }
}

}  // namespace

ScaleMin unpack_scale_min_k4(const uint8_t scales[12], int s) {
  // The six bits of sub-blocks 0..3 are in bytes 0..3 (scales) and 4..7 (offsets). Sub-blocks 4..7 have four bits in
  // the nibbles of bytes 8..11 and the other two in the free upper bits of bytes 0..7.
  if (s < 4) return {static_cast<uint8_t>(scales[s] & 63), static_cast<uint8_t>(scales[s + 4] & 63)};
  return {static_cast<uint8_t>((scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4),
          static_cast<uint8_t>((scales[s + 4] >> 4) | (scales[s] >> 6) << 4)};
}

int unpack_scale_q3_k(const uint8_t scales[12], int s) {
  const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
  const int high = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
  return (low | high << 4) - 32;
}

int unpack_scale_iq4_xs(const BlockIQ4_XS& block, int s) {
  const int low = (block.scales_l[s / 2] >> (s % 2 * 4)) & 15;
  return (low | ((block.scales_h >> (2 * s)) & 3) << 4) - 32;
}

void mxfp4_from_blocks(const std::byte* blocks, const std::byte* scales, int64_t count, std::byte* out) {
  for (int64_t b = 0; b < count; ++b, blocks += 16, out += sizeof(BlockMXFP4)) {
    BlockMXFP4 block = {static_cast<uint8_t>(scales[b]), {}};
    for (int i = 0; i < 8; ++i) {  // bytes i and i + 8 have elements 2i, 2i + 1 and those 16 after them
      const int first = static_cast<int>(blocks[i]), second = static_cast<int>(blocks[i + 8]);
      block.qs[2 * i] = static_cast<uint8_t>((first & 15) | (second & 15) << 4);
      block.qs[2 * i + 1] = static_cast<uint8_t>(first >> 4 | (second & 0xf0));
    }
    std::memcpy(out, &block, sizeof block);
  }
}

void dequantise_row(DType type, const std::byte* src, float* dst, int64_t k) {
  QUIRE_CHECK(k >= 0 && k % info(type).block_elems == 0, "a row consists of whole blocks");
  switch (type) {
    case DType::kF32:
      if (k > 0) std::memcpy(dst, src, static_cast<size_t>(k) * sizeof(float));
      return;
    case DType::kF16:
      return halves_to_floats(src, dst, k, fp16_to_float);
    case DType::kBF16:
      return halves_to_floats(src, dst, k, bf16_to_float);
    case DType::kQ8_0:
      return blocks_to_floats<BlockQ8_0>(type, src, dst, k);
    case DType::kQ4_0:
      return blocks_to_floats<BlockQ4_0>(type, src, dst, k);
    case DType::kQ4_1:
      return blocks_to_floats<BlockQ4_1>(type, src, dst, k);
    case DType::kQ5_0:
      return blocks_to_floats<BlockQ5_0>(type, src, dst, k);
    case DType::kQ5_1:
      return blocks_to_floats<BlockQ5_1>(type, src, dst, k);
    case DType::kQ2_K:
      return blocks_to_floats<BlockQ2_K>(type, src, dst, k);
    case DType::kQ3_K:
      return blocks_to_floats<BlockQ3_K>(type, src, dst, k);
    case DType::kQ4_K:
      return blocks_to_floats<BlockQ4_K>(type, src, dst, k);
    case DType::kQ5_K:
      return blocks_to_floats<BlockQ5_K>(type, src, dst, k);
    case DType::kQ6_K:
      return blocks_to_floats<BlockQ6_K>(type, src, dst, k);
    case DType::kIQ4_NL:
      return blocks_to_floats<BlockIQ4_NL>(type, src, dst, k);
    case DType::kIQ4_XS:
      return blocks_to_floats<BlockIQ4_XS>(type, src, dst, k);
    case DType::kMXFP4:
      return blocks_to_floats<BlockMXFP4>(type, src, dst, k);
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kG4:
    case DType::kG8:
    case DType::kGF8:
      break;
  }
  QUIRE_CHECK(false, "only types that files use have a dequantiser");
}

}  // namespace quire::weights
