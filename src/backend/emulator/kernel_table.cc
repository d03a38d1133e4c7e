// SPDX-License-Identifier: Apache-2.0
// The table of the host build's kernels, gathered from every file of backend/emulator/kernels.
#include <emulator_kernel_files.h>  // QUIRE_KERNEL_FILES, made by emulator.cmake

#include <algorithm>
#include <cstring>

#include "backend/emulator/emulator.h"
#include "base/check.h"

namespace quire::emulator {

#define QUIRE_DECLARE_FILE(file) const KernelRecord* kernels_of_##file();
QUIRE_KERNEL_FILES(QUIRE_DECLARE_FILE)

namespace {

std::vector<const KernelRecord*> collect() {
  std::vector<const KernelRecord*> all;
#define QUIRE_COLLECT_FILE(file)                                                                   \
  for (const KernelRecord* record = kernels_of_##file(); record != nullptr; record = record->next) \
    all.push_back(record);
  QUIRE_KERNEL_FILES(QUIRE_COLLECT_FILE)
  const auto by_name = [](const KernelRecord* a, const KernelRecord* b) { return std::strcmp(a->name, b->name) < 0; };
  std::sort(all.begin(), all.end(), by_name);
  for (size_t i = 1; i < all.size(); i++) {
    QUIRE_CHECK(std::strcmp(all[i - 1]->name, all[i]->name) != 0, all[i]->name);
  }
  return all;
}

}  // namespace

std::span<const KernelRecord* const> all_kernels() {
  static const std::vector<const KernelRecord*> all = collect();
  return all;
}

const KernelRecord* find_kernel(std::string_view name) {
  const auto all = all_kernels();
  const auto found =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const KernelRecord* record, std::string_view wanted) { return record->name < wanted; });
  return found != all.end() && (*found)->name == name ? *found : nullptr;
}

}  // namespace quire::emulator
