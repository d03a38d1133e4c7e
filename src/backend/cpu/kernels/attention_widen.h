// SPDX-License-Identifier: Apache-2.0
// K and V of one tile of positions as floats, from pages of any type and layout (attention_layout.h).
#pragma once

#include "backend/cpu/kernels/attention_rows.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Turns sixteen vectors of sixteen: four times, row i and row i + 8 become rows 2i and 2i + 1, lane by lane.
QUIRE_INLINE void transpose(F32x16* x) {
  F32x16 y[kLanes];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) interleave(x[i], x[i + 8], &y[2 * i], &y[2 * i + 1]);
    for (int i = 0; i < 8; ++i) interleave(y[i], y[i + 8], &x[2 * i], &x[2 * i + 1]);
  }
}

// Widens K of groups [run.first_group(), run.groups()) to [group][head_dim][16 positions]. k: chunks of 16 positions,
// or of 8 where K stands in rows.
template <typename T>
[[maybe_unused]] static void widen_k(const typename T::Type* const* k, TileRun run, int64_t head_dim, float* wide) {
  const int64_t count = kKvGroup * head_dim;
  for (int64_t g = run.first_group(); g < run.groups(); ++g) {
    for (int64_t i = 0; i < count; i += kLanes) store(wide + g * count + i, T::get(k[g] + i));
  }
}
template <typename T>
[[maybe_unused]] static void widen_k_rows(const typename T::Type* const* k, TileRun run, int64_t head_dim,
                                          int64_t k_stride, float* wide) {
  for (int64_t g = run.first_group(); g < run.groups(); ++g) {
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      F32x16 x[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) x[i] = T::get(k[2 * g + i / kKvHalf] + i % kKvHalf * k_stride + d);
      transpose(x);
      const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
      for (int64_t i = 0; i < n; ++i) store(wide + (g * head_dim + d + i) * kKvGroup, x[i]);
    }
  }
}

// Widens `width` elements of V of the positions of `run` to [64 positions][width]; v: chunks of kChunk positions.
template <typename T, int64_t kChunk>
[[maybe_unused]] static void widen_v(const typename T::Type* const* v, TileRun run, int64_t v_stride, int64_t width,
                                     float* wide) {
  for (int64_t j = run.begin; j < run.end; ++j) {
    const typename T::Type* from = v[j / kChunk] + j % kChunk * v_stride;
    for (int64_t d = 0; d < width; d += kLanes) store(wide + j * width + d, T::get(from + d));
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
