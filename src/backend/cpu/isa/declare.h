// SPDX-License-Identifier: Apache-2.0
// What one ISA level defines: every isa/*.cc is compiled once per level with QUIRE_ISA_NS as its namespace.
//
// Rule for these sources: the linker merges functions that two levels define under the same name, and the machine might
// then run the wrong one. So everything here is in the level's namespace, static or always inlined; no std containers.
// check_level_symbols.cmake tests it.
#pragma once

#include "backend/cpu/cpu_kernels.h"

namespace quire::cpu::QUIRE_ISA_NS {

#define QUIRE_ROW_KERNEL(name, Args, ...) void name(const Args&, int64_t row_begin, int64_t row_end);
QUIRE_ROW_OPS(QUIRE_ROW_KERNEL)
#undef QUIRE_ROW_KERNEL
void embedding(const PackedView& table, const EmbeddingArgs&, int64_t row_begin, int64_t row_end);
void row_digest(const float* row, int64_t n, int64_t chunk_begin, int64_t chunk_end, RowDigestSums& sums);
void moe_softmax(const float* x, int64_t n, float* out);
void moe_sum(const Tensor& y, const int32_t* rows, const float* weights, int64_t k, float* out);
void gated_delta_net(const GatedDeltaNetArgs&, const StateItem&, float* scratch);
void mamba2(const Mamba2Args&, const StateItem&, float* scratch);
void short_conv(const ShortConvArgs&, int64_t channel_begin, int64_t channel_end, float* scratch);
void lora_shrink(const LoraArgs&, const LoraBlock&, int64_t panel_begin, int64_t panel_end);
void lora_expand(const LoraArgs&, const LoraBlock&, const LoraSlice&, int64_t panel_begin, int64_t panel_end);
void attention_run(const AttentionArgs&, const AttentionItem&, float* scratch);
void attention_merge(const AttentionArgs&, const AttentionMerge&);

int64_t linear_quantised_bytes(const PackedView& w, int64_t rows);
void linear_quantise(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out);
void linear_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
void linear_plain(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end);
void linear_dequantised(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, void* scratch);

extern const CpuKernels kTable;

}  // namespace quire::cpu::QUIRE_ISA_NS
