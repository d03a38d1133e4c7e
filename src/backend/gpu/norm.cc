// SPDX-License-Identifier: Apache-2.0
// Norms on a GPU.
#include "kernels/params/norm.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {
namespace {

void check_norm(const Tensor& x, const Tensor& out, int64_t group, const float* weight) {
  QUIRE_CHECK(group > 0 && x.cols % group == 0 && weight != nullptr);
  QUIRE_CHECK(x.rows == out.rows && x.cols == out.cols && x.cols < (int64_t{1} << 31));
  QUIRE_CHECK(x.dtype == out.dtype || x.dtype == DType::kF32 || out.dtype == DType::kF32);
}

NormParams params_of(const Tensor& x, const Tensor& out, int64_t group, float eps) {
  NormParams p = {};
  p.x_stride = x.stride;
  p.out_stride = out.stride;
  p.rows = static_cast<int>(x.rows);
  p.groups = static_cast<int>(x.cols / group);
  p.group = p.weight_size = static_cast<int>(group);
  p.wide = group > kNormNarrow;
  p.eps = eps;
  return p;
}

Grid grid_of(const NormParams& p) {
  const int64_t groups = int64_t{p.rows} * p.groups;
  constexpr int64_t kSimdgroups = kNormThreads / 32;
  QUIRE_CHECK(groups < INT32_MAX);
  return {grid_div(groups, p.wide != 0 ? 1 : kSimdgroups)};
}

}  // namespace

void GpuBackend::rms_norm(const RmsNormArgs& args) {
  check_norm(args.x, args.out, args.group, args.weight);
  if (args.x.rows == 0) return;
  const NormParams p = params_of(args.x, args.out, args.group, args.eps);
  launch({KernelId::kRmsNorm, args.x.dtype, args.out.dtype}, p, {args.out.data, args.x.data, args.weight}, grid_of(p),
         kNormThreads);
}

void GpuBackend::layer_norm(const LayerNormArgs& args) {
  check_norm(args.x, args.out, args.group, args.weight);
  if (args.x.rows == 0) return;
  NormParams p = params_of(args.x, args.out, args.group, args.eps);
  p.biased = args.bias != nullptr;
  launch({KernelId::kLayerNorm, args.x.dtype, args.out.dtype}, p, {args.out.data, args.x.data, args.weight, args.bias},
         grid_of(p), kNormThreads);
}

void GpuBackend::gated_rms_norm(const GatedRmsNormArgs& args) {
  check_norm(args.x, args.out, args.group, args.weight);
  QUIRE_CHECK(args.gate.rows == args.x.rows && args.gate.cols == args.x.cols);
  QUIRE_CHECK(args.x.dtype == args.out.dtype && args.x.dtype == args.gate.dtype);
  QUIRE_CHECK(args.weight_size == args.group || args.weight_size == args.x.cols);
  if (args.x.rows == 0) return;
  NormParams p = params_of(args.x, args.out, args.group, args.eps);
  p.gate_stride = args.gate.stride;
  p.weight_size = static_cast<int>(args.weight_size);
  p.gate_first = args.gate_first;
  launch({KernelId::kGatedRmsNorm, args.x.dtype}, p, {args.out.data, args.x.data, args.gate.data, args.weight},
         grid_of(p), kNormThreads);
}

}  // namespace quire::gpu
