// SPDX-License-Identifier: Apache-2.0
// Picks the probe of an ISA level.
#include "backend/cpu/simd_probe.h"

#include "base/check.h"

namespace quire::cpu {

namespace portable {
extern const SimdProbe kProbe;
}
#ifdef QUIRE_LEVEL_avx2
namespace avx2 {
extern const SimdProbe kProbe;
}
#endif
#ifdef QUIRE_LEVEL_avx512
namespace avx512 {
extern const SimdProbe kProbe;
}
#endif

std::vector<Isa> probed_isas() {
  std::vector<Isa> levels;
  for (const Isa isa : available_isas()) {
    if (isa == Isa::kPortable || isa == Isa::kAvx2 || isa == Isa::kAvx512) levels.push_back(isa);
  }
  return levels;
}

const SimdProbe& simd_probe(Isa isa) {
#ifdef QUIRE_LEVEL_avx2
  if (isa == Isa::kAvx2) return avx2::kProbe;
#endif
#ifdef QUIRE_LEVEL_avx512
  if (isa == Isa::kAvx512) return avx512::kProbe;
#endif
  QUIRE_CHECK(isa == Isa::kPortable, "this level has no probe");
  return portable::kProbe;
}

}  // namespace quire::cpu
