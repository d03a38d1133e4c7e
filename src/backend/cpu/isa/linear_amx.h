// SPDX-License-Identifier: Apache-2.0
// linear of BF16 weights, which linear_amx.cc leaves to linear_amx_bf16.cc.
#pragma once

#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

int64_t rounded_bytes(const PackedView& w, int64_t rows);
void rounded_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out);
void rounded_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                     int64_t row_end, int64_t panel_begin, int64_t panel_end);
bool rounded_gated(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                   int64_t row_end, int64_t panel_begin, int64_t panel_end);

}  // namespace quire::cpu::QUIRE_ISA_NS
