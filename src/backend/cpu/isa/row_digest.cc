// SPDX-License-Identifier: Apache-2.0
// Digests of rows, by the vectors of one ISA level.
#include "ops/row_digest.h"

#include <bit>
#include <cstring>

#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

void row_digest(const float* row, int64_t n, int64_t begin, int64_t end, RowDigestSums& sums) {
#if defined(__AVX512F__)
  constexpr int kBytes = 64;
#elif defined(__AVX2__)
  constexpr int kBytes = 32;
#else
  constexpr int kBytes = 16;
#endif
  typedef uint32_t Words __attribute__((vector_size(kBytes)));
  constexpr int kWidth = kBytes / 4, kVectors = static_cast<int>(kRowDigestLanes) / kWidth;
  constexpr int64_t kChunk = kRowDigestChunk, kLanes = kRowDigestLanes;
  const auto mix = [](Words x) __attribute__((always_inline)) {
    x = (x ^ x >> 16) * static_cast<uint32_t>(kRowDigestFactor1);
    x = (x ^ x >> 15) * static_cast<uint32_t>(kRowDigestFactor2);
    return x ^ x >> 16;
  };
  Words first[kVectors], high[kVectors] = {}, low[kVectors] = {};  // first: the first states of chunk 0
  for (int lane = 0; lane < kLanes; ++lane) {
    first[lane / kWidth][lane % kWidth] = static_cast<uint32_t>(lane + 1) * kRowDigestStart;
  }
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const float* at = row + chunk * kChunk;
    const int64_t words = n - chunk * kChunk < kChunk ? n - chunk * kChunk : kChunk;
    const uint32_t start = static_cast<uint32_t>(chunk * kLanes) * kRowDigestStart;
    Words state[kVectors], sum[kVectors] = {};
    for (int v = 0; v < kVectors; ++v) state[v] = first[v] + start;
    int64_t i = 0;
    for (; i + kLanes <= words; i += kLanes) {
      for (int v = 0; v < kVectors; ++v) {
        Words word;
        std::memcpy(&word, at + i + v * kWidth, sizeof word);
        state[v] += word;
        state[v] = state[v] << 7 | state[v] >> 25;
        sum[v] = 5 * sum[v] + state[v];
      }
    }
    for (int lane = 0; i < words; ++i, ++lane) {
      uint32_t x = state[lane / kWidth][lane % kWidth] + std::bit_cast<uint32_t>(at[i]);
      x = x << 7 | x >> 25;
      state[lane / kWidth][lane % kWidth] = x;
      sum[lane / kWidth][lane % kWidth] = 5 * sum[lane / kWidth][lane % kWidth] + x;
    }
    for (int v = 0; v < kVectors; ++v) {
      const Words a = mix(state[v]);
      high[v] += a;
      low[v] += mix(sum[v] + a);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.high += high[lane / kWidth][lane % kWidth];
    sums.low += low[lane / kWidth][lane % kWidth];
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
