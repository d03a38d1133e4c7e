// SPDX-License-Identifier: Apache-2.0
// Raw weights as backends read them for packing: checks, the rows of concatenated parts and row maps, unpacked blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "ops/linear.h"

namespace quire {

// One unpacked file block: unsigned codes in k order, and scales by type:
//   d, m       fp16: the block's scale, and its minimum (Q4_1, Q5_1) or the scale of its minima (Q2_K, Q4_K, Q5_K)
//   exponent   MXFP4: for 2^(e - 128), 0 for scales that count as zero
//   scales     for each 32 elements of a K type: Q4_K and Q5_K sc and mn; Q6_K and Q3_K the signed sc of each 16; Q2_K
//              sc | mn << 4 of each 16; IQ4_XS the signed sc
struct UnpackedBlock {
  uint8_t codes[256];
  uint16_t d;
  uint16_t m;
  uint8_t exponent;
  uint8_t scales[8][2];
};
void unpack_block(DType type, const uint8_t* block, UnpackedBlock& out);

class RandomRow;

// The row of the file that is row n of the concatenation.
struct SourceRow {
  const std::byte* data = nullptr;
  const float* scales = nullptr;  // G4, G8 and GF8
  const float* mins = nullptr;
  const RandomRow* made = nullptr;  // not null: the blocks of GGUF's types are there, not in `data`

  // Block `index` of a row of one of GGUF's types.
  void block(DType type, int64_t index, UnpackedBlock& out) const;
};
// Random codes are made in `made`, where they stay until the next call.
SourceRow source_row(std::span<const RawMatrix> parts, int64_t n, RandomRow& made);

// A scale that is too small counts as zero (ops/linear.h).
float kept_scale(float d);

constexpr bool is_grouped(DType type) {
  return type == DType::kG4 || type == DType::kG8 || type == DType::kGF8;
}

// Returns an error for a mistake in a file; parts that do not belong together are a bug of the caller.
Status check_parts(std::span<const RawMatrix> parts);

// Reports rows [begin, end) of the concatenation as read. Mapped rows may be anywhere in their part: they wait.
void report_consumed(std::span<const RawMatrix> parts, int64_t begin, int64_t end, const PackOptions& options);

}  // namespace quire
