// SPDX-License-Identifier: Apache-2.0
// The oracle of linear: ops/linear.h's contract word by word, an element at a time, for tests.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "ops/linear.h"
#include "weights/quant.h"

namespace quire::oracle {

// One block of 32 elements of one row: codes minus offset, and the contract's scales.
struct Block {
  int q[32] = {};  // code - offset
  float sw = 0;    // d, or d*sc
  float wm = 0;
  bool minimum = false;
  bool halves = false;
  int sc[2] = {1, 0};
  int mn[2] = {0, 0};
};

template <typename T>
T read(const std::byte* p) {
  T block;
  std::memcpy(&block, p, sizeof block);
  return block;
}

inline int nibble(const uint8_t* qs, int e) {
  return e < 16 ? qs[e] & 15 : qs[e - 16] >> 4;
}
inline int bit(const uint8_t* bits, int e) {
  return (bits[e / 8] >> (e % 8)) & 1;
}

// Scale i of Q3_K's sixteen.
inline int q3_scale(const uint8_t* s, int i) {
  const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
  const int high = (s[8 + i % 4] >> (i / 4 * 2)) & 3;
  return low + 16 * high - 32;
}
// Scale and minimum j of the eight of Q4_K and Q5_K.
inline int k_scale(const uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) + 16 * (s[j - 4] >> 6);
}
inline int k_min(const uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) + 16 * (s[j] >> 6);
}

template <typename T>
void read_super(const T& b, int i, Block& out) {
  out.minimum = true;
  out.sw = fp16_to_float(b.d) * static_cast<float>(k_scale(b.scales, i));
  out.wm = -(fp16_to_float(b.dmin) * static_cast<float>(k_min(b.scales, i)));
}

// Block i of a row of G4 or G8.
inline Block read_group_block(const RawMatrix& w, int64_t row, int64_t i) {
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data + row * row_bytes(w.dtype, w.k));
  const int64_t group = row * (w.k / w.group) + 32 * i / w.group;
  Block out;
  out.minimum = true;
  out.sw = std::fabs(w.scales[group]) < 0x1p-29f ? 0.0f : w.scales[group];
  out.wm = w.mins == nullptr ? 0.0f : w.mins[group];
  if (w.dtype == DType::kG8) out.wm = std::fma(128.0f, out.sw, out.wm);
  for (int e = 0; e < 32; ++e) {
    const int64_t at = 32 * i + e;
    out.q[e] = w.dtype == DType::kG8 ? codes[at] - 128 : (codes[at / 2] >> (at % 2 * 4)) & 15;
  }
  return out;
}

// Block i (of 32 elements) of a row.
inline Block read_block(const RawMatrix& w, int64_t row_index, int64_t i) {
  using namespace weights;
  const DType type = w.dtype;
  if (w.group != 0) return read_group_block(w, row_index, i);
  const std::byte* row = w.data + row_index * row_bytes(type, w.k);
  const int64_t per = info(type).block_elems / 32;
  const std::byte* p = row + i / per * info(type).block_bytes;
  const int s = static_cast<int>(i % per);  // which 32 of a super-block
  Block out;
  for (int e = 0; e < 32; ++e) {
    const int at = 32 * s + e;                                         // element in the super-block
    const int two = at / 128 * 32 + e, two_shift = at % 128 / 32 * 2;  // Q2_K and Q3_K
    const int four = at / 64 * 32 + e, four_shift = at % 64 / 32 * 4;  // Q4_K and Q5_K
    switch (type) {
      case DType::kQ8_0:
        out.q[e] = read<BlockQ8_0>(p).qs[e];
        break;
      case DType::kQ4_0:
        out.q[e] = nibble(read<BlockQ4_0>(p).qs, e) - 8;
        break;
      case DType::kQ4_1:
        out.q[e] = nibble(read<BlockQ4_1>(p).qs, e);
        break;
      case DType::kQ5_0:
        out.q[e] = nibble(read<BlockQ5_0>(p).qs, e) + 16 * bit(read<BlockQ5_0>(p).qh, e) - 16;
        break;
      case DType::kQ5_1:
        out.q[e] = nibble(read<BlockQ5_1>(p).qs, e) + 16 * bit(read<BlockQ5_1>(p).qh, e);
        break;
      case DType::kQ2_K:
        out.q[e] = (read<BlockQ2_K>(p).qs[two] >> two_shift) & 3;
        break;
      case DType::kQ3_K:
        out.q[e] = ((read<BlockQ3_K>(p).qs[two] >> two_shift) & 3) + 4 * ((read<BlockQ3_K>(p).hmask[e] >> s) & 1) - 4;
        break;
      case DType::kQ4_K:
        out.q[e] = (read<BlockQ4_K>(p).qs[four] >> four_shift) & 15;
        break;
      case DType::kQ5_K:
        out.q[e] = ((read<BlockQ5_K>(p).qs[four] >> four_shift) & 15) + 16 * ((read<BlockQ5_K>(p).qh[e] >> s) & 1);
        break;
      case DType::kIQ4_NL:
        out.q[e] = kIq4Values[nibble(read<BlockIQ4_NL>(p).qs, e)];
        break;
      case DType::kIQ4_XS:
        out.q[e] = kIq4Values[nibble(read<BlockIQ4_XS>(p).qs + 16 * s, e)];
        break;
      case DType::kMXFP4:
        out.q[e] = kFp4Values[nibble(read<BlockMXFP4>(p).qs, e)];
        break;
      default: {  // Q6_K
        const auto b = read<BlockQ6_K>(p);
        const int low = (b.ql[at / 128 * 64 + at % 64] >> (at % 128 / 64 * 4)) & 15;
        out.q[e] = low + 16 * ((b.qh[at / 128 * 32 + e] >> (at % 128 / 32 * 2)) & 3) - 32;
      }
    }
  }
  switch (type) {
    case DType::kQ4_1:
      out.minimum = true;
      out.sw = fp16_to_float(read<BlockQ4_1>(p).d);
      out.wm = fp16_to_float(read<BlockQ4_1>(p).m);
      break;
    case DType::kQ5_1:
      out.minimum = true;
      out.sw = fp16_to_float(read<BlockQ5_1>(p).d);
      out.wm = fp16_to_float(read<BlockQ5_1>(p).m);
      break;
    case DType::kQ4_K:
      read_super(read<BlockQ4_K>(p), s, out);
      break;
    case DType::kQ5_K:
      read_super(read<BlockQ5_K>(p), s, out);
      break;
    case DType::kQ2_K:
      out.minimum = out.halves = true;
      out.sw = fp16_to_float(read<BlockQ2_K>(p).d);
      out.wm = -fp16_to_float(read<BlockQ2_K>(p).dmin);
      for (int h = 0; h < 2; ++h) {
        out.sc[h] = read<BlockQ2_K>(p).scales[2 * s + h] & 15;
        out.mn[h] = read<BlockQ2_K>(p).scales[2 * s + h] >> 4;
      }
      break;
    case DType::kQ3_K:
      out.halves = true;
      out.sw = fp16_to_float(read<BlockQ3_K>(p).d);
      for (int h = 0; h < 2; ++h) out.sc[h] = q3_scale(read<BlockQ3_K>(p).scales, 2 * s + h);
      break;
    case DType::kQ6_K:
      out.halves = true;
      out.sw = fp16_to_float(read<BlockQ6_K>(p).d);
      for (int h = 0; h < 2; ++h) out.sc[h] = read<BlockQ6_K>(p).scales[2 * s + h];
      break;
    case DType::kIQ4_XS:
      out.sw = fp16_to_float(read<BlockIQ4_XS>(p).d) * static_cast<float>(unpack_scale_iq4_xs(read<BlockIQ4_XS>(p), s));
      break;
    case DType::kMXFP4:
      out.sw = read<BlockMXFP4>(p).e < 99 ? 0.0f : std::ldexp(1.0f, read<BlockMXFP4>(p).e - 128);
      break;
    default:
      out.sw = fp16_to_float(read<uint16_t>(p));
  }
  return out;
}

// One block of activations.
struct XBlock {
  int q[32] = {};
  float sa = 0;
};

// How activations are quantised.
enum class Codes { kTwelveBits, kEightBits };

inline XBlock quantise(const float* x, Codes codes) {
  XBlock out;
  float amax = 0;
  bool finite = true;
  for (int i = 0; i < 32; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::fmax(amax, std::fabs(x[i]));
  }
  if (!finite) {
    out.sa = std::numeric_limits<float>::quiet_NaN();
  } else if (amax >= 0x1p-100f) {
    const float largest = codes == Codes::kEightBits ? 127.0f : 2032.0f;
    out.sa = amax / largest;
    const float inverse = largest / amax;
    for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int>(std::nearbyintf(x[i] * inverse));
  }
  return out;
}

inline float add_block(const Block& w, const XBlock& x, float acc) {
  int dot[2] = {0, 0};
  int sum[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    dot[i / 16] += w.q[i] * x.q[i];
    sum[i / 16] += x.q[i];
  }
  float total = static_cast<float>(dot[0] + dot[1]);
  if (w.halves) {
    const float low = std::fma(static_cast<float>(dot[0]), static_cast<float>(w.sc[0]), 0.0f);
    total = std::fma(static_cast<float>(dot[1]), static_cast<float>(w.sc[1]), low);
  }
  acc = std::fma(total, x.sa * w.sw, acc);
  if (!w.minimum) return acc;
  const int j = w.halves ? w.mn[0] * sum[0] + w.mn[1] * sum[1] : sum[0] + sum[1];
  return std::fma(w.wm, x.sa * static_cast<float>(j), acc);
}

// y [m, n] = x [m, k] W^T + bias, quantised activations.
inline std::vector<float> linear_quantised(const RawMatrix& weight, const std::vector<float>& x, const float* bias,
                                           Codes codes = Codes::kTwelveBits) {
  const int64_t n = weight.n, k = weight.k;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  const int64_t blocks = k / 32;
  std::vector<XBlock> xq;
  for (int64_t i = 0; i < m * blocks; ++i) xq.push_back(quantise(x.data() + 32 * i, codes));
  std::vector<float> y(static_cast<size_t>(m * n));
  for (int64_t c = 0; c < n; ++c) {
    std::vector<Block> row;
    for (int64_t b = 0; b < blocks; ++b) row.push_back(read_block(weight, c, b));
    for (int64_t r = 0; r < m; ++r) {
      float acc = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        acc = add_block(row[static_cast<size_t>(b)], xq[static_cast<size_t>(r * blocks + b)], acc);
      }
      y[static_cast<size_t>(r * n + c)] = bias == nullptr ? acc : acc + bias[c];
    }
  }
  return y;
}

// A row of numbers in sixteen-bit fixed point, each 256 * high + low. The low bytes of activations are signed.
struct FixedRow {
  std::vector<int> high, low;
  void add(int v, bool is_signed) {
    high.push_back((v + (is_signed ? 128 : 0)) >> 8);
    low.push_back(v - 256 * high.back());
  }
};

// How many bits the signed code of a type has: a quantised code less half of its range, or a table's entry.
inline int fixed_bits(DType type) {
  switch (type) {
    case DType::kQ2_K:
      return 2;
    case DType::kQ3_K:
      return 3;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
    case DType::kG4:
      return 4;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kMXFP4:
      return 5;
    case DType::kQ6_K:
      return 6;
    default:
      return 8;
  }
}

// y [m, n] = x [m, k] W^T + bias in fixed point, the form of AMX.
inline std::vector<float> linear_fixed(const RawMatrix& weight, const std::vector<float>& x, const float* bias) {
  const int64_t n = weight.n, k = weight.k;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  const int bits = fixed_bits(weight.dtype), half = 1 << (bits - 1);
  std::vector<FixedRow> xs(static_cast<size_t>(m)), ws(static_cast<size_t>(n));
  std::vector<float> sa(static_cast<size_t>(m)), unit(static_cast<size_t>(n));
  for (int64_t r = 0; r < m; ++r) {
    const float* row = x.data() + r * k;
    float amax = 0;
    bool finite = true;
    for (int64_t i = 0; i < k; ++i) {
      finite = finite && std::isfinite(row[i]);
      amax = std::fmax(amax, std::fabs(row[i]));
    }
    const bool kept = finite && amax >= 0x1p-100f;
    sa[static_cast<size_t>(r)] = !finite ? std::numeric_limits<float>::quiet_NaN() : kept ? amax / 32256.0f : 0.0f;
    const float inverse = kept ? 32256.0f / amax : 0.0f;
    for (int64_t i = 0; i < k; ++i) {
      xs[static_cast<size_t>(r)].add(kept ? static_cast<int>(std::nearbyintf(row[i] * inverse)) : 0, true);
    }
  }
  for (int64_t c = 0; c < n; ++c) {
    // A weight is q * sw + o, with codes of types that have no sign made signed.
    struct Half {
      float sw, o;
    };
    std::vector<Half> halves;
    std::vector<int> q;
    float bound = 0;
    for (int64_t b = 0; b < k / 32; ++b) {
      const Block block = read_block(weight, c, b);
      const bool is_signed = !block.minimum || weight.dtype == DType::kG8;
      for (int h = 0; h < 2; ++h) {
        const float sw = block.halves ? block.sw * static_cast<float>(block.sc[h]) : block.sw;
        const float wm = block.halves ? block.wm * static_cast<float>(block.mn[h]) : block.wm;
        const float o = std::fma(is_signed ? 0.0f : static_cast<float>(half), sw, block.minimum ? wm : 0.0f);
        halves.push_back({sw, o});
        bound = std::fmax(bound, static_cast<float>(half) * std::fabs(sw) + std::fabs(o));
      }
      for (int e = 0; e < 32; ++e) q.push_back(is_signed ? block.q[e] : block.q[e] - half);
    }
    unit[static_cast<size_t>(c)] = bound < 0x1p-100f ? 0.0f : bound / 126.0f;
    const float inverse = bound < 0x1p-100f ? 0.0f : 32256.0f / bound;
    for (int64_t i = 0; i < k; ++i) {
      const Half& scales = halves[static_cast<size_t>(i / 16)];
      const double factor = inverse * static_cast<float>(half);
      const int scale = static_cast<int>(std::nearbyint(scales.sw * factor));
      const int add = static_cast<int>(std::nearbyint(static_cast<double>(scales.o) * inverse));
      const int product = q[static_cast<size_t>(i)] * (1 << (16 - bits)) * scale;
      ws[static_cast<size_t>(c)].add(((product + (1 << 14)) >> 15) + add, false);
    }
  }
  std::vector<float> y(static_cast<size_t>(m * n));
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const FixedRow &a = xs[static_cast<size_t>(r)], &w = ws[static_cast<size_t>(c)];
      int32_t high = 0, mixed = 0, lows = 0;
      for (size_t i = 0; i < a.high.size(); ++i) {
        high += a.high[i] * w.high[i];
        mixed += a.high[i] * w.low[i] + a.low[i] * w.high[i];
        lows += a.low[i];
      }
      mixed += lows >> 1;
      const float sum = std::fma(static_cast<float>(high), 256.0f, static_cast<float>(mixed));
      const float v = sum * unit[static_cast<size_t>(c)] * sa[static_cast<size_t>(r)];
      y[static_cast<size_t>(r * n + c)] = bias == nullptr ? v : v + bias[c];
    }
  }
  return y;
}

// The weight as floats, [n, k].
inline std::vector<float> weight_values(const RawMatrix& weight) {
  const int64_t n = weight.n, k = weight.k;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n; ++i) {
    if (weight.group == 0) {
      weights::dequantise_row(weight.dtype, weight.data + i * row_bytes(weight.dtype, k), values.data() + i * k, k);
      continue;
    }
    for (int64_t b = 0; b < k / 32; ++b) {
      const Block block = read_block(weight, i, b);
      for (int e = 0; e < 32; ++e) {
        values[static_cast<size_t>(i * k + 32 * b + e)] = std::fma(block.sw, static_cast<float>(block.q[e]), block.wm);
      }
    }
  }
  return values;
}

// Rounded activations and BF16 weights, the form of AMX for these. Tiny numbers count as zero throughout.
inline float flush(float v) {
  return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v;
}
inline float from_upper(uint32_t bits) {
  float v;
  bits &= 0xffff0000u;
  std::memcpy(&v, &bits, sizeof v);
  return flush(v);
}
// Activations: ties to even.
inline float round_activation(float v) {
  return from_upper(static_cast<uint32_t>(float_to_bf16(flush(v))) << 16);
}

inline std::vector<float> linear_rounded(const RawMatrix& weight, const std::vector<float>& x, const float* bias) {
  const int64_t n = weight.n, k = weight.k;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  std::vector<float> w = weight_values(weight);
  std::vector<float> xs = x;
  for (float& v : w) v = flush(v);
  for (float& v : xs) v = round_activation(v);
  std::vector<float> y(static_cast<size_t>(m * n));
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const float* a = xs.data() + r * k;
      const float* b = w.data() + c * k;
      float acc = 0;
      for (int64_t step = 0; step < k; step += 32) {
        float even = 0, odd = 0;
        for (int64_t i = step; i < step + 32; i += 2) {
          if (i < k) even = flush(std::fma(a[i], b[i], even));
          if (i + 1 < k) odd = flush(std::fma(a[i + 1], b[i + 1], odd));
        }
        acc = flush(acc + flush(even + odd));
      }
      y[static_cast<size_t>(r * n + c)] = bias == nullptr ? acc : acc + bias[c];
    }
  }
  return y;
}

// Paired: BF16 weights with bfmmla. A sum rounded to odd: an inexact one takes that of the two floats around it
// whose last bit is 1. First so in double, then to float: rounding to odd twice is rounding to odd once.
inline float add_to_odd(float a, float b) {
  const double wide = static_cast<double>(a) + static_cast<double>(b);
  if (!std::isfinite(wide) || wide == 0) return static_cast<float>(wide);
  const double part = wide - static_cast<double>(a);
  const double error = (static_cast<double>(a) - (wide - part)) + (static_cast<double>(b) - part);
  uint64_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  if (error != 0 && bits % 2 == 0) bits = (error > 0) == (wide > 0) ? bits + 1 : bits - 1;
  double odd;
  std::memcpy(&odd, &bits, sizeof odd);
  if (std::fabs(odd) < static_cast<double>(std::numeric_limits<float>::min()))
    return std::copysign(0.0f, static_cast<float>(odd));
  constexpr uint64_t kBelow = (uint64_t{1} << 29) - 1;  // bits of a double that a float has not
  const bool inexact = (bits & kBelow) != 0;
  bits &= ~kBelow;
  if (inexact) bits |= kBelow + 1;
  std::memcpy(&odd, &bits, sizeof odd);
  return static_cast<float>(odd);
}

// x[i] * w[i] + x[i+1] * w[i+1] is rounded to odd once, then its sum with acc once. Products of bf16 are exact (or
// tiny, or beyond float).
inline float add_two(float acc, const float* x, const float* w) {
  return add_to_odd(acc, add_to_odd(flush(x[0] * w[0]), flush(x[1] * w[1])));
}

inline std::vector<float> linear_paired(const RawMatrix& weight, const std::vector<float>& x, const float* bias) {
  const int64_t n = weight.n, k = weight.k;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  const int64_t padded = (k + 31) / 32 * 32;
  const std::vector<float> values = weight_values(weight);
  std::vector<float> w(static_cast<size_t>(n * padded)), xs(static_cast<size_t>(m * padded));
  for (int64_t i = 0; i < n * k; ++i)
    w[static_cast<size_t>(i / k * padded + i % k)] = flush(values[static_cast<size_t>(i)]);
  for (int64_t i = 0; i < m * k; ++i) {
    xs[static_cast<size_t>(i / k * padded + i % k)] = flush(bf16_to_float(float_to_bf16(x[static_cast<size_t>(i)])));
  }
  std::vector<float> y(static_cast<size_t>(m * n));
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      float acc = 0;
      for (int64_t i = 0; i < padded; i += 2) acc = add_two(acc, xs.data() + r * padded + i, w.data() + c * padded + i);
      y[static_cast<size_t>(r * n + c)] = bias == nullptr ? acc : acc + bias[c];
    }
  }
  return y;
}

// The same with float activations.
inline std::vector<float> linear_float(const RawMatrix& weight, const std::vector<float>& x, const float* bias) {
  const int64_t n = weight.n, k = weight.k;
  const int64_t m = static_cast<int64_t>(x.size()) / k;
  const std::vector<float> w = weight_values(weight);
  std::vector<float> y(static_cast<size_t>(m * n));
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      float acc = 0;
      for (int64_t i = 0; i < k; ++i) {
        acc = std::fma(x[static_cast<size_t>(r * k + i)], w[static_cast<size_t>(c * k + i)], acc);
      }
      y[static_cast<size_t>(r * n + c)] = bias == nullptr ? acc : acc + bias[c];
    }
  }
  return y;
}

}  // namespace quire::oracle
