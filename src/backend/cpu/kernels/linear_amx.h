// SPDX-License-Identifier: Apache-2.0
// The two halves of linear with AMX: quantised weights, and BF16 ones.
#pragma once

#include "backend/cpu/kernels/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

int64_t bf16_prepared_bytes(const PackedView& w, int64_t rows);
void bf16_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out);
void bf16_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                  int64_t row_end, int64_t panel_begin, int64_t panel_end);

}  // namespace quire::cpu::QUIRE_ISA_NS
