// SPDX-License-Identifier: Apache-2.0
// Mixture of experts.
#include "backend/cpu/cpu_backend.h"

namespace quire::cpu {

void CpuBackend::moe_route(const MoeRouteArgs&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::moe_experts(const MoeExpertsArgs&) {
  QUIRE_CHECK(false, "not yet");
}

}  // namespace quire::cpu
