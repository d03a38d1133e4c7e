// SPDX-License-Identifier: Apache-2.0
// CpuKernels: the table of single-threaded kernels of one ISA level; every isa/*.cc is compiled once per level.
#pragma once

#include "backend/cpu/isa_level.h"
#include "backend/cpu/packed.h"
#include "ops/op_list.h"

namespace quire::cpu {

struct AttentionItem;   // attention_plan.h
struct AttentionMerge;  // attention_plan.h
struct LoraBlock;       // lora_plan.h
struct StateItem;       // recurrent_layout.h

// Each kernel computes a slice [begin, end) of the outputs of an op on one thread. The backend checks the arguments and
// splits the work over threads.
struct CpuKernels {
  // A range of rows of each op of QUIRE_ROW_OPS.
#define QUIRE_ROW_KERNEL(name, Args, ...) void (*name)(const Args&, int64_t row_begin, int64_t row_end);
  QUIRE_ROW_OPS(QUIRE_ROW_KERNEL)
#undef QUIRE_ROW_KERNEL
  void (*embedding)(const PackedView& table, const EmbeddingArgs&, int64_t row_begin, int64_t row_end);
  // Adds these chunks of a row of n floats to its digest.
  void (*row_digest)(const float* row, int64_t n, int64_t chunk_begin, int64_t chunk_end, RowDigestSums& sums);

  // Recurrent layers: recurrent_layout.h says what an item is and how much scratch it needs.
  void (*gated_delta_net)(const GatedDeltaNetArgs&, const StateItem&, float* scratch);
  void (*mamba2)(const Mamba2Args&, const StateItem&, float* scratch);
  void (*short_conv)(const ShortConvArgs&, int64_t channel_begin, int64_t channel_end, float* scratch);

  // Mixture of experts: the softmax of n floats (out may be x); the sum of rows of y, each times its weight.
  void (*moe_softmax)(const float* x, int64_t n, float* out);
  void (*moe_sum)(const Tensor& y, const int32_t* rows, const float* weights, int64_t k, float* out);

  // Adapters: lora_plan.h says what a block is. Sixteen elements of t, or sixteen columns of a slice, are a panel.
  void (*lora_shrink)(const LoraArgs&, const LoraBlock&, int64_t panel_begin, int64_t panel_end);
  void (*lora_expand)(const LoraArgs&, const LoraBlock&, const LoraSlice&, int64_t panel_begin, int64_t panel_end);

  // Attention: attention_plan.h says what an item is.
  struct AttentionKernels {
    void (*run)(const AttentionArgs&, const AttentionItem&, float* scratch);
    void (*merge)(const AttentionArgs&, const AttentionMerge&);
    int64_t most_rows;  // per item, if pages_for_tiles(); otherwise kAttentionRows
  } attention;

  // Linear: packed.h describes the layouts. `prepare` quantises or rounds rows of x and `product` multiplies the
  // prepared rows; `plain` and `dequantised` take float rows. The last three compute rows [row_begin, row_end) of
  // panels [panel_begin, panel_end). REQUIRES: row_begin is a multiple of kRowTile, and so is row_end unless it is the
  // end of x; panel_begin is even; `scratch` has linear_scratch_bytes(K) bytes and is aligned to 64. `gated`, where a
  // level has it, computes panels of args.gated's output, or returns false if `product` must serve.
  struct LinearKernels {
    Packings packings;  // of the weights that `product` takes
    int64_t (*prepared_bytes)(const PackedView& w, int64_t rows);
    void (*prepare)(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out);
    void (*product)(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
    bool (*gated)(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                  int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
    void (*plain)(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end);
    void (*dequantised)(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, void* scratch);
  } linear;
};

// Room for two unpacked panels.
constexpr int64_t linear_scratch_bytes(int64_t k) {
  return 2 * (k / kBlock + 1) * kReadyBlockBytes;
}

// The table of a level. REQUIRES: the level is available.
const CpuKernels& kernels(Isa isa);

}  // namespace quire::cpu
