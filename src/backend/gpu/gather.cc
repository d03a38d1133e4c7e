// SPDX-License-Identifier: Apache-2.0
// Gathers of rows and of columns on a GPU.
#include "kernels/params/gather.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {

void GpuBackend::gather(const GatherArgs& args) {
  check(args);
  if (args.out.rows > 0 && args.out.cols > 0) copy_rows(args.x, args.rows.data(), args.out);
}

void GpuBackend::copy_rows(const Tensor& x, const int32_t* rows, const Tensor& out) {
  GatherRowsParams p = {};
  p.out_stride = out.stride;
  p.in_stride = x.stride;
  p.rows = static_cast<int>(out.rows);
  p.cols = static_cast<int>(out.cols);
  p.threads = 256;
  launch({KernelId::kGatherRows, out.dtype}, p, {out.data, x.data, rows}, {static_cast<uint32_t>(p.rows)},
         static_cast<uint32_t>(p.threads));
}

void GpuBackend::gather_columns(const GatherColumnsArgs& args) {
  check(args);
  const int64_t elements = args.out.rows * args.out.cols;
  if (elements == 0) return;
  GatherColumnsParams p = {};
  p.x_stride = args.x.stride;
  p.out_stride = args.out.stride;
  p.rows = static_cast<int>(args.out.rows);
  p.cols = static_cast<int>(args.out.cols);
  launch({KernelId::kGatherColumns, args.out.dtype}, p, {args.out.data, args.x.data, args.columns.data()},
         element_grid(elements), kElementThreads);
}

}  // namespace quire::gpu
