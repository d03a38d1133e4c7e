// SPDX-License-Identifier: Apache-2.0
// Elements of KV pages: where they are, and how to convert between their bits and floats. No kernels here.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/fp8.h"
#include "kernels/params/attention_cache.h"

// Bytes from the layer's first page to a row; `row` = offset in the page * kv_heads + head.
FN i64 kv_row_at(CONSTANT const KvPages& kv, i64 page, int row, bool values) {
  return page * kv.page_stride + (values ? kv.v_at : 0) + (i64)row * (values ? kv.v_row : kv.k_row);
}
FN i64 kv_scale_at(CONSTANT const KvPages& kv, i64 page, int row, bool values) {
  return page * kv.page_stride + (values ? kv.v_scales_at : kv.k_scales_at) + (i64)row * 4;
}

template <typename T>
struct KvTypeOf;
template <>
struct KvTypeOf<float> {
  enum { kType = kKvF32 };
};
template <>
struct KvTypeOf<half> {
  enum { kType = kKvF16 };
};
template <>
struct KvTypeOf<bfloat> {
  enum { kType = kKvBF16 };
};

// The value of element i of a row.
FN float kv_value(DEVICE const uchar* row, int type, int i, float scale) {
  if (type == kKvBF16) return to_f(((DEVICE const bfloat*)row)[i]);
  if (type == kKvF16) return to_f(((DEVICE const half*)row)[i]);
  if (type == kKvF32) return ((DEVICE const float*)row)[i];
  if (type == kKvI8) return (float)((DEVICE const i8*)row)[i] * scale;
  return type == kKvE4M3 ? e4m3_to_f(row[i]) : e5m2_to_f(row[i]);
}

FN void kv_store(DEVICE uchar* row, int type, int i, float x, float scale) {
  if (type == kKvBF16) {
    ((DEVICE bfloat*)row)[i] = to<bfloat>(x);
  } else if (type == kKvF16) {
    ((DEVICE half*)row)[i] = to<half>(x);
  } else if (type == kKvF32) {
    ((DEVICE float*)row)[i] = x;
  } else if (type == kKvI8) {
    ((DEVICE i8*)row)[i] = (i8)(scale > 0.0f ? (int)rint(x / scale) : 0);
  } else {
    row[i] = (uchar)(type == kKvE4M3 ? f_to_e4m3(x) : f_to_e5m2(x));
  }
}

// Elements first .. first + 7 of a row as T, zeros from `dim` on: 16 bytes of a tile.
template <typename T>
FN uint4 kv_piece(DEVICE const uchar* row, int type, int first, int dim, float scale) {
  uint words[4];
  UNROLL for (int i = 0; i < 4; i++) {
    const int at = first + 2 * i;
    const float low = at < dim ? kv_value(row, type, at, scale) : 0.0f;
    const float high = at + 1 < dim ? kv_value(row, type, at + 1, scale) : 0.0f;
    words[i] = (uint)to_bits16(to<T>(low)) | (uint)to_bits16(to<T>(high)) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
