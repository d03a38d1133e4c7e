// SPDX-License-Identifier: Apache-2.0
// attention on the CPU: threads take the items of a plan, then merge the splits.
#include "backend/cpu/attention_layout.h"
#include "backend/cpu/cpu_backend.h"

namespace quire::cpu {

size_t CpuBackend::kv_page_bytes(const KvPageShape& shape) const {
  return static_cast<size_t>(cpu::kv_page_bytes(shape));
}

void CpuBackend::attention(const AttentionArgs& args) {
  check(args);
  check_f32(args.q, args.out);
  QUIRE_CHECK(args.distance_bias == nullptr || args.kv.dtype == DType::kF32, "a bias by distance needs F32 pages");
  const int64_t most_rows = pages_for_tiles(args.kv.dtype) ? kernels_.attention.most_rows : kAttentionRows;
  plan_.build(args, pool_.threads(), most_rows);
  const auto items = plan_.items();
  const auto scratch = static_cast<size_t>(attention_scratch_floats(args.kv.head_dim, args.kv.v_dim())) * sizeof(float);
  pool_.for_each_piece(static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    auto* floats = static_cast<float*>(thread_scratch_[static_cast<size_t>(thread)].grow(scratch));
    for (int64_t i = begin; i < end; ++i) kernels_.attention.run(args, items[static_cast<size_t>(i)], floats);
  });
  const auto merges = plan_.merges();
  pool_.for_each_piece(static_cast<int64_t>(merges.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) kernels_.attention.merge(args, merges[static_cast<size_t>(i)]);
  });
}

}  // namespace quire::cpu
