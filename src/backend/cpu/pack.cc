// SPDX-License-Identifier: Apache-2.0
// Packing: reads GGUF blocks, groups of codes and plain rows, and writes panels.
#include "backend/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/random_rows.h"
#include "backend/raw_matrix.h"
#include "base/half.h"
#include "base/math.h"

namespace quire::cpu {

namespace {

// Bytes that are packed before their source is released: the most that is in memory twice.
constexpr int64_t kSlabBytes = int64_t{16} << 20;

// Puts bits [shift, shift + kBits) of codes[0..31] of one column into a plane, which was zero before.
template <int kBits>
void put_plane(uint8_t* plane, int column, const uint8_t* codes, int shift) {
  for (int k = 0; k < kBlock; ++k) {
    const int group = k / 4;
    const int byte = 4 * column + k % 4;
    const int value = (codes[k] >> shift) & ((1 << kBits) - 1);
    if constexpr (kBits == 1) {
      plane[8 * group + byte / 8] |= static_cast<uint8_t>(value << (byte % 8));
    } else {
      constexpr int kTogether = 8 / kBits;  // groups that share a byte
      plane[64 * (group / kTogether) + byte] |= static_cast<uint8_t>(value << (kBits * (group % kTogether)));
    }
  }
}

void put_plane(uint8_t* plane, int bits, int column, const uint8_t* codes, int shift) {
  switch (bits) {
    case 8:
      return put_plane<8>(plane, column, codes, shift);
    case 4:
      return put_plane<4>(plane, column, codes, shift);
    case 2:
      return put_plane<2>(plane, column, codes, shift);
    default:
      return put_plane<1>(plane, column, codes, shift);
  }
}

// Packing::kPairs: bits [shift, shift + bits) of a column's codes.
void put_pair_plane(uint8_t* plane, int bits, int column, const uint8_t* codes, int shift, int flip) {
  for (int k = 0; k < kBlock; ++k) {
    const PlanePlace place = pair_place(bits, column, k);
    const int value = ((codes[k] ^ flip) >> shift) & ((1 << bits) - 1);
    plane[place.byte] |= static_cast<uint8_t>(value << place.shift);
  }
}

void put_pair_codes(const PackedView& w, uint8_t* panel, int64_t block, int column, const uint8_t* codes) {
  const QuantFormat f = quant_format(w.dtype);
  uint8_t* low = panel + pair_codes_at(f, w.k / kBlock, block, column);
  put_pair_plane(low, f.low_bits, column, codes, 0, pair_flip(f));
  if (f.high_bits > 0) put_pair_plane(low + 16 * f.low_bits, f.high_bits, column, codes, f.low_bits, 0);
}

// The codes of one column in one block of 32 k.
void put_codes(const PackedView& w, uint8_t* panel, int64_t block, int column, const uint8_t* from) {
  const QuantFormat f = quant_format(w.dtype);
  uint8_t* codes = panel + block * code_bytes(f);
  if (w.packing == Packing::kPairs) return put_pair_codes(w, panel, block, column, from);
  uint8_t flipped[kBlock];
  if (w.packing == Packing::kFixed) {
    for (int k = 0; k < kBlock; ++k) flipped[k] = static_cast<uint8_t>(from[k] ^ fixed_flip(f));
    from = flipped;
  }
  put_plane(codes, f.low_bits, column, from, 0);
  if (f.high_bits > 0) put_plane(codes + 64 * f.low_bits, f.high_bits, column, from, f.low_bits);
}

// Writes file block `index` (of one row) as column `column` of a panel.
void put_block(const PackedView& w, uint8_t* panel, int64_t index, int column, const UnpackedBlock& u) {
  const QuantFormat f = quant_format(w.dtype);
  const int group = scale_group(f);
  for (int i = 0; i < group; ++i) put_codes(w, panel, index * group + i, column, u.codes + i * kBlock);
  uint8_t* scales = panel + w.scale_offset + index * scale_bytes(f);
  if (f.scheme == Scheme::kExponent) {
    scales[column] = u.exponent;
    return;
  }
  std::memcpy(scales + 2 * column, &u.d, 2);
  if (has_min(f)) std::memcpy(scales + 2 * kPanel + 2 * column, &u.m, 2);
  if (group == 1) return;
  for (int i = 0; i < group; ++i) {
    uint8_t* part = scales + scale_header_bytes(f) + i * block_scale_bytes(f);
    part[column] = u.scales[i][0];
    if (f.scheme != Scheme::kSuperScale) part[kPanel + column] = u.scales[i][1];
  }
}

template <typename T>
void put_plain_row(T* panel, int column, const std::byte* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i) std::memcpy(panel + i * kPanel + column, row + i * sizeof(T), sizeof(T));
}

// BF16 in Packing::kRows.
void put_tiled_row(uint8_t* panel, int column, const std::byte* row, int64_t k) {
  for (int64_t i = 0; i < k; i += 2) {
    std::memcpy(panel + 2 * i * kPanel + 4 * column, row + 2 * i, static_cast<size_t>(2 * std::min<int64_t>(2, k - i)));
  }
}

// BF16 in Packing::kPairs.
void put_paired_row(uint8_t* panel, int column, const std::byte* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i) std::memcpy(panel + 2 * pair_element_at(column, i), row + 2 * i, 2);
}

// Packing::kFixed: the bound of a column's weights. A NaN among the bounds of its blocks stays.
void raise_bound(float& most, float bound) {
  if (!std::isnan(most) && !(bound <= most)) most = bound;
}
float fixed_bound(QuantFormat f, float sw, float wm) {
  const FixedForm form = fixed_form(f);
  return static_cast<float>(form.half) * std::fabs(sw) + std::fabs(std::fma(static_cast<float>(form.shift), sw, wm));
}

// The bound of one block of a file.
float fixed_bound(QuantFormat f, const UnpackedBlock& u) {
  if (f.scheme == Scheme::kExponent)
    return fixed_bound(f, u.exponent == 0 ? 0.0f : std::ldexp(1.0f, u.exponent - 128), 0);
  const float d = fp16_to_float(u.d);
  const float m = has_min(f) ? fp16_to_float(u.m) : 0.0f;
  if (scale_group(f) == 1) return fixed_bound(f, d, m);
  float most = 0;
  const auto take = [&](int sc, int mn) {
    raise_bound(most, fixed_bound(f, d * static_cast<float>(sc), -(m * static_cast<float>(mn))));
  };
  for (const auto& scales : u.scales) {
    switch (f.scheme) {
      case Scheme::kSuperMin:
        take(scales[0], scales[1]);
        break;
      case Scheme::kSuperScale:
        take(static_cast<int8_t>(scales[0]), 0);
        break;
      case Scheme::kSubScale:
        for (const uint8_t sc : scales) take(static_cast<int8_t>(sc), 0);
        break;
      default:  // kSubScaleMin
        for (const uint8_t both : scales) take(both & 15, both >> 4);
    }
  }
  return most;
}

void put_bound(const PackedView& w, uint8_t* panel, int column, float bound) {
  if (w.packing != Packing::kFixed) return;
  reinterpret_cast<float*>(panel + w.bound_offset)[column] = bound < kFixedTiny ? 0.0f : bound;
}

// A row of G4 or G8 codes with scales for each `group` of k.
void put_group_row(const PackedView& w, uint8_t* panel, int column, const SourceRow& row, int64_t group) {
  const auto* from = reinterpret_cast<const uint8_t*>(row.data);
  const int offset = quant_format(w.dtype).offset;
  UnpackedBlock u = {};
  float most = 0;
  for (int64_t b = 0; b < w.k / kBlock; ++b, from += info(w.dtype).block_bytes) {
    for (int k = 0; k < kBlock; ++k) {
      u.codes[k] = w.dtype == DType::kG8 ? from[k] : static_cast<uint8_t>((from[k / 2] >> (k % 2 * 4)) & 15);
    }
    put_codes(w, panel, b, column, u.codes);
    if (b % (int64_t{1} << w.group_shift) != 0) continue;
    const int64_t g = b * kBlock / group;
    const float d = kept_scale(row.scales[g]);
    const float m = std::fma(static_cast<float>(offset), d, row.mins == nullptr ? 0.0f : row.mins[g]);
    auto* record =
        reinterpret_cast<float*>(panel + w.scale_offset + scale_record_at(quant_format(w.dtype), b, w.group_shift));
    record[column] = d;
    record[kPanel + column] = m;
    raise_bound(most, fixed_bound(quant_format(w.dtype), d, m));
  }
  put_bound(w, panel, column, most);
}

void pack_panel(std::span<const RawMatrix> parts, const PackedView& w, uint8_t* panel, int64_t p) {
  UnpackedBlock u = {};
  RandomRow made;
  for (int c = 0; c < kPanel && p * kPanel + c < w.n; ++c) {
    const SourceRow source = source_row(parts, p * kPanel + c, made);
    const std::byte* row = source.data;
    if (source.scales != nullptr) {
      put_group_row(w, panel, c, source, parts[0].group);
      continue;
    }
    if (!is_quantised(w.dtype)) {
      if (w.packing == Packing::kRows) {
        put_tiled_row(panel, c, row, w.k);
      } else if (w.packing == Packing::kPairs) {
        put_paired_row(panel, c, row, w.k);
      } else if (info(w.dtype).block_bytes == 4) {
        put_plain_row(reinterpret_cast<uint32_t*>(panel), c, row, w.k);
      } else {
        put_plain_row(reinterpret_cast<uint16_t*>(panel), c, row, w.k);
      }
      continue;
    }
    float most = 0;
    for (int64_t b = 0; b < w.k / info(w.dtype).block_elems; ++b) {
      source.block(w.dtype, b, u);
      put_block(w, panel, b, c, u);
      if (w.packing == Packing::kFixed) raise_bound(most, fixed_bound(quant_format(w.dtype), u));
    }
    put_bound(w, panel, c, most);
  }
}

PackedView layout(std::span<const RawMatrix> parts, Packing packing) {
  PackedView w;
  w.packing = packing;
  w.dtype = parts[0].dtype;
  w.k = parts[0].k;
  for (const RawMatrix& part : parts) w.n += part.n;
  const int64_t k = packing != Packing::kColumns ? round_up(w.k, kBlock) : w.k;
  int64_t bytes = k * kPanel * info(w.dtype).block_bytes;
  if (is_quantised(w.dtype)) {
    const QuantFormat f = quant_format(w.dtype);
    const int64_t blocks = w.k / kBlock;
    w.scale_offset = blocks * code_bytes(f);
    // Groups of other sizes are divided into the largest power of two that divides them.
    if (parts[0].group > 0) w.group_shift = std::countr_zero(static_cast<uint64_t>(parts[0].group / kBlock));
    bytes = w.scale_offset + (blocks >> w.group_shift) / scale_group(f) * scale_bytes(f);
    if (packing == Packing::kFixed) {
      w.bound_offset = round_up(bytes, 64);
      bytes = w.bound_offset + kBoundBytes;
    }
  }
  w.panel_stride = (bytes + 63) / 64 * 64;
  return w;
}

}  // namespace

Result<std::unique_ptr<CpuMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options,
                                        const Packings& packings, ThreadPool& pool) {
  QUIRE_TRY(check_parts(parts));
  const DType type = parts[0].dtype;
  QUIRE_CHECK(type != DType::kGF8, "the CPU has no kernels for fp8 weights");
  const bool rounds = type == DType::kBF16 && packings.bf16 != Packing::kColumns;
  const bool prepares_rows = options.quantise_activations && (rounds || is_quantised(type));
  const Packing packing = rounds ? packings.bf16 : packings.quantised;
  PackedView w = layout(parts, prepares_rows ? packing : Packing::kColumns);
  QUIRE_ASSIGN(PageMemory memory, PageMemory::allocate_piece(static_cast<size_t>(w.panels() * w.panel_stride)));
  uint8_t* data = static_cast<uint8_t*>(memory.data());
  w.data = data;
  const int64_t slab = std::max<int64_t>(1, kSlabBytes / w.panel_stride);
  for (int64_t first = 0; first < w.panels(); first += slab) {
    const int64_t count = std::min(slab, w.panels() - first);
    pool.for_each_piece(count, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t p = first + begin; p < first + end; ++p) pack_panel(parts, w, data + p * w.panel_stride, p);
    });
    if (options.consumed) report_consumed(parts, first * kPanel, (first + count) * kPanel, options);
  }
  return std::make_unique<CpuMatrix>(w, prepares_rows, std::move(memory));
}

}  // namespace quire::cpu
