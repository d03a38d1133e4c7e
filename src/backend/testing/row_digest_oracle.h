// SPDX-License-Identifier: Apache-2.0
// The digest of a row as ops/row_digest.h says it, a word at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace quire::cases {

inline uint64_t row_digest_oracle(std::span<const float> row) {
  const auto mix = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x9E3779B1u;
    x = (x ^ (x >> 15)) * 0xC2B2AE3Du;
    return x ^ (x >> 16);
  };
  const size_t chunks = (row.size() + 1023) / 1024;
  uint32_t high = static_cast<uint32_t>(row.size()), low = 0;
  for (size_t number = 0; number < 32 * chunks; ++number) {  // of the lane, through all chunks
    uint32_t state = static_cast<uint32_t>(number + 1) * 0x85EBCA6Bu, sum = 0;
    for (size_t word = number % 32; word < 1024 && number / 32 * 1024 + word < row.size(); word += 32) {
      state = std::rotl(state + std::bit_cast<uint32_t>(row[number / 32 * 1024 + word]), 7);
      sum = 5 * sum + state;
    }
    high += mix(state);
    low += mix(sum + mix(state));
  }
  return (uint64_t{high} << 32) | low;
}

}  // namespace quire::cases
