// SPDX-License-Identifier: Apache-2.0
// CpuKernels: the table of single-threaded kernels of one ISA level; every isa/*.cc is compiled once per level.
#pragma once

#include "backend/cpu/isa_level.h"
#include "backend/cpu/packed.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "ops/recurrent.h"
#include "ops/rope.h"

namespace quire::cpu {

struct AttentionItem;   // attention_plan.h
struct AttentionMerge;  // attention_plan.h
struct StateItem;       // recurrent_layout.h

// Each kernel does a slice [begin, end) of an op's outputs; the backend checks shapes and splits work over threads.
struct CpuKernels {
  // Rows.
  void (*rms_norm)(const RmsNormArgs&, int64_t row_begin, int64_t row_end);
  void (*layer_norm)(const LayerNormArgs&, int64_t row_begin, int64_t row_end);
  void (*rope)(const RopeArgs&, int64_t row_begin, int64_t row_end);
  void (*glu)(const GluArgs&, int64_t row_begin, int64_t row_end);
  void (*activation)(const ActivationArgs&, int64_t row_begin, int64_t row_end);
  void (*residual_add)(const ResidualAddArgs&, int64_t row_begin, int64_t row_end);
  void (*scale)(const ScaleArgs&, int64_t row_begin, int64_t row_end);
  void (*soft_cap)(const SoftCapArgs&, int64_t row_begin, int64_t row_end);
  void (*gated_rms_norm)(const GatedRmsNormArgs&, int64_t row_begin, int64_t row_end);
  void (*reshape_and_cache)(const ReshapeAndCacheArgs&, int64_t row_begin, int64_t row_end);
  void (*embedding)(const PackedView& table, const EmbeddingArgs&, int64_t row_begin, int64_t row_end);

  // Recurrent layers: see recurrent_layout.h for what an item is, and how much scratch it needs.
  void (*gated_delta_net)(const GatedDeltaNetArgs&, const StateItem&, float* scratch);
  void (*mamba2)(const Mamba2Args&, const StateItem&, float* scratch);
  void (*short_conv)(const ShortConvArgs&, int64_t channel_begin, int64_t channel_end, float* scratch);

  // Mixture of experts: out may be x; rows of y, each times its weight.
  void (*moe_softmax)(const float* x, int64_t n, float* out);
  void (*moe_sum)(const Tensor& y, const int32_t* rows, const float* weights, int64_t k, float* out);

  // Attention: see attention_plan.h for what a work item is.
  struct AttentionKernels {
    void (*run)(const AttentionArgs&, const AttentionItem&, float* scratch);
    void (*merge)(const AttentionArgs&, const AttentionMerge&);
    int64_t most_rows;  // of an item, where pages hold BF16; else kAttentionRows
  } attention;

  // Linear: see packed.h for layouts. `prepare` makes rows of x ready (quantised, or rounded) and `product` multiplies
  // them; `plain` and `dequantised` take float rows as they are. The last three compute rows [row_begin, row_end) of
  // panels [panel_begin, panel_end). row_begin is a multiple of kRowTile, as row_end is before the last row,
  // panel_begin is even, and `scratch` has linear_scratch_bytes(K), aligned to 64.
  struct LinearKernels {
    Packings packings;  // of what `product` takes
    int64_t (*prepared_bytes)(const PackedView& w, int64_t rows);
    void (*prepare)(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out);
    void (*product)(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
    void (*plain)(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end);
    void (*dequantised)(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, void* scratch);
  } linear;
};

// Room for two panels unpacked.
constexpr int64_t linear_scratch_bytes(int64_t k) {
  return 2 * (k / kBlock + 1) * kReadyBlockBytes;
}

// The table of a level; the level must be available.
const CpuKernels& kernels(Isa isa);

}  // namespace quire::cpu
