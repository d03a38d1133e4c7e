// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, a counter-based random generator: a number depends only on its key and its counter.
#pragma once

#include <array>
#include <cstdint>

namespace quire {

struct Philox {
  using Block = std::array<uint32_t, 4>;

  // Ten rounds on `counter` with a 64-bit key. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
  static constexpr Block generate(uint64_t key, Block counter) {
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
      counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
                 static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return counter;
  }

  // The same for N counters side by side: word w of counter n is in counters[w][n] and is replaced by its output. Lanes
  // are independent, so the compiler vectorises them.
  template <std::size_t N>
  static constexpr void generate_lanes(uint64_t key, uint32_t (&counters)[4][N]) {
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      for (std::size_t n = 0; n < N; ++n) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * counters[0][n];
        const uint64_t p1 = uint64_t{0xCD9E8D57u} * counters[2][n];
        counters[0][n] = static_cast<uint32_t>(p1 >> 32) ^ counters[1][n] ^ k0;
        counters[1][n] = static_cast<uint32_t>(p1);
        counters[2][n] = static_cast<uint32_t>(p0 >> 32) ^ counters[3][n] ^ k1;
        counters[3][n] = static_cast<uint32_t>(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  static constexpr Block generate(uint64_t key, uint64_t lo, uint64_t hi = 0) {
    return generate(key, Block{static_cast<uint32_t>(lo), static_cast<uint32_t>(lo >> 32), static_cast<uint32_t>(hi),
                               static_cast<uint32_t>(hi >> 32)});
  }
};

// 24 random bits as a float in [0, 1); exact.
constexpr float uniform_from_bits(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// The 64-bit FNV-1a hash, which makes keys of names.
constexpr uint64_t fnv1a64(const char* data, std::size_t size) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (std::size_t i = 0; i < size; ++i) {
    h ^= static_cast<unsigned char>(data[i]);
    h *= 0x100000001b3ull;
  }
  return h;
}

}  // namespace quire
