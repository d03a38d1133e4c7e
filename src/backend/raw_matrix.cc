// SPDX-License-Identifier: Apache-2.0
// Raw weights: the blocks of GGUF, and what may be wrong with a file's weights.
#include "backend/raw_matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "backend/random_rows.h"
#include "base/parallel.h"

namespace quire {
namespace {

constexpr int kBlock = 32;  // elements of the blocks that have scales of their own in every type

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

void unpack_q8_0(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  for (int j = 0; j < 32; ++j) u.codes[j] = b[2 + j] ^ 0x80;  // int8 + 128
}

void unpack_q4_0(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  nibbles16(b + 2, u.codes);
}

void unpack_q4_1(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  nibbles16(b + 4, u.codes);
}

void unpack_q5_0(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  nibbles16(b + 6, u.codes);
  add_fifth_bits(load_u32(b + 2), u.codes);
}

void unpack_q5_1(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  nibbles16(b + 8, u.codes);
  add_fifth_bits(load_u32(b + 4), u.codes);
}

// Element e of a K-quant's two-bit plane: 128 elements share 32 bytes, four of them a byte.
uint8_t two_bits(const uint8_t* qs, int e) {
  return (qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2)) & 3;
}

void unpack_q2_k(const uint8_t* b, UnpackedBlock& u) {
  const uint8_t* scales = b;
  const uint8_t* qs = b + 16;
  for (int e = 0; e < 256; ++e) u.codes[e] = two_bits(qs, e);
  for (int i = 0; i < 16; ++i) u.scales[i / 2][i % 2] = scales[i];  // already sc | mn << 4
  u.d = load_u16(b + 80);
  u.m = load_u16(b + 82);
}

void unpack_q3_k(const uint8_t* b, UnpackedBlock& u) {
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
void unpack_scales_and_mins(const uint8_t* s, UnpackedBlock& u) {
  for (int j = 0; j < 4; ++j) {
    u.scales[j][0] = s[j] & 63;
    u.scales[j][1] = s[j + 4] & 63;
    u.scales[j + 4][0] = static_cast<uint8_t>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    u.scales[j + 4][1] = static_cast<uint8_t>((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
  }
}

void unpack_q4_k(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  u.m = load_u16(b + 2);
  unpack_scales_and_mins(b + 4, u);
  const uint8_t* qs = b + 16;
  for (int e = 0; e < 256; ++e) u.codes[e] = (qs[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4)) & 15;
}

void unpack_q5_k(const uint8_t* b, UnpackedBlock& u) {
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

void unpack_q6_k(const uint8_t* b, UnpackedBlock& u) {
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

void unpack_iq4_xs(const uint8_t* b, UnpackedBlock& u) {
  u.d = load_u16(b);
  const uint16_t high = load_u16(b + 2);
  for (int i = 0; i < 8; ++i) {  // six bits; 32 means 0
    const int low = (b[4 + i / 2] >> (i % 2 * 4)) & 15;
    u.scales[i][0] = static_cast<uint8_t>((low | ((high >> (2 * i)) & 3) << 4) - 32);
    nibbles16(b + 8 + 16 * i, u.codes + kBlock * i);
  }
}

// Scales below 2^-29 count as zero (ops/linear.h).
void unpack_mxfp4(const uint8_t* b, UnpackedBlock& u) {
  u.exponent = b[0] < 128 - 29 ? 0 : b[0];
  nibbles16(b + 1, u.codes);
}

// What a file may have wrong in the groups of G4, G8 and GF8.
Status check_groups(std::span<const RawMatrix> parts) {
  const std::string what = std::string("a weight of type ") + name(parts[0].dtype);
  for (const RawMatrix& part : parts) {
    QUIRE_CHECK(part.scales != nullptr || part.random, "groups have scales");
    QUIRE_CHECK(part.dtype != DType::kGF8 || part.mins == nullptr, "fp8 has no minima");
    if (part.group <= 0 || part.group % kBlock != 0 || part.k % part.group != 0) {
      return unsupported({what, " has rows of ", part.k, " elements in groups of ", part.group,
                          "; a group must be a multiple of 32 that divides the row"});
    }
    if (part.group != parts[0].group) {
      return unsupported({what, " is made of parts with groups of ", parts[0].group, " and of ", part.group,
                          "; parts that differ must be packed apart"});
    }
    if (part.random) continue;
    constexpr float kMost = 0x1p40f;  // products with any activation stay finite
    const int64_t count = std::max(part.n, part.file_rows) * (part.k / part.group);
    for (int64_t i = 0; i < count; ++i) {
      const float m = part.mins == nullptr ? 0.0f : part.mins[i];
      if (std::fabs(part.scales[i]) < kMost && std::fabs(m) < kMost) continue;
      return unsupported({what, " has ", std::to_string(part.scales[i]), " as a scale and ", std::to_string(m),
                          " as a minimum; both must be finite and below 2^40, so the file is damaged"});
    }
  }
  return {};
}

// Scales of MXFP4 that no weight has: products with activations would overflow.
Status check_exponents(std::span<const RawMatrix> parts) {
  constexpr int kMost = 128 + 40;
  for (const RawMatrix& part : parts) {
    if (part.random) continue;
    const int64_t size = info(part.dtype).block_bytes;
    const int64_t bytes = std::max(part.n, part.file_rows) * row_bytes(part.dtype, part.k);
    std::atomic<int> largest = 0;
    parallel_blocks(bytes / size, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
      int found = 0;
      for (int64_t i = begin; i < end; ++i) found = std::max(found, static_cast<int>(part.data[i * size]));
      int before = largest;
      while (before < found && !largest.compare_exchange_weak(before, found)) {
      }
    });
    if (const int e = largest; e > kMost) {
      return unsupported({"a weight of type ", name(part.dtype), " has a block whose scale is the byte ", e,
                          ", where at most ", kMost, " (2^40) makes sense; the file is damaged"});
    }
  }
  return {};
}

}  // namespace

void unpack_block(DType type, const uint8_t* block, UnpackedBlock& u) {
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

void SourceRow::block(DType type, int64_t index, UnpackedBlock& out) const {
  if (made != nullptr) return made->block(type, index, out);
  unpack_block(type, reinterpret_cast<const uint8_t*>(data) + index * info(type).block_bytes, out);
}

SourceRow source_row(std::span<const RawMatrix> parts, int64_t n, RandomRow& made) {
  for (const RawMatrix& part : parts) {
    if (n < part.n) {
      const int64_t row = part.row_map.empty() ? n : part.row_map[static_cast<size_t>(n)];
      if (part.random) return made.make(part, row);
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

float kept_scale(float d) {
  return std::fabs(d) < 0x1p-29f ? 0.0f : d;
}

Status check_parts(std::span<const RawMatrix> parts) {
  QUIRE_CHECK(!parts.empty(), "a packed weight has at least one part");
  const RawMatrix& first = parts[0];
  if (first.k <= 0 || first.k % info(first.dtype).block_elems != 0) {
    return unsupported({"a weight of type ", name(first.dtype), " has rows of ", first.k,
                        " elements, which is not a multiple of its block of ", info(first.dtype).block_elems});
  }
  if (is_grouped(first.dtype)) QUIRE_TRY(check_groups(parts));
  if (first.dtype == DType::kMXFP4) QUIRE_TRY(check_exponents(parts));
  for (const RawMatrix& part : parts) {
    QUIRE_CHECK(part.dtype == first.dtype && part.k == first.k, "parts of a packed weight share type and K");
    QUIRE_CHECK(is_grouped(part.dtype) || part.group == 0, "only G4, G8 and GF8 have groups");
    QUIRE_CHECK(part.n > 0 && (part.data != nullptr) != part.random.has_value());
    QUIRE_CHECK(part.random.has_value() == first.random.has_value(), "a weight is random or it is not");
    QUIRE_CHECK(part.row_map.empty() || static_cast<int64_t>(part.row_map.size()) == part.n);
    for (const int32_t row : part.row_map) QUIRE_CHECK(row >= 0 && row < std::max(part.n, part.file_rows));
  }
  return {};
}

void report_consumed(std::span<const RawMatrix> parts, int64_t begin, int64_t end, const PackOptions& options) {
  int64_t first = 0;
  for (const RawMatrix& part : parts) {
    const int64_t from = std::clamp<int64_t>(begin - first, 0, part.n);
    const int64_t to = std::clamp<int64_t>(end - first, 0, part.n);
    const int64_t stride = row_bytes(part.dtype, part.k);
    if (from < to && part.row_map.empty() && !part.random) {
      options.consumed({part.data + from * stride, static_cast<size_t>((to - from) * stride)});
    }
    first += part.n;
  }
}

}  // namespace quire
