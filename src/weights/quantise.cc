// SPDX-License-Identifier: Apache-2.0
// Reference quantisers: scales from the extremes of a block, then rounding to nearest. They make valid blocks for tests
// and tools and do not search for better scales.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "weights/quant.h"

namespace quire::weights {
namespace {

// round(x / scale), clamped to [low, high]; for a scale of 0, 0 clamped.
int round_to(float x, float scale, int low, int high) {
  if (scale == 0.0f) return std::clamp(0, low, high);
  const float q = std::nearbyint(x / scale);
  return static_cast<int>(std::clamp(q, static_cast<float>(low), static_cast<float>(high)));
}

// The value furthest from zero, with its sign.
float extreme(const float* x, int n) {
  float found = 0;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(found)) found = x[i];
  }
  return found;
}

// A scale rounded as in the file, so that the quantiser divides by what a reader multiplies with.
struct Half {
  uint16_t bits;
  float value;
  explicit Half(float f) : bits(float_to_fp16(f)), value(fp16_to_float(bits)) {}
};

void set_nibble(uint8_t* qs, int byte, bool high, int q) {
  qs[byte] = static_cast<uint8_t>(qs[byte] | (high ? q << 4 : q));
}
void set_q4(uint8_t qs[16], int i, int q) {
  set_nibble(qs, i % 16, i >= 16, q & 15);
}
void set_q5(uint8_t qs[16], uint8_t qh[4], int i, int q) {
  set_q4(qs, i, q & 15);
  qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | (q >> 4) << (i % 8));
}
void set_low_pair(uint8_t qs[64], int i, int q) {
  uint8_t& byte = qs[i / 128 * 32 + i % 32];
  byte = static_cast<uint8_t>(byte | q << (i % 128 / 32 * 2));
}
void set_mask_bit(uint8_t mask[32], int i, int bit) {
  mask[i % 32] = static_cast<uint8_t>(mask[i % 32] | bit << (i / 32));
}

void quantise(const float* x, BlockQ8_0& b) {
  const Half d(std::fabs(extreme(x, 32)) / 127.0f);
  b.d = d.bits;
  for (int i = 0; i < 32; ++i) b.qs[i] = static_cast<int8_t>(round_to(x[i], d.value, -127, 127));
}

// Q4_0 and Q5_0 give the extreme value the lowest code, which reaches one step further than the highest.
void quantise(const float* x, BlockQ4_0& b) {
  const Half d(extreme(x, 32) / -8.0f);
  b.d = d.bits;
  for (int i = 0; i < 32; ++i) set_q4(b.qs, i, round_to(x[i], d.value, -8, 7) + 8);
}
void quantise(const float* x, BlockQ5_0& b) {
  const Half d(extreme(x, 32) / -16.0f);
  b.d = d.bits;
  for (int i = 0; i < 32; ++i) set_q5(b.qs, b.qh, i, round_to(x[i], d.value, -16, 15) + 16);
}

void quantise(const float* x, BlockQ4_1& b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const Half m(*low);
  const Half d((*high - *low) / 15.0f);
  b.d = d.bits;
  b.m = m.bits;
  for (int i = 0; i < 32; ++i) set_q4(b.qs, i, round_to(x[i] - m.value, d.value, 0, 15));
}
void quantise(const float* x, BlockQ5_1& b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const Half m(*low);
  const Half d((*high - *low) / 31.0f);
  b.d = d.bits;
  b.m = m.bits;
  for (int i = 0; i < 32; ++i) set_q5(b.qs, b.qh, i, round_to(x[i] - m.value, d.value, 0, 31));
}

// Sub-blocks with scale and offset, for Q2_K, Q4_K and Q5_K: x is about d * sc * q - dmin * mn with q in 0..top.
template <int kSubs>
struct OffsetScales {
  Half d{0};
  Half dmin{0};
  int scale[kSubs] = {};
  int min[kSubs] = {};

  OffsetScales(const float* x, int top, int top_scale) {
    constexpr int kElems = 256 / kSubs;
    float step[kSubs];
    float below[kSubs];
    for (int s = 0; s < kSubs; ++s) {
      const auto [low, high] = std::minmax_element(x + s * kElems, x + (s + 1) * kElems);
      below[s] = std::max(0.0f, -*low);  // the offset is never positive
      step[s] = (std::max(0.0f, *high) + below[s]) / static_cast<float>(top);
    }
    d = Half(*std::max_element(step, step + kSubs) / static_cast<float>(top_scale));
    dmin = Half(*std::max_element(below, below + kSubs) / static_cast<float>(top_scale));
    for (int s = 0; s < kSubs; ++s) {
      scale[s] = round_to(step[s], d.value, 0, top_scale);
      min[s] = round_to(below[s], dmin.value, 0, top_scale);
    }
  }
  int code(float x, int s, int top) const {
    const float offset = dmin.value * static_cast<float>(min[s]);
    return round_to(x + offset, d.value * static_cast<float>(scale[s]), 0, top);
  }
  void pack_k4(uint8_t scales[12]) const {
    for (int s = 0; s < 4; ++s) {
      scales[s] = static_cast<uint8_t>(scale[s] | (scale[s + 4] >> 4) << 6);
      scales[s + 4] = static_cast<uint8_t>(min[s] | (min[s + 4] >> 4) << 6);
      scales[s + 8] = static_cast<uint8_t>((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
    }
  }
};

void quantise(const float* x, BlockQ2_K& b) {
  const OffsetScales<16> subs(x, 3, 15);
  b.d = subs.d.bits;
  b.dmin = subs.dmin.bits;
  for (int s = 0; s < 16; ++s) b.scales[s] = static_cast<uint8_t>(subs.scale[s] | subs.min[s] << 4);
  for (int i = 0; i < 256; ++i) set_low_pair(b.qs, i, subs.code(x[i], i / 16, 3));
}
void quantise(const float* x, BlockQ4_K& b) {
  const OffsetScales<8> subs(x, 15, 63);
  b.d = subs.d.bits;
  b.dmin = subs.dmin.bits;
  subs.pack_k4(b.scales);
  for (int i = 0; i < 256; ++i) set_nibble(b.qs, i / 64 * 32 + i % 32, i % 64 >= 32, subs.code(x[i], i / 32, 15));
}
void quantise(const float* x, BlockQ5_K& b) {
  const OffsetScales<8> subs(x, 31, 63);
  b.d = subs.d.bits;
  b.dmin = subs.dmin.bits;
  subs.pack_k4(b.scales);
  for (int i = 0; i < 256; ++i) {
    const int q = subs.code(x[i], i / 32, 31);
    set_nibble(b.qs, i / 64 * 32 + i % 32, i % 64 >= 32, q & 15);
    set_mask_bit(b.qh, i, q >> 4);
  }
}

// Sub-blocks with only a signed scale, for Q3_K and Q6_K: x is about d * sc * q with q in low..-low - 1.
struct SignedScales {
  Half d{0};
  int scale[16] = {};

  SignedScales(const float* x, int low, int low_scale) {
    float step[16];
    for (int s = 0; s < 16; ++s) step[s] = extreme(x + s * 16, 16) / static_cast<float>(low);
    d = Half(extreme(step, 16) / static_cast<float>(low_scale));
    for (int s = 0; s < 16; ++s) scale[s] = round_to(step[s], d.value, low_scale, -low_scale - 1);
  }
  int code(float x, int s, int low) const { return round_to(x, d.value * static_cast<float>(scale[s]), low, -low - 1); }
};

void quantise(const float* x, BlockQ3_K& b) {
  const SignedScales subs(x, -4, -32);
  b.d = subs.d.bits;
  for (int s = 0; s < 16; ++s) {
    const int bits = subs.scale[s] + 32;
    set_nibble(b.scales, s % 8, s >= 8, bits & 15);
    b.scales[8 + s % 4] = static_cast<uint8_t>(b.scales[8 + s % 4] | (bits >> 4) << (s / 4 * 2));
  }
  for (int i = 0; i < 256; ++i) {
    const int q = subs.code(x[i], i / 16, -4) + 4;
    set_low_pair(b.qs, i, q & 3);
    set_mask_bit(b.hmask, i, q >> 2);
  }
}
void quantise(const float* x, BlockQ6_K& b) {
  const SignedScales subs(x, -32, -128);
  b.d = subs.d.bits;
  for (int s = 0; s < 16; ++s) b.scales[s] = static_cast<int8_t>(subs.scale[s]);
  for (int i = 0; i < 256; ++i) {
    const int q = subs.code(x[i], i / 16, -32) + 32;
    const int quarter = i % 128 / 32;
    set_nibble(b.ql, i / 128 * 64 + i % 64, quarter >= 2, q & 15);
    uint8_t& high = b.qh[i / 128 * 32 + i % 32];
    high = static_cast<uint8_t>(high | (q >> 4) << (quarter * 2));
  }
}

// The index of the value nearest to x / scale.
int nearest(const int8_t values[16], float x, float scale) {
  int best = 0;
  for (int q = 1; q < 16; ++q) {
    const auto distance = [&](int i) { return std::fabs(scale * static_cast<float>(values[i]) - x); };
    if (distance(q) < distance(best)) best = q;
  }
  return best;
}

// The extreme value gets the lowest value of IQ4's table, which reaches further than the highest.
void quantise(const float* x, BlockIQ4_NL& b) {
  const Half d(extreme(x, 32) / -127.0f);
  b.d = d.bits;
  for (int i = 0; i < 32; ++i) set_q4(b.qs, i, nearest(kIq4Values, x[i], d.value));
}
void quantise(const float* x, BlockIQ4_XS& b) {
  float step[8];
  for (int s = 0; s < 8; ++s) step[s] = extreme(x + 32 * s, 32) / -127.0f;
  const Half d(extreme(step, 8) / -32.0f);
  b.d = d.bits;
  for (int s = 0; s < 8; ++s) {
    const int scale = round_to(step[s], d.value, -32, 31);
    set_nibble(b.scales_l, s / 2, s % 2 == 1, (scale + 32) & 15);
    b.scales_h = static_cast<uint16_t>(b.scales_h | ((scale + 32) >> 4) << (2 * s));
    for (int i = 0; i < 32; ++i) {
      set_q4(b.qs + 16 * s, i, nearest(kIq4Values, x[32 * s + i], d.value * static_cast<float>(scale)));
    }
  }
}
// The scale is chosen so that the extreme is 4 to 8 halves of its unit; the largest table value is 6.
void quantise(const float* x, BlockMXFP4& b) {
  const float most = std::fabs(extreme(x, 32));
  b.e = static_cast<uint8_t>(most == 0.0f ? 0 : std::clamp(std::ilogb(most) - 2 + 127, 0, 254));
  for (int i = 0; i < 32; ++i) set_q4(b.qs, i, nearest(kFp4Values, x[i], std::ldexp(1.0f, b.e - 128)));
}

template <typename Block>
void floats_to_blocks(DType type, const float* src, std::byte* dst, int64_t k) {
  const int64_t elems = info(type).block_elems;
  for (int64_t at = 0; at < k; at += elems, src += elems, dst += sizeof(Block)) {
    Block block{};
    quantise(src, block);
    std::memcpy(dst, &block, sizeof block);
  }
}

void floats_to_halves(const float* src, std::byte* dst, int64_t k, uint16_t (*convert)(float)) {
  for (int64_t i = 0; i < k; ++i) {
    const uint16_t h = convert(src[i]);
    std::memcpy(dst + i * 2, &h, sizeof h);
  }
}

}  // namespace

void quantise_row(DType type, const float* src, std::byte* dst, int64_t k) {
  QUIRE_CHECK(k >= 0 && k % info(type).block_elems == 0, "a row consists of whole blocks");
  switch (type) {
    case DType::kF32:
      if (k > 0) std::memcpy(dst, src, static_cast<size_t>(k) * sizeof(float));
      return;
    case DType::kF16:
      return floats_to_halves(src, dst, k, float_to_fp16);
    case DType::kBF16:
      return floats_to_halves(src, dst, k, float_to_bf16);
    case DType::kQ8_0:
      return floats_to_blocks<BlockQ8_0>(type, src, dst, k);
    case DType::kQ4_0:
      return floats_to_blocks<BlockQ4_0>(type, src, dst, k);
    case DType::kQ4_1:
      return floats_to_blocks<BlockQ4_1>(type, src, dst, k);
    case DType::kQ5_0:
      return floats_to_blocks<BlockQ5_0>(type, src, dst, k);
    case DType::kQ5_1:
      return floats_to_blocks<BlockQ5_1>(type, src, dst, k);
    case DType::kQ2_K:
      return floats_to_blocks<BlockQ2_K>(type, src, dst, k);
    case DType::kQ3_K:
      return floats_to_blocks<BlockQ3_K>(type, src, dst, k);
    case DType::kQ4_K:
      return floats_to_blocks<BlockQ4_K>(type, src, dst, k);
    case DType::kQ5_K:
      return floats_to_blocks<BlockQ5_K>(type, src, dst, k);
    case DType::kQ6_K:
      return floats_to_blocks<BlockQ6_K>(type, src, dst, k);
    case DType::kIQ4_NL:
      return floats_to_blocks<BlockIQ4_NL>(type, src, dst, k);
    case DType::kIQ4_XS:
      return floats_to_blocks<BlockIQ4_XS>(type, src, dst, k);
    case DType::kMXFP4:
      return floats_to_blocks<BlockMXFP4>(type, src, dst, k);
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kG4:
    case DType::kG8:
    case DType::kGF8:
      break;
  }
  QUIRE_CHECK(false, "only types that files use have a quantiser");
}

}  // namespace quire::weights
