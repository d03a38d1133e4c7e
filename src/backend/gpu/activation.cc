// SPDX-License-Identifier: Apache-2.0
// Activations, residual additions, scaling and soft caps on a GPU.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "kernels/params/activation.h"

namespace quire::gpu {
namespace {

bool in_fours(const Tensor& t) {
  return t.stride % 4 == 0 && t.cols % 4 == 0 &&
         reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(4 * info(t.dtype).block_bytes) == 0;
}

RowsParams params_of(std::initializer_list<const Tensor*> inputs, const Tensor& out) {
  RowsParams p = {};
  p.rows = static_cast<int>(out.rows);
  p.cols = static_cast<int>(out.cols);
  p.fours = (p.cols + 3) / 4;
  p.out_stride = out.stride;
  bool aligned = in_fours(out);
  i64* strides[] = {&p.a_stride, &p.b_stride};
  size_t next = 0;
  for (const Tensor* input : inputs) {
    *strides[next++] = input->stride;
    aligned = aligned && in_fours(*input);
  }
  p.aligned = aligned;
  return p;
}

Grid grid_of(const RowsParams& p) {
  return element_grid(int64_t{p.rows} * p.fours);
}

}  // namespace

void GpuBackend::glu(const GluArgs& args) {
  check(args);
  RowsParams p = params_of({&args.gate, &args.up}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.activation = static_cast<int>(args.activation);
  p.factor = args.limit;
  launch({KernelId::kGlu, args.out.dtype}, p, {args.out.data, args.gate.data, args.up.data}, grid_of(p),
         kElementThreads);
}

void GpuBackend::activation(const ActivationArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.activation = static_cast<int>(args.activation);
  launch({KernelId::kActivation, args.out.dtype}, p, {args.out.data, args.x.data}, grid_of(p), kElementThreads);
}

void GpuBackend::residual_add(const ResidualAddArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x, &args.residual}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.factor = args.scale;
  launch({KernelId::kResidualAdd, args.x.dtype, args.out.dtype}, p, {args.out.data, args.x.data, args.residual.data},
         grid_of(p), kElementThreads);
}

void GpuBackend::scale(const ScaleArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.factor = args.factor;
  p.by_row = !args.rows.empty();
  launch({KernelId::kScale, args.x.dtype, args.out.dtype}, p, {args.out.data, args.x.data, args.rows.data()},
         grid_of(p), kElementThreads);
}

void GpuBackend::soft_cap(const SoftCapArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.factor = args.cap;
  launch({KernelId::kSoftCap, args.out.dtype}, p, {args.out.data, args.x.data}, grid_of(p), kElementThreads);
}

}  // namespace quire::gpu
