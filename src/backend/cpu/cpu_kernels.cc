// SPDX-License-Identifier: Apache-2.0
// Selects the kernel table of an ISA level. Compiled for the baseline, as everything outside isa/.
#include "backend/cpu/cpu_kernels.h"

#include "backend/cpu/attention_plan.h"
#include "base/check.h"

namespace quire::cpu {

#define QUIRE_DECLARE_LEVEL(level)                                                                           \
  namespace level {                                                                                          \
  extern const CpuKernels kTable;                                                                            \
  void reshape_and_cache(const ReshapeAndCacheArgs&, int64_t row_begin, int64_t row_end);                    \
  void attention_run(const AttentionArgs&, const AttentionItem&, float* scratch);                            \
  int64_t linear_prepared_bytes(const PackedView& w, int64_t rows);                                          \
  void linear_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end,              \
                      const PreparedRows& out);                                                              \
  void linear_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin, \
                      int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);               \
  bool linear_gated(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,   \
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch);                 \
  }
QUIRE_DECLARE_LEVEL(portable)
QUIRE_DECLARE_LEVEL(neon_dotprod)
QUIRE_DECLARE_LEVEL(neon_i8mm)
QUIRE_DECLARE_LEVEL(avx2)
QUIRE_DECLARE_LEVEL(avx512)
QUIRE_DECLARE_LEVEL(amx)
#undef QUIRE_DECLARE_LEVEL

// dotprod and i8mm (with bf16) add dot instructions and nothing else that kernels use: those levels are the one below
// with products of their own.
#define QUIRE_WITH_DOTS(level, ...)                             \
  [] {                                                          \
    CpuKernels table = portable::kTable;                        \
    table.linear.packings = __VA_ARGS__;                        \
    table.linear.prepared_bytes = level::linear_prepared_bytes; \
    table.linear.prepare = level::linear_prepare;               \
    table.linear.product = level::linear_product;               \
    return table;                                               \
  }()

#ifdef QUIRE_LEVEL_amx
// AMX adds products of matrices: of bytes for quantised weights, of bf16 for BF16 weights and for pages of BF16 and of
// bytes.
static CpuKernels with_tiles(const CpuKernels& base) {
  CpuKernels table = base;
  table.linear.packings = {.quantised = Packing::kFixed, .bf16 = Packing::kRows};
  table.linear.prepared_bytes = amx::linear_prepared_bytes;
  table.linear.prepare = amx::linear_prepare;
  table.linear.product = amx::linear_product;
  table.linear.gated = amx::linear_gated;
  table.reshape_and_cache = amx::reshape_and_cache;
  table.attention.run = amx::attention_run;
  table.attention.most_rows = kAttentionRowsMost;
  return table;
}
#endif

const CpuKernels& kernels(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
#ifdef QUIRE_LEVEL_portable
      return portable::kTable;
#else
      break;
#endif
    case Isa::kNeonDotprod: {
#ifdef QUIRE_LEVEL_neon_dotprod
      static const CpuKernels table =
          QUIRE_WITH_DOTS(neon_dotprod, Packings{.quantised = Packing::kPairs, .bf16 = Packing::kColumns});
      return table;
#else
      break;
#endif
    }
    case Isa::kNeonI8mm: {
#ifdef QUIRE_LEVEL_neon_i8mm
      static const CpuKernels table =
          QUIRE_WITH_DOTS(neon_i8mm, Packings{.quantised = Packing::kPairs, .bf16 = Packing::kPairs});
      return table;
#else
      break;
#endif
    }
    case Isa::kAvx2:
#ifdef QUIRE_LEVEL_avx2
      return avx2::kTable;
#else
      break;
#endif
    case Isa::kAvx512:
#ifdef QUIRE_LEVEL_avx512
      return avx512::kTable;
#else
      break;
#endif
    case Isa::kAmx: {
#ifdef QUIRE_LEVEL_amx
      static const CpuKernels table = with_tiles(avx512::kTable);
      return table;
#else
      break;
#endif
    }
  }
  QUIRE_CHECK(false, "this ISA level is not in the binary");
}

}  // namespace quire::cpu
