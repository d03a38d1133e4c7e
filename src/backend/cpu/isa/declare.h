// SPDX-License-Identifier: Apache-2.0
// What one ISA level defines: every isa/*.cc is compiled once per level with QUIRE_ISA_NS as its namespace.
//
// Rule for these sources: code that two levels share by name would be merged by the linker, and the machine might then
// run the wrong one. So everything here is in the level's namespace, static, or forced inline; no std containers.
#pragma once

#include "backend/cpu/cpu_kernels.h"

namespace quire::cpu::QUIRE_ISA_NS {

void rms_norm(const RmsNormArgs&, int64_t row_begin, int64_t row_end);
void layer_norm(const LayerNormArgs&, int64_t row_begin, int64_t row_end);
void rope(const RopeArgs&, int64_t row_begin, int64_t row_end);
void glu(const GluArgs&, int64_t row_begin, int64_t row_end);
void activation(const ActivationArgs&, int64_t row_begin, int64_t row_end);
void residual_add(const ResidualAddArgs&, int64_t row_begin, int64_t row_end);
void scale(const ScaleArgs&, int64_t row_begin, int64_t row_end);
void soft_cap(const SoftCapArgs&, int64_t row_begin, int64_t row_end);
void gated_rms_norm(const GatedRmsNormArgs&, int64_t row_begin, int64_t row_end);
void reshape_and_cache(const ReshapeAndCacheArgs&, int64_t row_begin, int64_t row_end);
void embedding(const PackedView& table, const EmbeddingArgs&, int64_t row_begin, int64_t row_end);
void moe_softmax(const float* x, int64_t n, float* out);
void moe_sum(const Tensor& y, const int32_t* rows, const float* weights, int64_t k, float* out);
void gated_delta_net(const GatedDeltaNetArgs&, const StateItem&, float* scratch);
void mamba2(const Mamba2Args&, const StateItem&, float* scratch);
void short_conv(const ShortConvArgs&, int64_t channel_begin, int64_t channel_end, float* scratch);
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
