// SPDX-License-Identifier: Apache-2.0
// The recurrent layers, and the small ops that go with them.
#include "backend/cpu/cpu_backend.h"

namespace quire::cpu {

void CpuBackend::gather_columns(const GatherColumnsArgs&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::scale(const ScaleArgs&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::soft_cap(const SoftCapArgs&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::gated_rms_norm(const GatedRmsNormArgs&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::gated_delta_net(const GatedDeltaNetArgs&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::mamba2(const Mamba2Args&) {
  QUIRE_CHECK(false, "not yet");
}

void CpuBackend::short_conv(const ShortConvArgs&) {
  QUIRE_CHECK(false, "not yet");
}

}  // namespace quire::cpu
