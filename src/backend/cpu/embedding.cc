// SPDX-License-Identifier: Apache-2.0
// embedding on the CPU.
#include "backend/cpu/cpu_backend.h"

namespace quire::cpu {

void CpuBackend::embedding(const EmbeddingArgs& args) {
  check(args);
  check_indices(args);
  check_f32(args.out);
  const PackedView& table = matrix(args.table).view();
  for_rows(args.out.rows, table.k, [&](int64_t begin, int64_t end) { kernels_.embedding(table, args, begin, end); });
}

}  // namespace quire::cpu
