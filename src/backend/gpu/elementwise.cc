// SPDX-License-Identifier: Apache-2.0
// Activations, residual additions, scaling, rotation and gathers on a GPU.
#include <algorithm>
#include <string>

#include "backend/gpu/gpu_backend.h"
#include "kernels/params/copy.h"
#include "kernels/params/elementwise.h"

namespace quire::gpu {
namespace {

std::string named(const char* op, DType type) {
  return std::string(op) + "_" + spelling(type);
}
std::string named(const char* op, DType first, DType second) {
  return named(op, first) + "_" + spelling(second);
}

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

Grid grid_of(int64_t threads) {
  QUIRE_CHECK(threads < INT32_MAX - kElementThreads);
  return {static_cast<uint32_t>((threads + kElementThreads - 1) / kElementThreads)};
}
Grid grid_of(const RowsParams& p) {
  return grid_of(int64_t{p.rows} * p.fours);
}

}  // namespace

void GpuBackend::glu(const GluArgs& args) {
  check(args);
  RowsParams p = params_of({&args.gate, &args.up}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.activation = static_cast<int>(args.activation);
  p.factor = args.limit;
  launch(named("glu", args.out.dtype).c_str(), p, {args.out.data, args.gate.data, args.up.data}, grid_of(p),
         kElementThreads);
}

void GpuBackend::activation(const ActivationArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.activation = static_cast<int>(args.activation);
  launch(named("activation", args.out.dtype).c_str(), p, {args.out.data, args.x.data}, grid_of(p), kElementThreads);
}

void GpuBackend::residual_add(const ResidualAddArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x, &args.residual}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.factor = args.scale;
  launch(named("residual_add", args.x.dtype, args.out.dtype).c_str(), p,
         {args.out.data, args.x.data, args.residual.data}, grid_of(p), kElementThreads);
}

void GpuBackend::scale(const ScaleArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.factor = args.factor;
  p.by_row = !args.rows.empty();
  launch(named("scale", args.x.dtype, args.out.dtype).c_str(), p, {args.out.data, args.x.data, args.rows.data()},
         grid_of(p), kElementThreads);
}

void GpuBackend::soft_cap(const SoftCapArgs& args) {
  check(args);
  RowsParams p = params_of({&args.x}, args.out);
  if (p.rows == 0 || p.cols == 0) return;
  p.factor = args.cap;
  launch(named("soft_cap", args.out.dtype).c_str(), p, {args.out.data, args.x.data}, grid_of(p), kElementThreads);
}

void GpuBackend::rope(const RopeArgs& args) {
  check(args);
  RopeParams p = {};
  p.stride = args.x.stride;
  p.rows = static_cast<int>(args.x.rows);
  p.heads = static_cast<int>(args.x.cols / args.head_dim);
  p.head_dim = static_cast<int>(args.head_dim);
  p.half_dim = static_cast<int>(args.rot_dim / 2);
  p.offset = static_cast<int>(args.offset);
  p.interleaved = args.interleaved;
  const int64_t pairs = args.x.rows * p.heads * p.half_dim;
  if (pairs == 0) return;
  launch(named("rope", args.x.dtype).c_str(), p, {args.x.data, args.cos_table, args.sin_table, args.positions.data()},
         grid_of(pairs), kElementThreads);
}

void GpuBackend::gather(const GatherArgs& args) {
  check(args);
  if (args.out.rows == 0 || args.out.cols == 0) return;
  GatherRowsParams p = {};
  p.out_stride = args.out.stride;
  p.in_stride = args.x.stride;
  p.rows = static_cast<int>(args.out.rows);
  p.cols = static_cast<int>(args.out.cols);
  p.threads = 256;
  launch(named("gather_rows", args.out.dtype).c_str(), p, {args.out.data, args.x.data, args.rows.data()},
         {static_cast<uint32_t>(p.rows)}, static_cast<uint32_t>(p.threads));
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
  launch(named("gather_columns", args.out.dtype).c_str(), p, {args.out.data, args.x.data, args.columns.data()},
         grid_of(elements), kElementThreads);
}

}  // namespace quire::gpu
