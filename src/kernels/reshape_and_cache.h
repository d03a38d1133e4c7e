// SPDX-License-Identifier: Apache-2.0
// reshape_and_cache: a token's K and V to its slot of the pages, in place; the contract is in ops/attention.h.
#pragma once

#include "kernels/attention_pages.h"
#include "kernels/compat/dialect.h"
#include "kernels/params/cache.h"

// The scale of one head of int8 pages: amax of all lanes / 127.
FN float cache_scale(float lane_amax, bool finite) {
  const float amax = simd_max(lane_amax);
  if (!simd_all(finite)) return as_float(0x7fc00000u);
  return amax < 0x1p-100f ? 0.0f : amax / 127.0f;
}
FN bool cache_finite(float x) {
  return (as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// One simdgroup a row.
template <typename T>
struct ReshapeAndCache {
  enum { kThreads = 32 * kCacheRows };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const CacheParams& p, TGROUP Smem& sm, DEVICE uchar* pages, DEVICE const T* k,
                     DEVICE const T* v, DEVICE const i64* slots) {
    const int units = p.sides * p.kv.kv_heads;
    const i64 unit = (i64)c.tgx * kCacheRows + c.sg;
    const i64 token = unit / units;
    if (token >= p.tokens) return;
    const i64 slot = slots[token];
    if (slot < 0) return;
    const int in_token = (int)(unit - token * units);
    const bool values = in_token >= p.kv.kv_heads;
    const int head = values ? in_token - p.kv.kv_heads : in_token;
    const i64 page = slot / p.kv.block_size;
    const int row = (int)(slot - page * p.kv.block_size) * p.kv.kv_heads + head;
    const int dim = values ? p.kv.v_dim : p.kv.head_dim;
    DEVICE const T* x = values ? v + token * p.v_stride + (i64)head * dim : k + token * p.k_stride + (i64)head * dim;
    float scale = 1.0f;
    if (p.kv.type == kKvI8) {
      float amax = 0.0f;
      bool finite = true;
      for (int i = (int)c.lane; i < dim; i += 32) {
        const float y = to_f(x[i]);
        amax = max(amax, abs(y));
        finite = finite && cache_finite(y);
      }
      scale = cache_scale(amax, finite);
      if (c.lane == 0) *(DEVICE float*)(pages + kv_scale_at(p.kv, page, row, values)) = scale;
    }
    DEVICE uchar* to_row = pages + kv_row_at(p.kv, page, row, values);
    const int padded = p.kv.type == kKvF16 || p.kv.type == kKvBF16 ? (values ? p.kv.v_row : p.kv.k_row) / 2 : dim;
    for (int i = (int)c.lane; i < padded; i += 32) kv_put(to_row, p.kv.type, i, i < dim ? to_f(x[i]) : 0.0f, scale);
  }
};
KERNEL(reshape_and_cache_f32, ReshapeAndCache<float>, CacheParams, uchar, const float, const float, const i64)
KERNEL(reshape_and_cache_f16, ReshapeAndCache<half>, CacheParams, uchar, const half, const half, const i64)
KERNEL(reshape_and_cache_bf16, ReshapeAndCache<bfloat>, CacheParams, uchar, const bfloat, const bfloat, const i64)
