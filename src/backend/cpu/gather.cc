// SPDX-License-Identifier: Apache-2.0
// gather and gather_columns on the CPU: copies, which need no kernel.
#include <cstring>

#include "backend/cpu/cpu_backend.h"

namespace quire::cpu {
namespace {

// Consecutive columns, as most parts of a projection are; one copy moves them all.
struct ColumnRun {
  int64_t from, to, count;
};

std::vector<ColumnRun> runs_of(std::span<const int32_t> columns) {
  std::vector<ColumnRun> runs;
  for (size_t i = 0; i < columns.size(); ++i) {
    const int64_t column = columns[i];
    if (!runs.empty() && runs.back().from + runs.back().count == column) {
      ++runs.back().count;
    } else {
      runs.push_back({column, static_cast<int64_t>(i), 1});
    }
  }
  return runs;
}

}  // namespace

void CpuBackend::gather(const GatherArgs& args) {
  check(args);
  check_indices(args);
  check_f32(args.x, args.out);
  for_rows(args.out.rows, args.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(args.out.row_f32(i), args.x.row_f32(args.rows[static_cast<size_t>(i)]),
                  static_cast<size_t>(args.x.cols) * sizeof(float));
    }
  });
}

void CpuBackend::gather_columns(const GatherColumnsArgs& args) {
  check(args);
  check_indices(args);
  check_f32(args.x, args.out);
  const std::vector<ColumnRun> runs = runs_of(args.columns);
  for_rows(args.x.rows, args.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = args.x.row_f32(row);
      float* out = args.out.row_f32(row);
      for (const ColumnRun& run : runs) {
        if (run.count == 1) {
          out[run.to] = x[run.from];
        } else {
          std::memcpy(out + run.to, x + run.from, static_cast<size_t>(run.count) * sizeof(float));
        }
      }
    }
  });
}

}  // namespace quire::cpu
