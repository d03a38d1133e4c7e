// SPDX-License-Identifier: Apache-2.0
// How weights lie in a GPU's memory (kernels/params/linear.h): sizes, parameters for kernels, and the packing on the
// host.
#pragma once

#include <span>

#include "backend/gpu/gpu_backend.h"
#include "backend/raw_matrix.h"
#include "kernels/params/linear.h"

namespace quire::gpu {

inline constexpr int64_t kPanelRows = 16;  // of a quantised weight

// A weight of this shape as kernels see it. `group`: of G4 and G8.
WeightParams weight_params(DType type, int64_t n, int64_t k, int64_t group);
inline WeightParams weight_params(const GpuMatrix& w) {
  return weight_params(w.dtype(), w.n(), w.k(), w.group);
}
// All of its bytes.
int64_t weight_bytes(const WeightParams& w);

// Panel `panel` (16 rows) of a quantised weight; `to` is zero before.
void pack_panel(std::span<const RawMatrix> parts, const WeightParams& w, int64_t panel, uint8_t* to);

}  // namespace quire::gpu
