// SPDX-License-Identifier: Apache-2.0
// In place of backend/emulator/kernel_table.cc: the emulator's kernels are those of the flat Metal text.
#include "backend/emulator/emulator.h"
#include "tests/kernels/msl_kernels.h"

namespace quire::emulator {

std::span<const KernelRecord* const> all_kernels() {
  return kernels::all_msl_kernels();
}

const KernelRecord* find_kernel(std::string_view name) {
  return kernels::find_msl_kernel(name);
}

}  // namespace quire::emulator
