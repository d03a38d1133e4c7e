// SPDX-License-Identifier: Apache-2.0
// reshape_and_cache of tokens: rounds K and V to the pages' type and puts them where attention_layout.h says.
#include "backend/cpu/attention_layout.h"
#include "backend/cpu/kernels/declare.h"
#include "backend/cpu/kernels/rows.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

// K of one head of one token: element d goes to d * 16 of its position's column.
template <typename T>
void scatter_k(const float* k, int64_t head_dim, typename T::Type* column) {
  typename T::Type rounded[kLanes];
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
    T::put(rounded, load_some(k + d, n));
    for (int64_t i = 0; i < n; ++i) column[(d + i) * kKvGroup] = rounded[i];
  }
}

// V, or K in rows, of one head of one token.
template <typename T>
void copy_row(const float* x, int64_t dim, typename T::Type* out) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    T::put(out + d, load_some(x + d, n));  // a whole group: the padding gets zeros
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
      const float* from = row_of(args.k, row) + h * kv.head_dim;
      if (g.in_rows) {
        copy_row<T>(from, kv.head_dim, k + position * g.k_stride);
      } else {
        scatter_k<T>(from, kv.head_dim, k + position / kKvGroup * kv.head_dim * kKvGroup + position % kKvGroup);
      }
      if (!kv.v_in_k) copy_row<T>(row_of(args.v, row) + h * kv.v_dim(), kv.v_dim(), v + position * g.v_stride);
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
    default:
      return write_rows<StoredBF16>(args, row_begin, row_end);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
