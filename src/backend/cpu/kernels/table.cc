// SPDX-License-Identifier: Apache-2.0
// The kernel table of one ISA level.
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/kernels/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

const CpuKernels kTable = {
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rope = rope,
    .glu = glu,
    .activation = activation,
    .residual_add = residual_add,
    .reshape_and_cache = reshape_and_cache,
    .embedding = embedding,
    .moe_softmax = moe_softmax,
    .moe_sum = moe_sum,
    .attention = {.run = attention_run, .merge = attention_merge, .most_rows = kAttentionRows},
    .linear = {.packings = {},
               .prepared_bytes = linear_quantised_bytes,
               .prepare = linear_quantise,
               .product = linear_product,
               .plain = linear_plain,
               .dequantised = linear_dequantised},
};

}  // namespace quire::cpu::QUIRE_ISA_NS
