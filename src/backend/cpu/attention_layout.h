// SPDX-License-Identifier: Apache-2.0
// How the cpu backend lays K and V out inside a page; nothing outside backend/cpu knows it.
//
// A page holds block_size positions (a multiple of 16) of every kv head; a head's K and V stand together:
//   K: [block_size/16 groups][head_dim][16 positions]   so that one q element, broadcast, meets 16 positions at once
//   V: [block_size positions][v_stride]                 v_stride = head_dim rounded up to 16 elements; the rest is zero
// In pairs, for AMX (BF16 and a head_dim of whole 32s), in the same bytes:
//   K: [block_size/16 groups][head_dim/2][16 positions][2]
//   V: [block_size/2 pairs of positions][head_dim][2 positions]
// K needs no padding at any head_dim: its vectors run over positions. A group of 16 positions never crosses a page.
#pragma once

#include <cstdint>

#include "ops/attention.h"

namespace quire::cpu {

constexpr int64_t kKvGroup = 16;
constexpr int64_t kKvPageAlignment = 64;

struct KvGeometry {
  int64_t element;    // bytes of one element
  int64_t v_stride;   // elements from one position of V to the next
  int64_t k_bytes;    // K of one head in one page
  int64_t v_bytes;    // V of one head in one page
  int64_t page_used;  // bytes of a page that hold data
};

constexpr KvGeometry kv_geometry(DType dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t element = dtype == DType::kF32 ? 4 : 2;
  const int64_t v_stride = (head_dim + kKvGroup - 1) / kKvGroup * kKvGroup;
  const int64_t k_bytes = block_size * head_dim * element;
  const int64_t v_bytes = block_size * v_stride * element;
  return {element, v_stride, k_bytes, v_bytes, num_kv_heads * (k_bytes + v_bytes)};
}
constexpr KvGeometry kv_geometry(const KvLayer& kv) {
  return kv_geometry(kv.dtype, kv.block_size, kv.num_kv_heads, kv.head_dim);
}

// Whether a level that multiplies tiles keeps pages of this kind in pairs.
constexpr bool pages_in_pairs(DType dtype, int64_t head_dim) {
  return dtype == DType::kBF16 && head_dim % 32 == 0;
}

// Bytes of one layer's page: what Backend::kv_page_bytes answers.
constexpr int64_t kv_page_bytes(DType dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t used = kv_geometry(dtype, block_size, num_kv_heads, head_dim).page_used;
  return (used + kKvPageAlignment - 1) / kKvPageAlignment * kKvPageAlignment;
}

}  // namespace quire::cpu
