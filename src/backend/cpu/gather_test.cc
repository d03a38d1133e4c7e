// SPDX-License-Identifier: Apache-2.0
// gather_columns: copies by bits. (row_ops_test.cc has gather.)
#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/testing/guarded_matrix.h"

namespace quire::cpu {
namespace {

using namespace cases;
using Matrix = GuardedMatrix;

TEST(GatherColumns, CopiesRunsAndSingleColumnsInAnyOrder) {
  auto backend = make_cpu_backend({3, ""});
  ASSERT_TRUE(backend.ok());
  const std::vector<int32_t> columns = {40, 41, 42, 43, 7, 7, 6, 5, 0, 1, 2, 3, 4, 5, 6, 99, 98};
  for (const int64_t rows : {0, 1, 300}) {
    Matrix x(rows, 100, 1, 3), out(rows, static_cast<int64_t>(columns.size()), 2, 4), want = out;
    for (int64_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns.size(); ++c) want.row(r)[c] = x.row(r)[columns[c]];
    }
    backend.value()->gather_columns({x.tensor(), columns, out.tensor()});
    expect_same_bits(out, want, "gather_columns");
  }
}

}  // namespace
}  // namespace quire::cpu
