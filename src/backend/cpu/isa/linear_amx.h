// SPDX-License-Identifier: Apache-2.0
// linear in the rounded form: BF16 weights of the level amx, and all that are packed in rows of the level amx_bf16.
#pragma once

#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

int64_t rounded_bytes(const PackedView& w, int64_t rows);
void rounded_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out);
void rounded_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                     int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);

}  // namespace quire::cpu::QUIRE_ISA_NS
