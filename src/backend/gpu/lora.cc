// SPDX-License-Identifier: Apache-2.0
// lora on a GPU, one launch for each product. The grid covers all rows of the step, because what the lists of rows hold
// is only known on the device: a recorded step runs again with other adapters.
#include "kernels/params/lora.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {
namespace {

static_assert(sizeof(LoraSliceParams) == sizeof(LoraSlice) && offsetof(LoraSliceParams, b) == offsetof(LoraSlice, b) &&
              offsetof(LoraSliceParams, rank) == offsetof(LoraSlice, rank));
static_assert(sizeof(LoraSiteParams) == sizeof(LoraSite) &&
              offsetof(LoraSiteParams, slices) == offsetof(LoraSite, slices) &&
              offsetof(LoraSiteParams, num_slices) == offsetof(LoraSite, num_slices));
static_assert(int64_t{kLoraGroup} == kLoraAlign && int{kLoraTile} <= int{kLoraParts});

}  // namespace

void GpuBackend::lora(const LoraArgs& args) {
  check(args);
  if (args.out.rows == 0 || args.out.cols == 0) return;
  QUIRE_CHECK(!args.tokens.empty() || args.x.dtype == args.memory.dtype, "activations and adapters have one type");
  LoraParams p = {};
  p.slot_bytes = args.memory.slot_bytes;
  p.first = static_cast<int>(args.rows.first);
  p.rows = static_cast<int>(args.out.rows);
  p.listed = static_cast<int>(args.rows.rows.size());
  p.site = static_cast<int>(args.site);
  p.x_stride = args.x.stride;
  p.t_stride = args.t.stride;
  p.out_stride = args.out.stride;
  p.k = static_cast<int>(args.x.cols);
  p.from_tokens = args.tokens.empty() ? 0 : 1;
  p.cols = static_cast<int>(args.out.cols);
  const uint32_t tiles = grid_div(p.listed, kLoraTile);
  launch(
      {KernelId::kLoraShrink, args.memory.dtype}, p,
      {args.t.data, args.x.data, args.tokens.data(), args.memory.data, args.rows.rows.data(), args.rows.slots.data()},
      {tiles, grid_div(args.t.cols, kLoraGroup)}, kLoraShrinkThreads);
  launch({KernelId::kLoraExpand, args.memory.dtype, args.out.dtype}, p,
         {args.out.data, args.t.data, args.memory.data, args.rows.rows.data(), args.rows.slots.data()},
         {tiles, grid_div(args.out.cols, kLoraThreads)}, kLoraThreads);
}

}  // namespace quire::gpu
