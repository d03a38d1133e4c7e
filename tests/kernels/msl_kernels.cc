// SPDX-License-Identifier: Apache-2.0
// The table of the kernels that msl_to_host.py made of the flat Metal texts.
#include "tests/kernels/msl_kernels.h"

#include <msl_kernel_files.h>  // QUIRE_MSL_FILES, made by CMakeLists.txt

#include <vector>

namespace quire::emulator {
#define QUIRE_DECLARE_FILE(file) const KernelRecord* kernels_of_msl_##file();
QUIRE_MSL_FILES(QUIRE_DECLARE_FILE)
}  // namespace quire::emulator

namespace quire::kernels {
namespace {

std::vector<const emulator::KernelRecord*> collect() {
  std::vector<const emulator::KernelRecord*> all;
#define QUIRE_COLLECT_FILE(file)                                                                    \
  for (const emulator::KernelRecord* record = emulator::kernels_of_msl_##file(); record != nullptr; \
       record = record->next) {                                                                     \
    all.push_back(record);                                                                          \
  }
  QUIRE_MSL_FILES(QUIRE_COLLECT_FILE)
  return all;
}

}  // namespace

std::span<const emulator::KernelRecord* const> all_msl_kernels() {
  static const auto all = collect();
  return all;
}

const emulator::KernelRecord* find_msl_kernel(std::string_view name) {
  for (const emulator::KernelRecord* record : all_msl_kernels()) {
    if (record->name == name) return record;
  }
  return nullptr;
}

}  // namespace quire::kernels
