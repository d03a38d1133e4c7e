// SPDX-License-Identifier: Apache-2.0
// The digest of a row of logits: 64 bits that notice every changed bit, made at the speed of memory. Receipts keep it
// for years (llm/receipt.h), so its values never change.
//
// Contract. A row of n floats is read as n words of 32 bits, in chunks of 1,024 words, of which the last may be
// shorter. Word i of a chunk belongs to lane i % 32. The lane begins with
//   state = (32 * chunk + lane + 1) * kRowDigestStart and sum = 0,
// and each of its words does
//   state = rotate_left(state + word, 7), then sum = 5 * sum + state.
// At the end of the chunk the lane adds a = mix(state) to `high` and mix(sum + a) to `low`, where
//   mix(x): x = (x ^ x >> 16) * kRowDigestFactor1; x = (x ^ x >> 15) * kRowDigestFactor2; x ^ x >> 16.
// The digest is `high + n` in front of `low`. Everything is modulo 2^32. Whole numbers have the same sum in any order,
// so the chunks may be divided among threads in any way.
//
// Each step of a lane and mix() can be undone. So a change in one word changes `state`, and thereby `high`. Changes in
// two words of a lane may cancel in `state`; `sum` remembers that there was one in between.
#pragma once

#include <cstdint>
#include <span>

#include "ops/row_digest_constants.h"
#include "ops/tensor.h"

namespace quire {

// out[i] becomes the digest of row rows[i] of x. In the host's memory; a backend that samples makes digests there
// (SampleRow::digest).
struct DigestRowsArgs {
  Tensor x;  // [rows, n] F32
  std::span<const int32_t> rows;
  std::span<uint64_t> out;
};
void check(const DigestRowsArgs& args);

constexpr int64_t row_digest_chunks(int64_t n) {
  return (n + int64_t{kRowDigestChunk} - 1) / int64_t{kRowDigestChunk};
}

struct RowDigestSums {
  uint32_t high = 0;
  uint32_t low = 0;
};
constexpr uint64_t row_digest_of(RowDigestSums sums, int64_t n) {
  return uint64_t{sums.high + static_cast<uint32_t>(n)} << 32 | sums.low;
}

}  // namespace quire
