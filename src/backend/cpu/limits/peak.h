// SPDX-License-Identifier: Apache-2.0
// The loops of the peak probes, internal to this folder. Each does `rounds` rounds (at least one) of its instruction on
// registers loaded from 4 KiB of operands; null where the compiler does not know the instruction.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cpu::peak {

using PeakFunction = void (*)(int64_t rounds, const void* operands);
// Reads all of it, a multiple of 512 bytes, and gives a sum, so that no load can be left out.
using ReadFunction = uint64_t (*)(const std::byte* data, size_t bytes);

// The loop of every ReadFunction: eight vectors a turn, asked for 4 KiB ahead. The hardware's own prefetch stops at the
// end of a page; without ours a third of the bandwidth is missing.
template <typename Vector>
inline __attribute__((always_inline)) uint64_t read_vectors(const std::byte* data, size_t bytes) {
  constexpr size_t kVectors = 8;
  constexpr size_t kAhead = 4096;
  Vector sums[kVectors] = {};
  for (size_t at = 0; at < bytes; at += kVectors * sizeof(Vector)) {
    for (size_t i = 0; i < kVectors * sizeof(Vector); i += 64) __builtin_prefetch(data + at + i + kAhead);
    for (size_t i = 0; i < kVectors; ++i) {
      sums[i] += *reinterpret_cast<const Vector*>(data + at + i * sizeof(Vector));
    }
  }
  for (size_t i = 1; i < kVectors; ++i) sums[0] += sums[i];
  uint64_t sum = 0;
  for (size_t i = 0; i < sizeof(Vector) / 8; ++i) sum += sums[0][i];
  return sum;
}

#if defined(__x86_64__)
extern const ReadFunction kReadYmm, kReadZmm;
extern const PeakFunction kMulAddXmm, kFmaYmm, kMaddubsYmm, kFmaZmm, kDpbusdZmm, kDpbf16Zmm, kDpbusdTile, kDpbf16Tile;
#elif defined(__aarch64__)
extern const PeakFunction kFmla, kSdot, kSmmla, kBfmmla;
#endif

}  // namespace quire::cpu::peak
