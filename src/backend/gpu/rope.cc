// SPDX-License-Identifier: Apache-2.0
// Rotary position embeddings on a GPU.
#include "kernels/params/rope.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {

void GpuBackend::rope(const RopeArgs& args) {
  check(args);
  QUIRE_CHECK(static_cast<int64_t>(args.positions.size()) == args.x.rows);
  RopeParams p = {};
  p.stride = args.x.stride;
  p.rows = static_cast<int>(args.x.rows);
  p.heads = static_cast<int>(args.x.cols / args.head_dim);
  p.head_dim = static_cast<int>(args.head_dim);
  p.half_dim = static_cast<int>(args.rot_dim / 2);
  p.offset = static_cast<int>(args.offset);
  p.interleaved = args.interleaved;
  const bool in_place = args.into.data == nullptr;
  const Tensor& out = in_place ? args.x : args.into;
  p.out_stride = out.stride;
  p.out_head = static_cast<int>(in_place ? args.head_dim : args.into_head_dim);
  p.out_offset = static_cast<int>(in_place ? args.offset : args.into_head_dim - args.rot_dim);
  const int64_t pairs = args.x.rows * p.heads * p.half_dim;
  if (pairs == 0) return;
  launch({KernelId::kRope, args.x.dtype}, p,
         {out.data, args.x.data, args.cos_table, args.sin_table, args.positions.data()}, element_grid(pairs),
         kElementThreads);
}

}  // namespace quire::gpu
