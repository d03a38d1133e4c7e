// SPDX-License-Identifier: Apache-2.0
// Cases of linear: one list for the tests of every backend and the micro-benchmark, with random weights in file format.
#pragma once

#include <cstring>
#include <iterator>
#include <vector>

#include "base/half.h"
#include "base/math.h"
#include "base/philox.h"
#include "ops/linear.h"

namespace quire::cases {

inline constexpr DType kQuantTypes[] = {DType::kQ8_0,   DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,
                                        DType::kQ2_K,   DType::kQ3_K,   DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K,
                                        DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kG4,   DType::kG8};
// With the type that only GPUs pack.
inline std::vector<DType> gpu_quant_types() {
  std::vector<DType> out(std::begin(kQuantTypes), std::end(kQuantTypes));
  out.push_back(DType::kGF8);
  return out;
}
inline constexpr DType kPlainTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

struct LinearShape {
  int64_t n;
  int64_t k;  // rounded up to the type's block
};
// Panels that are full, partial and single; K of one block, an odd count of blocks, and real layers.
inline constexpr LinearShape kLinearShapes[] = {{1, 32},    {15, 96},   {16, 256}, {17, 576}, {100, 512},
                                                {33, 1536}, {576, 288}, {247, 64}, {295, 32}};
inline constexpr int64_t kLinearRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 20, 33, 64, 130};
inline constexpr int64_t kMaxLinearRows = 130;
// What a 135M model runs: qkv, o, gate+up, down.
inline constexpr LinearShape kBenchShapes[] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
inline constexpr int64_t kBenchRows[] = {1, 2, 4, 8, 16, 32, 128, 512};

inline int64_t rounded_k(DType type, int64_t k) {
  const int64_t block = info(type).block_elems;
  return round_up(k, block);
}

// A stream of random numbers that depends on its key alone.
class Random {
 public:
  explicit Random(uint64_t key) : key_(key) {}
  uint32_t next() {
    if (at_ == 4) {
      block_ = Philox::generate(key_, counter_++);
      at_ = 0;
    }
    return block_[at_++];
  }
  float uniform(float low, float high) { return low + (high - low) * uniform_from_bits(next()); }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
  Philox::Block block_ = {};
  size_t at_ = 4;
};

// The places of the fp16 fields of a block; -1: none.
struct HalfFields {
  int first;
  int second;
};
inline HalfFields half_fields(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, -1};
    case DType::kQ6_K:
      return {208, -1};
    case DType::kMXFP4:
      return {-1, -1};
    default:
      return {0, -1};
  }
}

// n rows of k elements: every bit of the codes and integer scales random, fp16 scales of a sane size and either sign.
inline std::vector<std::byte> random_weight(DType type, int64_t n, int64_t k, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(n * row_bytes(type, k)));
  if (!is_quantised(type)) {
    for (int64_t i = 0; i < n * k; ++i) {
      const float value = random.uniform(-1, 1);
      const uint16_t half = type == DType::kF16 ? float_to_fp16(value) : float_to_bf16(value);
      if (type == DType::kF32) std::memcpy(bytes.data() + 4 * i, &value, 4);
      if (type != DType::kF32) std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
  }
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next() >> 24);
  if (type == DType::kG4 || type == DType::kG8) return bytes;  // their scales are stored separately
  if (type == DType::kGF8) {
    for (std::byte& b : bytes) b = (b & std::byte{0x7f}) == std::byte{0x7f} ? b ^ std::byte{1} : b;  // no NaN
    return bytes;
  }
  const HalfFields fields = half_fields(type);
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info(type).block_bytes)) {
    if (type == DType::kMXFP4) bytes[at] = static_cast<std::byte>(112 + random.next() % 16);  // 2^-16 to 1/2
    for (const int field : {fields.first, fields.second}) {
      if (field < 0) continue;
      const uint16_t half = float_to_fp16(random.uniform(-0.03f, 0.03f));
      std::memcpy(bytes.data() + at + static_cast<size_t>(field), &half, 2);
    }
  }
  return bytes;
}

// A weight as a file holds it, with the memory behind it; moving it keeps raw() valid.
struct Weight {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<std::byte> bytes;
  // G4, G8 and GF8.
  int64_t group = 0;
  std::vector<float> scales;
  std::vector<float> mins;  // empty: none

  RawMatrix raw() const {
    RawMatrix out{dtype, n, k, bytes.data()};
    out.group = group;
    out.scales = group == 0 ? nullptr : scales.data();
    out.mins = mins.empty() ? nullptr : mins.data();
    return out;
  }
};

// Groups of some size that divides k, powers of two and others.
inline int64_t group_of(int64_t k) {
  for (const int64_t group : {128, 96, 64}) {
    if (k % group == 0) return group;
  }
  return 32;
}

// `zero_points`: G4 has fp16 numbers as scales, and whole zero points, as checkpoints do.
inline Weight random_weight_of(DType type, int64_t n, int64_t k, uint64_t seed, int64_t group = 0,
                               bool zero_points = false) {
  Weight w{type, n, k, random_weight(type, n, k, seed), 0, {}, {}};
  if (type != DType::kG4 && type != DType::kG8 && type != DType::kGF8) return w;
  w.group = group == 0 ? group_of(k) : group;
  Random random(seed + 1);
  for (int64_t i = 0; i < n * (k / w.group); ++i) {
    const float scale = random.uniform(-0.03f, 0.03f);
    w.scales.push_back(zero_points ? fp16_to_float(float_to_fp16(scale)) : scale);
    if (type == DType::kGF8) continue;
    w.mins.push_back(zero_points ? -static_cast<float>(random.next() % 32) * w.scales.back() : random.uniform(-1, 1));
  }
  return w;
}

// A weight of GF8 as the plain one, F32 or BF16, that has the same values (ops/linear.h).
inline Weight expanded(const Weight& from, DType type) {
  Weight out{type, from.n, from.k, std::vector<std::byte>(static_cast<size_t>(from.n * row_bytes(type, from.k))),
             0,    {},     {}};
  for (int64_t i = 0; i < from.n * from.k; ++i) {
    const auto code = static_cast<uint8_t>(from.bytes[static_cast<size_t>(i)]);
    const float value = fp8_e4m3_to_float(code) * from.scales[static_cast<size_t>(i / from.group)];
    const uint16_t half = float_to_bf16(value);
    if (type == DType::kF32) std::memcpy(out.bytes.data() + 4 * i, &value, 4);
    if (type != DType::kF32) std::memcpy(out.bytes.data() + 2 * i, &half, 2);
  }
  return out;
}

// Activations of mixed size, with whole blocks of zeros, and halves that are ties of the rounding rule.
inline std::vector<float> random_rows(int64_t rows, int64_t k, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t kind = Philox::generate(seed + 1, i / 32)[0] % 16;
    const float value = random.uniform(-1, 1);
    if (kind == 0) {
      x[i] = 0.0f;
    } else if (kind == 1) {
      x[i] = i % 32 == 0 ? 127.0f : static_cast<float>(static_cast<int>(value * 253)) / 2;
    } else if (kind == 2) {
      x[i] = value * 1000.0f;
    } else if (kind == 3) {
      x[i] = value * 1e-30f;
    } else {
      x[i] = value;
    }
  }
  return x;
}

}  // namespace quire::cases
