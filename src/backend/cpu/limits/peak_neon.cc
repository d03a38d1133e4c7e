// SPDX-License-Identifier: Apache-2.0
// The peak probes of aarch64. Assembly, so that no compiler drops, hoists or spills anything; each runs only where its
// level is present.
#include "backend/cpu/limits/peak.h"

#if defined(__aarch64__)

namespace quire::cpu::peak {
namespace {

#define QUIRE_REGISTERS                                                                                               \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", \
      "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
#define QUIRE_TWENTY_FOUR "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23"
// A line for each register r of a list.
#define QUIRE_EACH(line) ".irp r," QUIRE_TWENTY_FOUR "\n" line "\n.endr\n"

#define QUIRE_PROBE(function, line)                                                                              \
  void function(int64_t rounds, const void* operands) {                                                          \
    __asm__ volatile("ldr q30, [%1]\nldr q31, [%1, #64]\n" QUIRE_EACH("movi v\\r\\().4s, #0") "1:\n" QUIRE_EACH( \
                         line) "subs %0, %0, #1\nb.ne 1b\n"                                                      \
                     : "+r"(rounds)                                                                              \
                     : "r"(operands)                                                                             \
                     : "memory", "cc", QUIRE_REGISTERS);                                                         \
  }
QUIRE_PROBE(fmla, "fmla v\\r\\().4s, v30.4s, v31.4s")
#if defined(__ARM_FEATURE_DOTPROD)
QUIRE_PROBE(sdot, "sdot v\\r\\().4s, v30.16b, v31.16b")
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
QUIRE_PROBE(smmla, "smmla v\\r\\().4s, v30.16b, v31.16b")
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
QUIRE_PROBE(bfmmla, "bfmmla v\\r\\().4s, v30.8h, v31.8h")
#endif

}  // namespace

// The compiler may not know the extensions; then there is nothing to measure.
const PeakFunction kFmla = fmla;
#if defined(__ARM_FEATURE_DOTPROD)
const PeakFunction kSdot = sdot;
#else
const PeakFunction kSdot = nullptr;
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
const PeakFunction kSmmla = smmla;
#else
const PeakFunction kSmmla = nullptr;
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
const PeakFunction kBfmmla = bfmmla;
#else
const PeakFunction kBfmmla = nullptr;
#endif

}  // namespace quire::cpu::peak

#endif
