// SPDX-License-Identifier: Apache-2.0
// The kernel table of one ISA level.
#include "backend/cpu/kernels/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

const CpuKernels kTable = {
    .rms_norm = nullptr,
    .layer_norm = nullptr,
    .rope = nullptr,
    .glu = nullptr,
    .activation = nullptr,
    .residual_add = nullptr,
    .reshape_and_cache = nullptr,
    .embedding = embedding,
    .attention = {.run = nullptr, .merge = nullptr},
    .linear = {.quantise = linear_quantise,
               .quantised = linear_quantised,
               .plain = linear_plain,
               .dequantised = linear_dequantised},
};

}  // namespace quire::cpu::QUIRE_ISA_NS
