// SPDX-License-Identifier: Apache-2.0
// Random codes and scales, row by row.
#include "backend/random_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "base/math.h"
#include "base/philox.h"

namespace quire {
namespace {

constexpr int64_t kPhiloxBytes = 16;

// The bytes of `count` counters from `first` on, several of them side by side so that it vectorises.
void philox_bytes(uint64_t key, uint64_t first, int64_t count, uint8_t* to) {
  constexpr size_t kLanes = 64;
  uint32_t c[4][kLanes];
  for (int64_t at = 0; at < count; at += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t counter = first + static_cast<uint64_t>(at) + lane;
      c[0][lane] = static_cast<uint32_t>(counter);
      c[1][lane] = static_cast<uint32_t>(counter >> 32);
      c[2][lane] = c[3][lane] = 0;
    }
    Philox::generate_lanes(key, c);
    const size_t lanes = std::min(kLanes, static_cast<size_t>(count - at));
    for (size_t lane = 0; lane < lanes; ++lane, to += kPhiloxBytes) {
      const uint32_t words[4] = {c[0][lane], c[1][lane], c[2][lane], c[3][lane]};
      static_assert(std::endian::native == std::endian::little);
      std::memcpy(to, words, sizeof words);
    }
  }
}

}  // namespace

RandomRow::Scale RandomRow::scale_at(int64_t column) const {
  const RandomElements::Codes& codes = random_.codes;
  const int64_t per_row = ceil_div(k_, codes.scale_columns);
  const int64_t index = row_ / codes.scale_rows * per_row + column / codes.scale_columns;
  const Philox::Block words = Philox::generate(random_.key ^ kRandomScales, static_cast<uint64_t>(index));
  const float v = 2.0f * uniform_from_bits(words[0]) - 1.0f;
  const float d = random_.scale * (1.0f + 0.25f * v);
  const bool negative = codes.middle == 0.0f && !codes.fp8 && words[0] % 2 == 1;
  return {negative ? -d : d, words[0], {words[1], words[2]}};
}

void RandomRow::make_codes(int64_t begin) {
  const int64_t first = begin / kPhiloxBytes, count = ceil_div(begin + k_, kPhiloxBytes) - first;
  bytes_.resize(static_cast<size_t>(count * kPhiloxBytes));
  philox_bytes(random_.key, static_cast<uint64_t>(first), count, bytes_.data());
  codes_ = bytes_.data() + begin % kPhiloxBytes;
  if (random_.codes.fp8) {
    for (int64_t i = 0; i < k_; ++i) {
      codes_[i] = static_cast<uint8_t>((codes_[i] & 0x80) | (88 + ((codes_[i] >> 2) & 31)));
    }
    return;
  }
  const int shift = 8 - random_.codes.bits;
  for (int64_t i = 0; i < k_; ++i) codes_[i] = static_cast<uint8_t>(codes_[i] >> shift);
}

// G4, G8 and GF8, as files have them.
void RandomRow::make_groups(DType type, int64_t group) {
  data_.resize(static_cast<size_t>(row_bytes(type, k_)));
  if (type == DType::kG4) {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = std::byte(codes_[2 * i] | codes_[2 * i + 1] << 4);
  } else {
    std::memcpy(data_.data(), codes_, data_.size());
  }
  scales_.clear();
  mins_.clear();
  for (int64_t column = 0; column < k_; column += group) {
    const Scale scale = scale_at(column);
    scales_.push_back(type == DType::kGF8 ? scale.d : fp16_to_float(float_to_fp16(scale.d)));
    if (type == DType::kGF8) continue;
    mins_.push_back(-((random_.codes.middle + (scale.first % 2 == 1 ? 0.5f : -0.5f)) * scales_.back()));
  }
}

// The values of fp8 codes, as the loader of a file computes them.
void RandomRow::make_values(DType type) {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> out{};
    for (size_t i = 0; i < out.size(); ++i) out[i] = fp8_e4m3_to_float(static_cast<uint8_t>(i));
    return out;
  }();
  data_.resize(static_cast<size_t>(row_bytes(type, k_)));
  for (int64_t begin = 0; begin < k_; begin += random_.codes.scale_columns) {
    const float scale = scale_at(begin).d;
    const int64_t end = std::min(k_, begin + random_.codes.scale_columns);
    for (int64_t i = begin; i < end; ++i) {
      const float value = kValues[codes_[i]] * scale;
      const uint16_t half = float_to_bf16(value);
      if (type == DType::kF32) std::memcpy(data_.data() + 4 * i, &value, sizeof value);
      if (type != DType::kF32) std::memcpy(data_.data() + 2 * i, &half, sizeof half);
    }
  }
}

SourceRow RandomRow::make(const RawMatrix& part, int64_t row) {
  random_ = *part.random;
  k_ = part.k;
  QUIRE_CHECK(random_.codes.bits > 0 && random_.codes.scale_columns > 0 && random_.first % k_ == 0);
  QUIRE_CHECK(is_quantised(part.dtype) || (random_.codes.fp8 && part.dtype != DType::kF16));
  row_ = random_.first / k_ + row;
  make_codes(row_ * k_);
  if (!is_quantised(part.dtype)) {
    make_values(part.dtype);
    return {data_.data()};
  }
  if (!is_grouped(part.dtype)) return {nullptr, nullptr, nullptr, this};
  make_groups(part.dtype, part.group);
  return {data_.data(), scales_.data(), mins_.empty() ? nullptr : mins_.data()};
}

void RandomRow::block(DType type, int64_t index, UnpackedBlock& out) const {
  const int64_t elements = info(type).block_elems, first = index * elements;
  std::memcpy(out.codes, codes_ + first, static_cast<size_t>(elements));
  const Scale scale = scale_at(first);
  if (type == DType::kMXFP4) {
    out.exponent = static_cast<uint8_t>((std::bit_cast<uint32_t>(random_.scale) >> 23) + 1 - scale.first % 2);
    return;
  }
  const float least = random_.codes.middle * scale.d;
  out.d = float_to_fp16(scale.d);
  out.m = float_to_fp16(random_.codes.sub > 0 ? least : -least);
  const auto sub = [&](int i) {
    return static_cast<uint8_t>(random_.codes.sub + (scale.nibble(i) * random_.codes.sub >> 4));
  };
  for (int i = 0; i < 8 && random_.codes.sub > 0; ++i) {
    const bool both = type == DType::kQ4_K || type == DType::kQ5_K;  // a scale and a minimum
    out.scales[i][0] = sub(2 * i);
    out.scales[i][1] = sub(both ? 2 * i : 2 * i + 1);
    if (type != DType::kQ2_K) continue;
    for (uint8_t& two : out.scales[i]) two = static_cast<uint8_t>(two | two << 4);
  }
}

}  // namespace quire
