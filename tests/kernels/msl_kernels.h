// SPDX-License-Identifier: Apache-2.0
// The kernels of the flat Metal texts, compiled through msl_shim.h: records like those of the host build.
#pragma once

#include <span>
#include <string_view>

#include "kernels/compat/emulator_calls.h"

namespace quire::kernels {

// Of the text that flatten.py made of src/kernels; null: it has no such kernel.
const emulator::KernelRecord* find_msl_kernel(std::string_view name);
std::span<const emulator::KernelRecord* const> all_msl_kernels();

}  // namespace quire::kernels
