// SPDX-License-Identifier: Apache-2.0
// The linear of one ISA level with quantised activations.
#if defined(QUIRE_ISA_avx512)
#include "backend/cpu/isa/linear_avx512.h"
#else
#if defined(__AVX2__)
#include "backend/cpu/isa/linear_dots_avx2.h"
#elif defined(__aarch64__)
#include "backend/cpu/isa/linear_dots_neon.h"
#else
#include "backend/cpu/isa/linear_dots_portable.h"
#endif
#include "backend/cpu/isa/linear_dots.h"
#endif

namespace quire::cpu::QUIRE_ISA_NS {

void linear_product(const PreparedRows& rows, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  (void)scratch;
  const QuantisedRows x = quantised_rows(rows, w);
  QUIRE_DISPATCH_QUANT(w.dtype, quantised_panels, x, w, args, row_begin, row_end, panel_begin, panel_end)
}

}  // namespace quire::cpu::QUIRE_ISA_NS
