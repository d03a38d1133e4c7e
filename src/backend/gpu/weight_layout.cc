// SPDX-License-Identifier: Apache-2.0
// Packing weights for GPUs: quantised blocks become panels of codes, heads and subs.
#include "backend/gpu/weight_layout.h"

#include <cmath>
#include <cstring>

#include "backend/random_rows.h"
#include "base/half.h"

namespace quire::gpu {
namespace {

constexpr int kStep = 16;  // elements of k that kernels multiply at once

struct Format {
  int low_bits;
  int high_bits;
  WeightScheme scheme;
  int offset;
  const int8_t* table = nullptr;
  int sub_shift = 0;
};

Format format_of(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {8, 0, kSchemeScale, 128};
    case DType::kQ4_0:
      return {4, 0, kSchemeScale, 8};
    case DType::kQ4_1:
      return {4, 0, kSchemeScaleMin, 0};
    case DType::kQ5_0:
      return {4, 1, kSchemeScale, 16};
    case DType::kQ5_1:
      return {4, 1, kSchemeScaleMin, 0};
    case DType::kQ2_K:
      return {2, 0, kSchemeSubScaleMin, 0};
    case DType::kQ3_K:
      return {2, 1, kSchemeSubScale, 4};
    case DType::kQ4_K:
      return {4, 0, kSchemeSuperMin, 0};
    case DType::kQ5_K:
      return {4, 1, kSchemeSuperMin, 0};
    case DType::kQ6_K:
      return {4, 2, kSchemeSubScale, 32};
    case DType::kIQ4_NL:
      return {4, 0, kSchemeScale, 0, kIq4Values};
    case DType::kIQ4_XS:
      return {4, 0, kSchemeSubScale, 0, kIq4Values, 1};
    case DType::kMXFP4:
      return {4, 0, kSchemeExponent, 0, kFp4Values};
    case DType::kG4:
      return {4, 0, kSchemeGroup, 0};
    case DType::kG8:
      return {8, 0, kSchemeGroup, 128};
    case DType::kGF8:
      return {8, 0, kSchemeE4M3, 0};
    default:
      break;
  }
  QUIRE_CHECK(false, "no quantised type");
}

// Bytes of one row's subs in all of its steps.
int64_t sub_bytes(const WeightParams& w, int64_t steps) {
  switch (w.scheme) {
    case kSchemeSuperMin:
    case kSchemeSubScaleMin:
      return steps;
    case kSchemeSubScale:
      return steps >> w.sub_shift;
    default:
      return 0;
  }
}

int at16(int64_t step, int row) {
  return static_cast<int>(step) * static_cast<int>(kPanelRows) + row;
}

// Sixteen codes of one row.
void put_codes(const WeightParams& w, uint8_t* panel, int row, int64_t step, const uint8_t* codes) {
  uint8_t* low = panel + int64_t{at16(step, row)} * 2 * w.low_bits;
  if (w.low_bits == 8) std::memcpy(low, codes, kStep);
  if (w.low_bits == 4) {  // eight bytes at once
    constexpr uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f;
    uint64_t first = 0, second = 0;
    std::memcpy(&first, codes, sizeof first);
    std::memcpy(&second, codes + 8, sizeof second);
    const uint64_t both = (first & kNibbles) | (second & kNibbles) << 4;
    std::memcpy(low, &both, sizeof both);
  }
  if (w.low_bits == 2) {
    uint32_t pairs = 0;
    for (int i = 0; i < kStep; ++i) pairs |= static_cast<uint32_t>(codes[i] & 3) << (2 * i);
    std::memcpy(low, &pairs, sizeof pairs);
  }
  if (w.high_bits == 0) return;
  uint32_t high = 0;
  for (int i = 0; i < kStep; ++i) high |= static_cast<uint32_t>(codes[i] >> w.low_bits) << (w.high_bits * i);
  const auto bytes = static_cast<size_t>(2 * w.high_bits);
  std::memcpy(panel + w.high_at + static_cast<size_t>(at16(step, row)) * bytes, &high, bytes);
}

// Scales of one file block, which begins at `step`.
void put_scales(const WeightParams& w, uint8_t* panel, int row, int64_t step, const UnpackedBlock& u) {
  const WeightHead head = head_of(w);
  uint8_t* to = panel + w.head_at + int64_t{at16(step / head.steps, row)} * head.bytes;
  if (w.scheme == kSchemeExponent) {
    *to = u.exponent;
    return;
  }
  std::memcpy(to, &u.d, 2);
  if (head.bytes == 4) std::memcpy(to + 2, &u.m, 2);
  uint8_t* subs = panel + w.sub_at;
  for (int i = 0; i < 8 && head.steps == 16; ++i) {
    const int64_t first = step + 2 * i;  // of these 32 elements
    if (w.scheme == kSchemeSuperMin) {
      std::memcpy(subs + 2 * at16(first / 2, row), u.scales[i], 2);
    } else if (w.sub_shift == 1) {
      subs[at16(first / 2, row)] = u.scales[i][0];
    } else {
      subs[at16(first, row)] = u.scales[i][0];
      subs[at16(first + 1, row)] = u.scales[i][1];
    }
  }
}

// Whether d is an fp16 number and m is -z d, with a whole z from 0 to 31.
bool is_zero_point(float d, float m) {
  if (!(std::fabs(d) <= 65504.0f) || fp16_to_float(float_to_fp16(d)) != d) return false;
  const float z = d == 0 ? 0.0f : std::nearbyint(-m / d);
  return z >= 0 && z <= 31 && std::fma(z, d, m) == 0;
}

// Returns whether all groups have zero points.
bool put_group_row(const WeightParams& w, uint8_t* panel, int row, DType type, const SourceRow& source) {
  const auto* from = reinterpret_cast<const uint8_t*>(source.data);
  bool zero_points = true;
  for (int64_t step = 0; step < w.k / kStep; ++step) {
    uint8_t nibbles[kStep];
    for (int i = 0; type == DType::kG4 && i < kStep; ++i) {
      const int64_t k = step * kStep + i;
      nibbles[i] = static_cast<uint8_t>((from[k / 2] >> (k % 2 * 4)) & 15);
    }
    put_codes(w, panel, row, step, type == DType::kG4 ? nibbles : from + step * kStep);
    if (step % w.group_steps != 0) continue;
    const int64_t group = step / w.group_steps;
    if (type == DType::kGF8) {
      std::memcpy(panel + w.head_at + int64_t{at16(group, row)} * 4, source.scales + group, 4);
      continue;
    }
    const float d = kept_scale(source.scales[group]);
    const float m = std::fma(static_cast<float>(w.offset), d, source.mins == nullptr ? 0.0f : source.mins[group]);
    uint8_t* head = panel + w.head_at + int64_t{at16(group, row)} * 8;
    std::memcpy(head, &d, 4);
    std::memcpy(head + 4, &m, 4);
    zero_points = zero_points && is_zero_point(d, m);
  }
  return zero_points;
}

}  // namespace

WeightHead head_of(const WeightParams& w) {
  switch (w.scheme) {
    case kSchemeScale:
      return {2, 2};
    case kSchemeScaleMin:
      return {4, 2};
    case kSchemeExponent:
      return {1, 2};
    case kSchemeGroup:
      return {8, w.group_steps};
    case kSchemeE4M3:
      return {4, w.group_steps};
    case kSchemeSubScale:
      return {2, 16};
    default:
      return {4, 16};
  }
}

WeightParams weight_params(const GpuMatrix& weight) {
  const DType type = weight.dtype();
  const int64_t n = weight.n(), k = weight.k(), group = weight.group;
  WeightParams w = {};
  w.n = static_cast<int>(n);
  w.k = static_cast<int>(k);
  if (!is_quantised(type)) {
    w.form = type == DType::kF32 ? kWeightF32 : type == DType::kF16 ? kWeightF16 : kWeightBF16;
    w.stride = (k * info(type).block_bytes + 15) / 16 * 16;
    return w;
  }
  const Format f = format_of(type);
  w.form = kWeightQuantised;
  w.low_bits = f.low_bits;
  w.high_bits = f.high_bits;
  w.scheme = f.scheme;
  w.offset = f.offset;
  w.sub_shift = f.sub_shift;
  w.group_steps = group > 0 ? static_cast<int>(group / kStep) : 1;
  w.rounded = type == DType::kGF8 && weight.activation != DType::kF32;
  w.zero_points = weight.zero_points != nullptr && weight.zero_points->load() ? 1 : 0;
  if (f.table != nullptr) {
    w.table = 1;
    std::memcpy(w.values, f.table, sizeof w.values);
  }
  const int64_t steps = k / kStep;
  const WeightHead head = head_of(w);
  const int64_t high_at = kPanelRows * steps * 2 * w.low_bits;
  const int64_t head_at = high_at + kPanelRows * steps * 2 * w.high_bits;
  const int64_t sub_at = head_at + kPanelRows * (steps / head.steps) * head.bytes;
  w.stride = sub_at + kPanelRows * sub_bytes(w, steps);
  QUIRE_CHECK(w.stride < int64_t{1} << 31, "a panel of 16 rows is larger than 2 GiB");
  w.high_at = static_cast<int>(high_at);
  w.head_at = static_cast<int>(head_at);
  w.sub_at = static_cast<int>(sub_at);
  return w;
}

int64_t weight_bytes(const WeightParams& w) {
  return w.stride * (w.form == kWeightQuantised ? (w.n + kPanelRows - 1) / kPanelRows : int64_t{w.n});
}

bool pack_panel(std::span<const RawMatrix> parts, const WeightParams& w, int64_t panel, uint8_t* to) {
  const DType type = parts[0].dtype;
  const DTypeInfo& block = info(type);
  UnpackedBlock u = {};
  RandomRow made;
  bool zero_points = true;
  for (int row = 0; row < kPanelRows && panel * kPanelRows + row < w.n; ++row) {
    const SourceRow source = source_row(parts, panel * kPanelRows + row, made);
    if (is_grouped(type)) {
      zero_points = put_group_row(w, to, row, type, source) && zero_points;
      continue;
    }
    for (int64_t k = 0; k < w.k; k += block.block_elems) {
      source.block(type, k / block.block_elems, u);
      for (int64_t i = 0; i < block.block_elems; i += kStep) put_codes(w, to, row, (k + i) / kStep, u.codes + i);
      put_scales(w, to, row, k / kStep, u);
    }
  }
  return zero_points;
}

}  // namespace quire::gpu
