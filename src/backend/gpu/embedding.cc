// SPDX-License-Identifier: Apache-2.0
// Embedding on a GPU: rows of a weight, dequantised.
#include "kernels/params/embedding.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/weight_layout.h"

namespace quire::gpu {
namespace {

EmbeddingParams params_of(const GpuMatrix& table, const Tensor& out, float scale) {
  EmbeddingParams p = {};
  p.weight = weight_params(table);
  p.out_stride = out.stride;
  p.scale = scale;
  p.fours = table.k() % 16 == 0 && on_16_bytes(out);
  return p;
}

Grid grid_of(const GpuMatrix& table, const Tensor& out) {
  return {static_cast<uint32_t>(out.rows), grid_div(table.k(), 16 * kEmbeddingThreads)};
}

}  // namespace

void GpuBackend::embedding(const EmbeddingArgs& args) {
  const GpuMatrix& table = gpu_matrix(args.table);
  check(args);
  if (args.out.rows == 0 || joined_.join_embedding(args)) return;
  EmbeddingParams p = params_of(table, args.out, args.scale);
  p.from_tokens = 1;
  launch({KernelId::kEmbedding, args.out.dtype}, p, {args.out.data, table.data, args.tokens.data()},
         grid_of(table, args.out), kEmbeddingThreads);
}

void GpuBackend::dequantise_rows(const GpuMatrix& weight, int64_t first, const Tensor& out) {
  EmbeddingParams p = params_of(weight, out, 1.0f);
  p.first_row = static_cast<int>(first);
  p.rows = static_cast<int>(out.rows);
  if (is_quantised(weight.dtype()) && out.dtype != DType::kF32 && first % kPanelRows == 0 && weight.k() % 8 == 0 &&
      on_16_bytes(out)) {
    return launch({KernelId::kExpandPanels, out.dtype}, p, {out.data, weight.data},
                  {grid_div(out.rows, kPanelRows), grid_div(weight.k(), kExpandColumns)}, kEmbeddingThreads);
  }
  launch({KernelId::kEmbedding, out.dtype}, p, {out.data, weight.data, nullptr}, grid_of(weight, out),
         kEmbeddingThreads);
}

}  // namespace quire::gpu
