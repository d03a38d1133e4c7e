// SPDX-License-Identifier: Apache-2.0
// The quantised linear of one ISA level.
#include "backend/cpu/kernels/linear_portable.h"

namespace quire::cpu::QUIRE_ISA_NS {

void linear_quantised(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                      int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  (void)scratch;
  QUIRE_DISPATCH_QUANT(w.dtype, quantised_panels, x, w, args, row_begin, row_end, panel_begin, panel_end)
}

}  // namespace quire::cpu::QUIRE_ISA_NS
