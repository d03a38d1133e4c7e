// SPDX-License-Identifier: Apache-2.0
// The kernel table of one ISA level.
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

const CpuKernels kTable = {
#define QUIRE_ROW_KERNEL(name, ...) .name = name,
    QUIRE_ROW_OPS(QUIRE_ROW_KERNEL)
#undef QUIRE_ROW_KERNEL
        .embedding = embedding,
    .row_digest = row_digest,
    .gated_delta_net = gated_delta_net,
    .mamba2 = mamba2,
    .short_conv = short_conv,
    .moe_softmax = moe_softmax,
    .moe_sum = moe_sum,
    .lora_shrink = lora_shrink,
    .lora_expand = lora_expand,
    .attention = {.run = attention_run, .merge = attention_merge, .most_rows = kAttentionRows},
    .linear = {.packings = {},
               .prepared_bytes = linear_quantised_bytes,
               .prepare = linear_quantise,
               .product = linear_product,
               .gated = nullptr,
               .plain = linear_plain,
               .dequantised = linear_dequantised},
};

}  // namespace quire::cpu::QUIRE_ISA_NS
