// SPDX-License-Identifier: Apache-2.0
// gather and gather_columns on a GPU: copies by bits.
#include "backend/gpu/test_device.h"

namespace quire::gpu {
namespace {

TEST(GpuGather, CopiesRowsAndColumnsInAnyOrder) {
  const std::vector<int32_t> rows = {4, 0, 4, 2}, columns = {40, 41, 7, 7, 6, 0, 69};
  for (const DType type : kTypes) {
    HostMatrix x(5, 70, type, 20);
    TestDevice& device = test_device();
    const Tensor on_device = device.put(x), by_row = device.room(4, 70, type), by_column = device.room(5, 7, type);
    device.ops().gather({on_device, {device.put(rows), rows.size()}, by_row});
    device.ops().gather_columns({on_device, {device.put(columns), columns.size()}, by_column});
    const std::vector<float> got = floats_of(device.rows_of(by_row), type);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < 70; ++c) ASSERT_EQ(got[r * 70 + c], x.at(rows[r], static_cast<int64_t>(c)));
    }
    const std::vector<float> cut = floats_of(device.rows_of(by_column), type);
    for (size_t r = 0; r < 5; ++r) {
      for (size_t c = 0; c < columns.size(); ++c) {
        ASSERT_EQ(cut[r * columns.size() + c], x.at(static_cast<int64_t>(r), columns[c]));
      }
    }
    device.clear();
  }
}

}  // namespace
}  // namespace quire::gpu
