// SPDX-License-Identifier: Apache-2.0
// Helpers of the kernel tests: run a record under a lane order, and vectors of the dialect's storage types.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "backend/emulator/emulator.h"
#include "kernels/compat/dialect.h"

namespace quire::kernels {

inline constexpr int kOrders[] = {0, 1, 2, 7};

// Runs `record` over a grid of `groups`; the message of the fault, or nothing.
template <typename Params>
std::string run_kernel(const emulator::KernelRecord& record, std::array<uint32_t, 3> grid, uint32_t threads,
                       const Params& params, std::vector<void*> buffers, int order) {
  emulator::Emulator emulator({.order = order, .workers = 2});
  EXPECT_EQ(record.params_bytes, sizeof(Params));
  EXPECT_EQ(record.buffers, static_cast<int>(buffers.size()));
  const Status status = emulator.run(record, grid, threads, &params, buffers.data());
  return status.ok() ? "" : status.error().message;
}

template <typename T>
std::vector<T> random_values(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(count);
  for (T& value : values) value = to<T>(normal(generator));
  return values;
}

}  // namespace quire::kernels
