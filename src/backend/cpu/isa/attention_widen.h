// SPDX-License-Identifier: Apache-2.0
// K and V of one tile of positions as floats, from pages of any type and layout (attention_layout.h).
#pragma once

#include "backend/cpu/isa/attention_shared.h"
#include "backend/cpu/simd_bytes.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Transposes sixteen vectors of sixteen: four times, row i and row i + 8 become rows 2i and 2i + 1, lane by lane. Not
// inlined: where vectors are emulated it is long, and every type of page has a copy.
[[maybe_unused]] static __attribute__((noinline)) void transpose(F32x16* x) {
  F32x16 y[kLanes];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) interleave(x[i], x[i + 8], &y[2 * i], &y[2 * i + 1]);
    for (int i = 0; i < 8; ++i) interleave(y[i], y[i + 8], &x[2 * i], &x[2 * i + 1]);
  }
}

template <typename T>
constexpr bool kHasScales = false;
template <>
constexpr bool kHasScales<StoredI8> = true;

// The scales of a tile's positions, where pages have them; those that no row sees may be anything.
struct TileScales {
  alignas(64) float k[kAttentionTile];
  alignas(64) float v[kAttentionTile];
};
[[maybe_unused]] static void find_scales(const AttentionArgs& args, const AttentionItem& item, int64_t tile,
                                         TileRun run, TileScales* scales) {
  const KvLayer& kv = args.kv;
  const KvGeometry g = kv_geometry(kv);
  const int32_t* table = args.block_tables.data() + item.seq * args.max_blocks;
  for (int64_t i = run.begin / kKvHalf * kKvHalf; i < run.end; i += kKvHalf) {
    const int64_t position = tile + i;
    const char* head = static_cast<const char*>(kv.pages) + table[position / kv.block_size] * kv.page_stride +
                       item.kv_head * g.head_bytes;
    const auto* k = reinterpret_cast<const float*>(head + g.k_bytes + g.v_bytes) + position % kv.block_size;
    const auto* v = kv.v_in_k ? k : k + kv.block_size;
    __builtin_memcpy(scales->k + i, k, kKvHalf * sizeof(float));
    __builtin_memcpy(scales->v + i, v, kKvHalf * sizeof(float));
  }
}

// Widens K of groups [run.first_group(), run.groups()) to [group][head_dim][16 positions]. k: chunks of 16 positions,
// or of 8 where K stands in rows.
template <typename T>
[[maybe_unused]] static void widen_k(const typename T::Type* const* k, const TileScales& scales, TileRun run,
                                     int64_t head_dim, float* wide) {
  const int64_t count = kKvGroup * head_dim;
  for (int64_t g = run.first_group(); g < run.groups(); ++g) {
    if constexpr (kHasScales<T>) {
      const F32x16 scale = load(scales.k + g * kKvGroup);
      for (int64_t i = 0; i < count; i += kLanes) store(wide + g * count + i, T::get(k[g] + i) * scale);
    } else {
      for (int64_t i = 0; i < count; i += kLanes) store(wide + g * count + i, T::get(k[g] + i));
    }
  }
}
template <typename T>
[[maybe_unused]] static void widen_k_rows(const typename T::Type* const* k, const TileScales& scales, TileRun run,
                                          int64_t head_dim, int64_t k_stride, float* wide) {
  for (int64_t g = run.first_group(); g < run.groups(); ++g) {
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      F32x16 x[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) x[i] = T::get(k[2 * g + i / kKvHalf] + i % kKvHalf * k_stride + d);
      transpose(x);
      const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (kHasScales<T>) x[i] = x[i] * load(scales.k + g * kKvGroup);
        store(wide + (g * head_dim + d + i) * kKvGroup, x[i]);
      }
    }
  }
}

// Widens `width` elements of V of the positions of `run` to [64 positions][width]; v: chunks of kChunk positions.
template <typename T, int64_t kChunk>
[[maybe_unused]] static void widen_v(const typename T::Type* const* v, const TileScales& scales, TileRun run,
                                     int64_t v_stride, int64_t width, float* wide) {
  if (!kHasScales<T> && v_stride == width) {  // chunks are whole
    const int64_t count = kChunk * width;
    for (int64_t c = run.begin / kChunk; c * kChunk < run.end; ++c) {
      for (int64_t i = 0; i < count; i += kLanes) store(wide + c * count + i, T::get(v[c] + i));
    }
    return;
  }
  for (int64_t j = run.begin; j < run.end; ++j) {
    const typename T::Type* from = v[j / kChunk] + j % kChunk * v_stride;
    float* to = wide + j * width;
    if constexpr (kHasScales<T>) {
      const F32x16 scale = splat(scales.v[j]);
      for (int64_t d = 0; d < width; d += kLanes) store(to + d, T::get(from + d) * scale);
    } else {
      for (int64_t d = 0; d < width; d += kLanes) store(to + d, T::get(from + d));
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
