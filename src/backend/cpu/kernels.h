// SPDX-License-Identifier: Apache-2.0
// CpuKernels: the table of single-threaded kernels of one ISA level; every kernels/*.cc is compiled once a level.
#pragma once

#include "backend/cpu/isa.h"
#include "backend/cpu/packed.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace quire::cpu {

// Each kernel does a slice [begin, end) of an op's outputs; the backend splits the work over threads. A null `scratch`
// is fine where a kernel needs none.
struct CpuKernels {
  // Rows.
  void (*rms_norm)(const RmsNormArgs&, int64_t row_begin, int64_t row_end);
  void (*layer_norm)(const LayerNormArgs&, int64_t row_begin, int64_t row_end);
  void (*rope)(const RopeArgs&, int64_t row_begin, int64_t row_end);
  void (*glu)(const GluArgs&, int64_t row_begin, int64_t row_end);
  void (*activation)(const ActivationArgs&, int64_t row_begin, int64_t row_end);
  void (*residual_add)(const ResidualAddArgs&, int64_t row_begin, int64_t row_end);
  void (*embedding)(const EmbeddingArgs&, int64_t row_begin, int64_t row_end);
  void (*reshape_and_cache)(const ReshapeAndCacheArgs&, int64_t row_begin, int64_t row_end);

  // Attention: see attention_plan.h for what a work item is.
  struct AttentionKernels {
    void (*run)(const AttentionArgs&, const struct AttentionItem&, float* scratch);
    void (*merge)(const AttentionArgs&, const struct AttentionMerge&);
  } attention;

  // Linear: see packed.h for layouts.
  struct LinearKernels {
    void (*quantise)(const Tensor& x, int64_t row_begin, int64_t row_end, const QuantisedRows& out);
    void (*quantised)(const QuantisedRows& x, const PackedQuant& w, const LinearArgs& args, int64_t panel_begin,
                      int64_t panel_end, void* scratch);
    void (*plain)(const PackedPlain& w, const LinearArgs& args, int64_t panel_begin, int64_t panel_end, void* scratch);
    void (*dequantised)(const PackedQuant& w, const LinearArgs& args, int64_t panel_begin, int64_t panel_end,
                        void* scratch);
  } linear;
};

// The table of a level; the level must be available.
const CpuKernels& kernels(Isa isa);

}  // namespace quire::cpu
