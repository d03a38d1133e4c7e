// SPDX-License-Identifier: Apache-2.0
// reshape_and_cache of tokens: rounds K and V to the type of the pages and stores them as attention_layout.h says.
#include "backend/cpu/attention_layout.h"
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"
#include "backend/cpu/simd_bytes.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

// Converts elements to the type of a page; int8 codes need their scale.
template <typename T>
struct Rounder {
  QUIRE_INLINE void put(typename T::Type* p, F32x16 x, float /*scale*/) { T::put(p, x); }
};
template <>
struct Rounder<StoredI8> {
  QUIRE_INLINE void put(int8_t* p, F32x16 x, float scale) {
    // A scale that is 0 or NaN: the codes are 0.
    StoredI8::put(p, scale > 0 ? x / splat(scale) : zero());
  }
};

// The scale of one head of one token.
float scale_of(const float* x, int64_t dim) {
  F32x16 top = zero(), wrong = zero();  // x - x is not 0 where x is not finite
  for (int64_t d = 0; d < dim; d += kLanes) {
    const F32x16 v = load_some(x + d, dim - d < kLanes ? dim - d : kLanes);
    top = max(abs(v), top);
    wrong = wrong + (v - v);
  }
  const float amax = reduce_max(top) + reduce_add(wrong);
  return amax < 0x1p-100f ? 0.0f : amax / 127.0f;
}

// K of one head of one token: element d goes to d * 16 of its position's column.
template <typename T>
void scatter_k(const float* k, int64_t head_dim, float scale, typename T::Type* column) {
  typename T::Type rounded[kLanes];
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
    Rounder<T>::put(rounded, load_some(k + d, n), scale);
    for (int64_t i = 0; i < n; ++i) column[(d + i) * kKvGroup] = rounded[i];
  }
}

// V, or K in rows, of one head of one token.
template <typename T>
void copy_row(const float* x, int64_t dim, float scale, typename T::Type* out) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    Rounder<T>::put(out + d, load_some(x + d, n), scale);  // a whole group: the padding gets zeros
  }
}

template <typename T>
void write_rows(const ReshapeAndCacheArgs& args, int64_t row_begin, int64_t row_end) {
  const KvLayer& kv = args.kv;
  const KvGeometry g = kv_geometry(kv);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = args.slot_mapping.data()[row];
    if (slot < 0) continue;
    const int64_t page = slot / kv.block_size;
    const int64_t position = slot % kv.block_size;
    char* head = static_cast<char*>(kv.pages) + page * kv.page_stride;
    for (int64_t h = 0; h < kv.num_kv_heads; ++h, head += g.head_bytes) {
      auto* k = reinterpret_cast<typename T::Type*>(head);
      auto* v = reinterpret_cast<typename T::Type*>(head + g.k_bytes);
      const float* k_from = row_of(args.k, row) + h * kv.head_dim;
      const float* v_from = kv.v_in_k ? nullptr : row_of(args.v, row) + h * kv.v_dim();
      float k_scale = 1, v_scale = 1;
      if (g.scale_bytes > 0) {
        auto* scales = reinterpret_cast<float*>(head + g.k_bytes + g.v_bytes) + position;
        scales[0] = k_scale = scale_of(k_from, kv.head_dim);
        if (!kv.v_in_k) scales[kv.block_size] = v_scale = scale_of(v_from, kv.v_dim());
      }
      if (g.in_rows) {
        copy_row<T>(k_from, kv.head_dim, k_scale, k + position * g.k_stride);
      } else {
        auto* group = k + position / kKvGroup * kv.head_dim * kKvGroup;
        scatter_k<T>(k_from, kv.head_dim, k_scale, group + position % kKvGroup);
      }
      if (!kv.v_in_k) copy_row<T>(v_from, kv.v_dim(), v_scale, v + position * g.v_stride);
    }
  }
}

}  // namespace

void reshape_and_cache(const ReshapeAndCacheArgs& args, int64_t row_begin, int64_t row_end) {
  switch (args.kv.dtype) {
    case DType::kF32:
      return write_rows<StoredF32>(args, row_begin, row_end);
    case DType::kF16:
      return write_rows<StoredF16>(args, row_begin, row_end);
    case DType::kI8:
      return write_rows<StoredI8>(args, row_begin, row_end);
    case DType::kF8E4M3:
      return write_rows<StoredF8E4M3>(args, row_begin, row_end);
    case DType::kF8E5M2:
      return write_rows<StoredF8E5M2>(args, row_begin, row_end);
    default:
      return write_rows<StoredBF16>(args, row_begin, row_end);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
