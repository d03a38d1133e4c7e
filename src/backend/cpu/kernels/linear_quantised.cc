// SPDX-License-Identifier: Apache-2.0
// The quantised linear of one ISA level.
#if defined(QUIRE_ISA_amx)
#include "backend/cpu/kernels/linear_amx.h"
#elif defined(QUIRE_ISA_avx512)
#include "backend/cpu/kernels/linear_avx512.h"
#else
#if defined(__AVX2__)
#include "backend/cpu/kernels/linear_dots_avx2.h"
#elif defined(__aarch64__)
#include "backend/cpu/kernels/linear_dots_neon.h"
#else
#include "backend/cpu/kernels/linear_dots_portable.h"
#endif
#include "backend/cpu/kernels/linear_tiles.h"
#endif

#if defined(QUIRE_ISA_amx)
namespace quire::cpu::avx512 {
void linear_quantised(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                      int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);
}
#endif

namespace quire::cpu::QUIRE_ISA_NS {

#if defined(QUIRE_ISA_amx)

// A tile costs the same for one row as for sixteen: about what the other kernel, which gives the same bits (integer
// dots are exact), takes for five.
constexpr int64_t kLeastRows = 5;

void linear_quantised(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                      int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  const int64_t whole = row_begin + (row_end - row_begin) / kRowTile * kRowTile;
  const int64_t split = row_end - whole >= kLeastRows ? row_end : whole;
  AmxBlock* blocks = static_cast<AmxBlock*>(scratch);
  const auto vnni = [&](int64_t begin) {
    if (begin < row_end) avx512::linear_quantised(x, w, args, begin, row_end, panel_begin, panel_end, scratch);
  };
  if (has_halves(quant_format(w.dtype)) || split == row_begin) return vnni(row_begin);
  switch (w.dtype) {
    case DType::kQ8_0:
      amx_panels<DType::kQ8_0>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
    case DType::kQ4_0:
      amx_panels<DType::kQ4_0>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
    case DType::kQ4_1:
      amx_panels<DType::kQ4_1>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
    case DType::kQ5_0:
      amx_panels<DType::kQ5_0>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
    case DType::kQ5_1:
      amx_panels<DType::kQ5_1>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
    case DType::kQ4_K:
      amx_panels<DType::kQ4_K>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
    default:
      amx_panels<DType::kQ5_K>(x, w, args, row_begin, split, panel_begin, panel_end, blocks);
      break;
  }
  vnni(split);
}

#else

void linear_quantised(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                      int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  (void)scratch;
  QUIRE_DISPATCH_QUANT(w.dtype, quantised_panels, x, w, args, row_begin, row_end, panel_begin, panel_end)
}

#endif

}  // namespace quire::cpu::QUIRE_ISA_NS
