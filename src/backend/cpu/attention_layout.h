// SPDX-License-Identifier: Apache-2.0
// The layout of K and V inside a page of the CPU backend; nothing outside backend/cpu depends on it.
//
// A page has block_size positions (a multiple of 8) of every kv head; a head's K and V are stored together:
//   K: [block_size/16 groups][head_dim][16 positions]   to multiply one broadcast q element with 16 positions
//   V: [block_size positions][v_stride]                 v_stride = v_dim rounded up to 16 elements; the rest is zero
// In pairs, for AMX (BF16 and a head_dim of whole 32s), in the same bytes:
//   K: [block_size/16 groups][head_dim/2][16 positions][2]
//   V: [block_size/2 pairs of positions][v_stride][2 positions]
// In rows, if block_size is not a multiple of 16, and if V is in K (rows of K are rows of V, and there are enough query
// rows to pay for transposing K):
//   K: [block_size positions][k_stride]                 k_stride = head_dim rounded up to 16; the rest is zero
//   V: as above, or none
// In int8 pages the scales follow, [block_size] floats for K and then for V.
// K needs no padding at any head_dim unless in rows: its vectors run over positions. A group of 16 positions crosses a
// page only in rows; a group of 8 never does.
#pragma once

#include <cstdint>

#include "base/math.h"
#include "ops/attention.h"

namespace quire::cpu {

constexpr int64_t kKvGroup = 16;
constexpr int64_t kKvHalf = 8;  // block sizes are multiples of it
constexpr int64_t kKvPageAlignment = 64;

struct KvGeometry {
  int64_t element;      // bytes of one element
  bool in_rows;         // K
  int64_t k_stride;     // elements from one position of K to the next, in rows
  int64_t v_stride;     // elements from one position of V to the next
  int64_t width;        // v_dim rounded up to 16
  int64_t k_bytes;      // K of one head in one page
  int64_t v_bytes;      // V of one head in one page
  int64_t scale_bytes;  // the scales of K of one head in one page, and those of V
  int64_t head_bytes;   // from one head to the next
  int64_t page_used;    // bytes of a page that hold data
};

// Always inlined: kernels of several ISA levels call it, and they must share no code.
[[gnu::always_inline]] constexpr inline KvGeometry kv_geometry(const KvPageShape& shape) {
  const int64_t v_dim = shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim;
  KvGeometry g = {};
  g.element = info(shape.dtype).block_bytes;
  g.in_rows = shape.v_in_k || shape.block_size % kKvGroup != 0;
  g.k_stride = (shape.head_dim + kKvGroup - 1) / kKvGroup * kKvGroup;
  g.width = round_up(v_dim, kKvGroup);
  g.v_stride = shape.v_in_k ? g.k_stride : g.width;
  g.k_bytes = shape.block_size * (g.in_rows ? g.k_stride : shape.head_dim) * g.element;
  g.v_bytes = shape.v_in_k ? 0 : shape.block_size * g.v_stride * g.element;
  g.scale_bytes = shape.dtype == DType::kI8 ? shape.block_size * static_cast<int64_t>(sizeof(float)) : 0;
  g.head_bytes = g.k_bytes + g.v_bytes + (shape.v_in_k ? 1 : 2) * g.scale_bytes;
  g.page_used = shape.num_kv_heads * g.head_bytes;
  return g;
}
[[gnu::always_inline]] constexpr inline KvGeometry kv_geometry(const KvLayer& kv) {
  return kv_geometry({kv.dtype, kv.block_size, kv.num_kv_heads, kv.head_dim, kv.v_head_dim, kv.v_in_k});
}

// Whether a level with AMX tiles attends to pages of this type with them.
[[gnu::always_inline]] constexpr inline bool pages_for_tiles(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kI8 || dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}
// Whether a level with AMX tiles stores pages of this kind in pairs.
[[gnu::always_inline]] constexpr inline bool pages_in_pairs(const KvLayer& kv) {
  return kv.dtype == DType::kBF16 && kv.head_dim % 32 == 0 && kv.v_dim() % kKvGroup == 0 &&
         kv.block_size % kKvGroup == 0 && !kv.v_in_k;
}

// Bytes of one layer's page: the value of Backend::kv_page_bytes.
constexpr int64_t kv_page_bytes(const KvPageShape& shape) {
  const int64_t used = kv_geometry(shape).page_used;
  return round_up(used, kKvPageAlignment);
}

}  // namespace quire::cpu
