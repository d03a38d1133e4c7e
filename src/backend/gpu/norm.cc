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

// Whether each row is one group that can be read in vectors of four.
bool in_fours(const NormParams& p, const Tensor& x, const Tensor& out) {
  return p.wide != 0 && p.groups == 1 && p.group % 4 == 0 && p.group <= kNormRow && on_16_bytes(x) && on_16_bytes(out);
}

// Hopper's kernel for few rows between two products. With many rows there is enough to do beside each other.
constexpr int64_t kHopperNormRows = 256;

bool fits_norm_row(const GpuBackend& gpu, int64_t rows, int64_t columns) {
  return gpu.hopper() && rows <= kHopperNormRows && columns > kNormNarrow && columns % 4 == 0 &&
         columns <= kHopperNormRow;
}
struct NormRowOperands {
  Tensor residual, out, x;
  const float *post_weight = nullptr, *weight = nullptr;
};
void run_norm_row(GpuBackend& gpu, HopperNormParams p, const NormRowOperands& o, DType type) {
  const int columns = p.row.columns;
  gpu.launch({KernelId::kHopperNormRow, type}, p, {o.residual.data, o.out.data, o.x.data, o.post_weight, o.weight},
             {static_cast<uint32_t>(o.residual.rows)}, static_cast<uint32_t>(hopper_norm_threads(columns)),
             static_cast<uint32_t>(columns) * sizeof(float));
}

// rms_norm from floats to 16 bits.
bool rms_norm_row(GpuBackend& gpu, const RmsNormArgs& args) {
  const Tensor &x = args.x, &out = args.out;
  if (!fits_norm_row(gpu, x.rows, x.cols) || args.group != x.cols || x.dtype != DType::kF32 ||
      out.dtype == DType::kF32 || !on_16_bytes(x) || !on_16_bytes(out) || !on_16_bytes(args.weight)) {
    return false;
  }
  HopperNormParams p = {};
  p.row.residual_stride = x.stride;
  p.row.out_stride = out.stride;
  p.row.columns = static_cast<int>(x.cols);
  p.row.normed_sum = 1;
  p.row.eps = args.eps;
  run_norm_row(gpu, p, {x, out, {}, nullptr, args.weight}, out.dtype);
  return true;
}

}  // namespace

void GpuBackend::rms_norm(const RmsNormArgs& args) {
  check(args);
  if (args.x.rows == 0 || rms_norm_row(*this, args)) return;
  NormParams p = params_of(args.x, args.out, args.group, args.eps);
  p.fours = in_fours(p, args.x, args.out) && on_16_bytes(args.weight);
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
  p.fours = args.gate_first && in_fours(p, args.x, args.out) && on_16_bytes(args.gate) && p.weight_size == p.group;
  launch({KernelId::kGatedRmsNorm, args.x.dtype}, p, {args.out.data, args.x.data, args.gate.data, args.weight},
         grid_of(p), kNormThreads);
}

bool GpuBackend::joins_add_norm(const AddNormArgs& args) const {
  return args.x.dtype != DType::kF32 && args.x.cols % 4 == 0 && args.x.cols <= kAddNormRow && on_16_bytes(args.x) &&
         on_16_bytes(args.residual) && on_16_bytes(args.post_weight) && on_16_bytes(args.weight) &&
         on_16_bytes(args.out);
}

void GpuBackend::add_norm(const AddNormArgs& args) {
  check(args);
  QUIRE_CHECK(joins_add_norm(args));
  if (args.x.rows == 0 || joined_.join_add(args)) return;
  AddNormParams p = {};
  p.x_stride = args.x.stride;
  p.residual_stride = args.residual.stride;
  p.out_stride = args.out.stride;
  p.columns = static_cast<int>(args.x.cols);
  p.normed_x = args.post_weight != nullptr;
  p.normed_sum = args.weight != nullptr;
  p.scale = args.scale;
  p.eps = args.eps;
  if (fits_norm_row(*this, args.x.rows, args.x.cols)) {
    run_norm_row(*this, {p, 1}, {args.residual, args.out, args.x, args.post_weight, args.weight}, args.x.dtype);
    return;
  }
  launch({KernelId::kAddNorm, args.x.dtype}, p,
         {args.residual.data, args.out.data, args.x.data, args.post_weight, args.weight},
         {static_cast<uint32_t>(args.x.rows)}, kNormThreads);
}

}  // namespace quire::gpu
