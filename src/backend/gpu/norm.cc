// SPDX-License-Identifier: Apache-2.0
// Norms on a GPU.
#include "kernels/params/norm.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {
namespace {

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
  check(args);
  if (args.x.rows == 0) return;
  const NormParams p = params_of(args.x, args.out, args.group, args.eps);
  launch({KernelId::kRmsNorm, args.x.dtype, args.out.dtype}, p, {args.out.data, args.x.data, args.weight}, grid_of(p),
         kNormThreads);
}

void GpuBackend::layer_norm(const LayerNormArgs& args) {
  check(args);
  if (args.x.rows == 0) return;
  NormParams p = params_of(args.x, args.out, args.group, args.eps);
  p.biased = args.bias != nullptr;
  launch({KernelId::kLayerNorm, args.x.dtype, args.out.dtype}, p, {args.out.data, args.x.data, args.weight, args.bias},
         grid_of(p), kNormThreads);
}

void GpuBackend::gated_rms_norm(const GatedRmsNormArgs& args) {
  check(args);
  if (args.x.rows == 0) return;
  NormParams p = params_of(args.x, args.out, args.group, args.eps);
  p.gate_stride = args.gate.stride;
  p.weight_size = static_cast<int>(args.weight_size);
  p.gate_first = args.gate_first;
  launch({KernelId::kGatedRmsNorm, args.x.dtype}, p, {args.out.data, args.x.data, args.gate.data, args.weight},
         grid_of(p), kNormThreads);
}

}  // namespace quire::gpu
