// SPDX-License-Identifier: Apache-2.0
// Packing: reads GGUF blocks, groups of codes and plain rows, writes panels.
#include "backend/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace quire::cpu {

namespace {

// What is packed before its source is given back: the most that is in memory twice.
constexpr int64_t kSlabBytes = int64_t{16} << 20;
// Blocks of 32 elements of one file block: 1, or 8 in a super-block.
constexpr int64_t kMaxBlocks = kSuperBlock;

// One file block of one column taken apart: codes in k order, and scales in whatever form the scheme keeps.
struct Unpacked {
  uint8_t codes[kMaxBlocks * kBlock];
  uint16_t d;                     // fp16
  uint16_t m;                     // fp16: m, or dmin
  uint8_t exponent;               // MXFP4
  uint8_t scales[kMaxBlocks][2];  // the two bytes a block of packed.h's super-block records
};

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Sixteen bytes of nibbles: the low ones are elements 0..15, the high ones 16..31.
void nibbles16(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = qs[j] & 15;
    codes[j + 16] = static_cast<uint8_t>(qs[j] >> 4);
  }
}

void add_fifth_bits(uint32_t qh, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((qh >> j) & 1) << 4);
}

void unpack_q8_0(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  for (int j = 0; j < 32; ++j) u.codes[j] = b[2 + j] ^ 0x80;  // int8 + 128
}

void unpack_q4_0(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  nibbles16(b + 2, u.codes);
}

void unpack_q4_1(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  nibbles16(b + 4, u.codes);
}

void unpack_q5_0(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  nibbles16(b + 6, u.codes);
  add_fifth_bits(load_u32(b + 2), u.codes);
}

void unpack_q5_1(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  nibbles16(b + 8, u.codes);
  add_fifth_bits(load_u32(b + 4), u.codes);
}

// Element e of a K-quant's two-bit plane: 128 elements share 32 bytes, four of them a byte.
uint8_t two_bits(const uint8_t* qs, int e) {
  return (qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2)) & 3;
}

void unpack_q2_k(const uint8_t* b, Unpacked& u) {
  const uint8_t* scales = b;
  const uint8_t* qs = b + 16;
  for (int e = 0; e < 256; ++e) u.codes[e] = two_bits(qs, e);
  for (int i = 0; i < 16; ++i) u.scales[i / 2][i % 2] = scales[i];  // already sc | mn << 4
  u.d = load_u16(b + 80);
  u.m = load_u16(b + 82);
}

void unpack_q3_k(const uint8_t* b, Unpacked& u) {
  const uint8_t* hmask = b;
  const uint8_t* qs = b + 32;
  const uint8_t* scales = b + 96;
  for (int e = 0; e < 256; ++e) {
    u.codes[e] = static_cast<uint8_t>(two_bits(qs, e) | ((hmask[e % 32] >> (e / 32)) & 1) << 2);
  }
  for (int i = 0; i < 16; ++i) {  // six bits: four in the first eight bytes, two in the last four; 32 means 0
    const int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
    const int high = (scales[8 + i % 4] >> (2 * (i / 4))) & 3;
    u.scales[i / 2][i % 2] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  u.d = load_u16(b + 108);
}

// Q4_K and Q5_K: eight six-bit scales and eight six-bit minima in twelve bytes.
void unpack_scales_and_mins(const uint8_t* s, Unpacked& u) {
  for (int j = 0; j < 4; ++j) {
    u.scales[j][0] = s[j] & 63;
    u.scales[j][1] = s[j + 4] & 63;
    u.scales[j + 4][0] = static_cast<uint8_t>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    u.scales[j + 4][1] = static_cast<uint8_t>((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
  }
}

void unpack_q4_k(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  unpack_scales_and_mins(b + 4, u);
  const uint8_t* qs = b + 16;
  for (int e = 0; e < 256; ++e) u.codes[e] = (qs[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4)) & 15;
}

void unpack_q5_k(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  unpack_scales_and_mins(b + 4, u);
  const uint8_t* qh = b + 16;
  const uint8_t* qs = b + 48;
  for (int e = 0; e < 256; ++e) {
    const int low = (qs[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4)) & 15;
    u.codes[e] = static_cast<uint8_t>(low | ((qh[e % 32] >> (e / 32)) & 1) << 4);
  }
}

void unpack_q6_k(const uint8_t* b, Unpacked& u) {
  const uint8_t* ql = b;
  const uint8_t* qh = b + 128;
  for (int e = 0; e < 256; ++e) {
    const int r = e % 128;  // within half of the super-block: quarters 0, 1 are low nibbles, 2, 3 high ones
    const int low = (ql[e / 128 * 64 + r % 64] >> (r / 64 * 4)) & 15;
    const int high = (qh[e / 128 * 32 + r % 32] >> (r / 32 * 2)) & 3;
    u.codes[e] = static_cast<uint8_t>(low | high << 4);
  }
  for (int i = 0; i < 16; ++i) u.scales[i / 2][i % 2] = b[192 + i];
  u.d = load_u16(b + 208);
}

void unpack_iq4_xs(const uint8_t* b, Unpacked& u) {
  u.d = load_u16(b);
  const uint16_t high = load_u16(b + 2);
  for (int i = 0; i < 8; ++i) {  // six bits; 32 means 0
    const int low = (b[4 + i / 2] >> (i % 2 * 4)) & 15;
    u.scales[i][0] = static_cast<uint8_t>((low | ((high >> (2 * i)) & 3) << 4) - 32);
    nibbles16(b + 8 + 16 * i, u.codes + kBlock * i);
  }
}

// Scales below 2^-29 count as zero (ops/linear.h).
void unpack_mxfp4(const uint8_t* b, Unpacked& u) {
  u.exponent = b[0] < 128 - 29 ? 0 : b[0];
  nibbles16(b + 1, u.codes);
}

void unpack(DType type, const uint8_t* block, Unpacked& u) {
  switch (type) {
    case DType::kQ8_0:
      return unpack_q8_0(block, u);
    case DType::kQ4_0:
      return unpack_q4_0(block, u);
    case DType::kQ4_1:
      return unpack_q4_1(block, u);
    case DType::kQ5_0:
      return unpack_q5_0(block, u);
    case DType::kQ5_1:
      return unpack_q5_1(block, u);
    case DType::kQ2_K:
      return unpack_q2_k(block, u);
    case DType::kQ3_K:
      return unpack_q3_k(block, u);
    case DType::kQ4_K:
      return unpack_q4_k(block, u);
    case DType::kQ5_K:
      return unpack_q5_k(block, u);
    case DType::kQ6_K:
      return unpack_q6_k(block, u);
    case DType::kIQ4_NL:  // as Q4_0, but for what codes mean
      return unpack_q4_0(block, u);
    case DType::kIQ4_XS:
      return unpack_iq4_xs(block, u);
    case DType::kMXFP4:
      return unpack_mxfp4(block, u);
    default:
      QUIRE_CHECK(false, "no quantised type");
  }
}

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

// Packing::kRows: bits [shift, shift + bits) of a column's codes.
void put_row_plane(uint8_t* plane, int bits, int column, const uint8_t* codes, int shift) {
  for (int k = 0; k < kBlock; ++k) {
    const PlanePlace place = row_place(bits, column, k);
    plane[place.byte] |= static_cast<uint8_t>(((codes[k] >> shift) & ((1 << bits) - 1)) << place.shift);
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
  if (w.packing == Packing::kRows) {
    put_row_plane(codes, f.low_bits, column, from, 0);
    if (f.high_bits > 0) put_row_plane(codes + 64 * f.low_bits, f.high_bits, column, from, f.low_bits);
    return;
  }
  put_plane(codes, f.low_bits, column, from, 0);
  if (f.high_bits > 0) put_plane(codes + 64 * f.low_bits, f.high_bits, column, from, f.low_bits);
}

// Writes file block `index` (of one row) as column `column` of a panel.
void put_block(const PackedView& w, uint8_t* panel, int64_t index, int column, const Unpacked& u) {
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
  for (int64_t i = 0; i < k; i += kBlock) {
    const auto bytes = static_cast<size_t>(2 * std::min<int64_t>(kBlock, k - i));
    std::memcpy(panel + 2 * (i * kPanel + column * kBlock), row + 2 * i, bytes);
  }
}

// BF16 in Packing::kPairs.
void put_paired_row(uint8_t* panel, int column, const std::byte* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i) std::memcpy(panel + 2 * pair_element_at(column, i), row + 2 * i, 2);
}

// The file's row behind row n of the concatenation.
struct SourceRow {
  const std::byte* data = nullptr;
  const float* scales = nullptr;  // G4 and G8
  const float* mins = nullptr;
};
SourceRow source_row(std::span<const RawMatrix> parts, int64_t n) {
  for (const RawMatrix& part : parts) {
    if (n < part.n) {
      const int64_t row = part.row_map.empty() ? n : part.row_map[static_cast<size_t>(n)];
      SourceRow out = {part.data + row * row_bytes(part.dtype, part.k)};
      if (part.group == 0) return out;
      const int64_t groups = part.k / part.group;
      out.scales = part.scales + row * groups;
      if (part.mins != nullptr) out.mins = part.mins + row * groups;
      return out;
    }
    n -= part.n;
  }
  return {};
}

// A scale smaller than any that tiles can carry exactly counts as zero (ops/linear.h).
float kept_scale(float d) {
  return std::fabs(d) < 0x1p-29f ? 0.0f : d;
}

// A row of G4 or G8 codes with scales for each `group` of k.
void put_group_row(const PackedView& w, uint8_t* panel, int column, const SourceRow& row, int64_t group) {
  const auto* from = reinterpret_cast<const uint8_t*>(row.data);
  const int offset = quant_format(w.dtype).offset;
  Unpacked u = {};
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
  }
}

void pack_panel(std::span<const RawMatrix> parts, const PackedView& w, uint8_t* panel, int64_t p) {
  Unpacked u = {};
  for (int c = 0; c < kPanel && p * kPanel + c < w.n; ++c) {
    const SourceRow source = source_row(parts, p * kPanel + c);
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
    const DTypeInfo& type = info(w.dtype);
    for (int64_t b = 0; b < w.k / type.block_elems; ++b) {
      unpack(w.dtype, reinterpret_cast<const uint8_t*>(row) + b * type.block_bytes, u);
      put_block(w, panel, b, c, u);
    }
  }
}

bool is_grouped(DType type) {
  return quant_format(type).scheme == Scheme::kGroupMin;
}

// What a file may have wrong in the groups of G4 and G8.
Status check_groups(std::span<const RawMatrix> parts) {
  const std::string what = std::string("a weight of type ") + name(parts[0].dtype);
  for (const RawMatrix& part : parts) {
    QUIRE_CHECK(part.scales != nullptr, "groups have scales");
    if (part.group <= 0 || part.group % kBlock != 0 || part.k % part.group != 0) {
      return unsupported(what + " has rows of " + std::to_string(part.k) + " elements in groups of " +
                         std::to_string(part.group) + "; a group must be a multiple of 32 that divides the row");
    }
    if (part.group != parts[0].group) {
      return unsupported(what + " is made of parts with groups of " + std::to_string(parts[0].group) + " and of " +
                         std::to_string(part.group) + "; parts that differ must be packed apart");
    }
    constexpr float kMost = 0x1p40f;  // products with any activation stay finite
    const int64_t count = std::max(part.n, part.file_rows) * (part.k / part.group);
    for (int64_t i = 0; i < count; ++i) {
      const float m = part.mins == nullptr ? 0.0f : part.mins[i];
      if (std::fabs(part.scales[i]) < kMost && std::fabs(m) < kMost) continue;
      return unsupported(what + " has " + std::to_string(part.scales[i]) + " as a scale and " + std::to_string(m) +
                         " as a minimum; both must be finite and below 2^40, so the file is damaged");
    }
  }
  return {};
}

// Scales of MXFP4 that no weight has: products with activations would overflow.
Status check_exponents(std::span<const RawMatrix> parts) {
  constexpr int kMost = 128 + 40;
  for (const RawMatrix& part : parts) {
    const int64_t size = info(part.dtype).block_bytes;
    const int64_t bytes = std::max(part.n, part.file_rows) * row_bytes(part.dtype, part.k);
    for (int64_t i = 0; i < bytes; i += size) {
      const int e = static_cast<int>(part.data[i]);
      if (e <= kMost) continue;
      return unsupported(std::string("a weight of type ") + name(part.dtype) + " has a block whose scale is the byte " +
                         std::to_string(e) + ", where at most " + std::to_string(kMost) +
                         " (2^40) makes sense; the file is damaged");
    }
  }
  return {};
}

Status check_parts(std::span<const RawMatrix> parts) {
  QUIRE_CHECK(!parts.empty(), "a packed weight has at least one part");
  const RawMatrix& first = parts[0];
  if (first.k <= 0 || first.k % info(first.dtype).block_elems != 0) {
    return unsupported(std::string("a weight of type ") + name(first.dtype) + " has rows of " +
                       std::to_string(first.k) + " elements, which is not a multiple of its block of " +
                       std::to_string(info(first.dtype).block_elems));
  }
  if (is_grouped(first.dtype)) QUIRE_TRY(check_groups(parts));
  if (first.dtype == DType::kMXFP4) QUIRE_TRY(check_exponents(parts));
  for (const RawMatrix& part : parts) {
    QUIRE_CHECK(part.dtype == first.dtype && part.k == first.k, "parts of a packed weight share type and K");
    QUIRE_CHECK(is_grouped(part.dtype) || part.group == 0, "only G4 and G8 have groups");
    QUIRE_CHECK(part.n > 0 && part.data != nullptr);
    QUIRE_CHECK(part.row_map.empty() || static_cast<int64_t>(part.row_map.size()) == part.n);
    for (const int32_t row : part.row_map) QUIRE_CHECK(row >= 0 && row < std::max(part.n, part.file_rows));
  }
  return {};
}

PackedView layout(std::span<const RawMatrix> parts, Packing packing) {
  PackedView w;
  w.packing = packing;
  w.dtype = parts[0].dtype;
  w.k = parts[0].k;
  for (const RawMatrix& part : parts) w.n += part.n;
  const int64_t k = packing != Packing::kColumns ? (w.k + kBlock - 1) / kBlock * kBlock : w.k;
  int64_t bytes = k * kPanel * info(w.dtype).block_bytes;
  if (is_quantised(w.dtype)) {
    const QuantFormat f = quant_format(w.dtype);
    const int64_t blocks = w.k / kBlock;
    w.scale_offset = blocks * code_bytes(f);
    // Groups of other sizes are cut into the largest power of two that they are a multiple of.
    if (parts[0].group > 0) w.group_shift = std::countr_zero(static_cast<uint64_t>(parts[0].group / kBlock));
    bytes = w.scale_offset + (blocks >> w.group_shift) / scale_group(f) * scale_bytes(f);
  }
  w.panel_stride = (bytes + 63) / 64 * 64;
  return w;
}

// Says that rows [begin, end) of the concatenation were read. Mapped rows lie anywhere in their part: those wait.
void report_consumed(std::span<const RawMatrix> parts, int64_t begin, int64_t end, const PackOptions& options) {
  int64_t first = 0;
  for (const RawMatrix& part : parts) {
    const int64_t from = std::clamp<int64_t>(begin - first, 0, part.n);
    const int64_t to = std::clamp<int64_t>(end - first, 0, part.n);
    const int64_t stride = row_bytes(part.dtype, part.k);
    if (from < to && part.row_map.empty()) {
      options.consumed({part.data + from * stride, static_cast<size_t>((to - from) * stride)});
    }
    first += part.n;
  }
}

}  // namespace

Result<std::unique_ptr<CpuMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options,
                                        const Packings& packings, ThreadPool& pool) {
  QUIRE_TRY(check_parts(parts));
  const DType type = parts[0].dtype;
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
