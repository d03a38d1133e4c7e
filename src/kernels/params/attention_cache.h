// SPDX-License-Identifier: Apache-2.0
// The layout of K and V in a page, for the host and for kernels, and the parameters of the kernels that write pages.
//
// A page of one layer: K [block_size][kv_heads][k_row bytes], then V [block_size][kv_heads][v_row bytes] (absent where
// V is a part of K), then for int8 the float scales of K [block_size][kv_heads], and those of V. Rows are padded to 16
// bytes; a kernel that writes a row of 16-bit elements also writes zeros to its padding.
#pragma once

#include "kernels/compat/types.h"

enum KvPageType { kKvF32 = 0, kKvF16 = 1, kKvBF16 = 2, kKvI8 = 3, kKvE4M3 = 4, kKvE5M2 = 5 };

struct KvPages {
  i64 page_stride;               // bytes
  i64 v_at;                      // bytes from the start of a page; the same as K's where V is a part of K
  i64 k_scales_at, v_scales_at;  // of int8 pages, bytes from the start of a page
  int k_row, v_row;              // bytes
  int type;                      // KvPageType
  int block_size;
  int kv_heads;
  int head_dim, v_dim;
  int v_in_k;
};

constexpr int kv_element_bytes(int type) {
  return type == kKvF32 ? 4 : type == kKvF16 || type == kKvBF16 ? 2 : 1;
}

constexpr int kv_row_bytes(int type, int dim) {
  return (dim * kv_element_bytes(type) + 15) / 16 * 16;
}

// Everything but page_stride, which the caller fills in.
constexpr KvPages kv_pages(int type, int block_size, int kv_heads, int head_dim, int v_dim, bool v_in_k) {
  KvPages kv = {0, 0, 0, 0, 0, 0, type, block_size, kv_heads, head_dim, v_dim, v_in_k ? 1 : 0};
  const i64 rows = (i64)block_size * kv_heads;
  kv.k_row = kv_row_bytes(type, head_dim);
  kv.v_row = v_in_k ? kv.k_row : kv_row_bytes(type, v_dim);
  kv.v_at = v_in_k ? 0 : rows * kv.k_row;
  kv.k_scales_at = rows * kv.k_row + (v_in_k ? 0 : rows * kv.v_row);
  kv.v_scales_at = v_in_k ? kv.k_scales_at : kv.k_scales_at + rows * 4;
  return kv;
}

constexpr i64 kv_page_bytes(const KvPages kv) {
  const i64 scales = (kv.v_in_k != 0 ? 4 : 8) * (i64)kv.block_size * kv.kv_heads;
  const i64 end = kv.k_scales_at + (kv.type == kKvI8 ? scales : 0);
  return (end + 15) / 16 * 16;
}

// Grid: one simdgroup per (token, K or V, KV head), kCacheRows simdgroups per threadgroup.
enum { kCacheRows = 4 };

struct CacheParams {
  KvPages kv;
  i64 k_stride, v_stride;  // elements from token to token
  int tokens;
  int sides;  // 2: K and V, 1: K only
};

// Grid: one simdgroup per token and unit (unit 0: the latent vector and its key, then the heads of q), kCacheRows per
// threadgroup.
struct MlaToCacheParams {
  KvPages kv;
  i64 q_stride, latent_stride, q_latent_stride;
  int tokens;
  int heads, q_head;  // query heads, and the elements of one
  int rot_dim;
  int interleaved;
  float eps;
};

// Grid: one simdgroup per token and `each` heads (first those of q, then of k, then of v), kCacheRows per threadgroup.
// REQUIRES: fewer than 2^31 simdgroups.
struct QkvToCacheParams {
  KvPages kv;
  i64 q_stride, k_stride, v_stride;
  int tokens;
  int heads;              // query heads
  int each;               // heads that a simdgroup takes one after another
  int q_units, kv_units;  // simdgroups for the heads of q, and for those of k or v
  int rot_dim;
  int interleaved;
  int normed_q, normed_k;
  // Many tokens, and all heads have 32 * 4 or 32 * 8 elements, which are rotated whole in pairs half a head apart.
  int whole_heads;
  float eps;
};
