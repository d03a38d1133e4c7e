// SPDX-License-Identifier: Apache-2.0
// Arithmetic of grids and blocks: rounding up, and the alignment that kernels' vector loads need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/device.h"
#include "base/check.h"
#include "base/math.h"
#include "kernels/params/elementwise.h"
#include "ops/tensor.h"

namespace quire::gpu {

inline constexpr size_t kBlockAlignment = 256;  // bytes; what every driver's allocations have

constexpr size_t aligned(size_t bytes) {
  return round_up(bytes, kBlockAlignment);
}
// n / by rounded up, in the 32 bits of a grid's sizes.
constexpr uint32_t grid_div(int64_t n, int64_t by) {
  return static_cast<uint32_t>(ceil_div(n, by));
}
// The grid of a kernel with one thread per item, which counts them in 32 bits.
inline Grid element_grid(int64_t items) {
  QUIRE_CHECK(items < INT32_MAX - kElementThreads);
  return {grid_div(items, kElementThreads)};
}

inline bool on_16_bytes(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}
// Whether every row begins on 16 bytes.
inline bool on_16_bytes(const Tensor& t) {
  return on_16_bytes(t.data) && t.stride * info(t.dtype).block_bytes % 16 == 0;
}

}  // namespace quire::gpu
