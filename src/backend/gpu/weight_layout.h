// SPDX-License-Identifier: Apache-2.0
// The layout of weights in a GPU's memory (kernels/params/linear.h): sizes, parameters for kernels, and the packing on
// the host.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "backend/gpu/device.h"
#include "backend/raw_matrix.h"
#include "base/check.h"
#include "kernels/params/linear.h"
#include "ops/linear.h"

namespace quire::gpu {

// A weight in device memory. Plain types: rows of k elements, back to back where k is a multiple of 16 bytes.
class GpuMatrix final : public PackedMatrix {
 public:
  GpuMatrix(DType dtype, int64_t n, int64_t k) : PackedMatrix(dtype, n, k) {}
  size_t bytes() const override { return bytes_; }

  void* data = nullptr;
  int64_t group = 0;               // elements per scale, of G4, G8 and GF8
  DType activation = DType::kF32;  // the type of the activations that it was packed for
  size_t bytes_ = 0;
  std::shared_ptr<Memory> memory;  // owns `data`; the experts of a layer share one block
  // G4: WeightParams::zero_points, of all experts of a layer.
  std::shared_ptr<std::atomic<bool>> zero_points;
};
inline const GpuMatrix& gpu_matrix(const PackedMatrix* weight) {
  QUIRE_CHECK(weight != nullptr);
  return static_cast<const GpuMatrix&>(*weight);
}

inline constexpr int64_t kPanelRows = 16;  // of a quantised weight

// A weight as kernels see it.
WeightParams weight_params(const GpuMatrix& weight);
// Bytes of one row's head in a panel, and how many steps share it.
struct WeightHead {
  int bytes;
  int steps;
};
WeightHead head_of(const WeightParams& w);
// Its size in bytes.
int64_t weight_bytes(const WeightParams& w);

// Packs panel `panel` (16 rows) of a quantised weight. Returns whether all of its groups have what
// WeightParams::zero_points says. REQUIRES: `to` is zeroed.
bool pack_panel(std::span<const RawMatrix> parts, const WeightParams& w, int64_t panel, uint8_t* to);

}  // namespace quire::gpu
