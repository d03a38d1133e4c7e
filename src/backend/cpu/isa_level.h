// SPDX-License-Identifier: Apache-2.0
// ISA levels of the CPU backend: which were built, which this machine can run, and which one is used.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace quire::cpu {

// Each level includes those before it of the same architecture. Portable is plain C++ (on aarch64: baseline NEON).
enum class Isa { kPortable, kNeonDotprod, kNeonI8mm, kAvx2, kAvx512, kAmx };

const char* name(Isa isa);
// The levels that are in this binary and that this machine can run, weakest first. Empty only if the binary was built
// for another machine alone (QUIRE_CPU=native).
std::vector<Isa> available_isas();
// The best available level, or the one named (by --cpu-isa or QUIRE_CPU_ISA); an unknown or missing one is an Error
// with the choices.
Result<Isa> choose_isa(const std::string& wanted);

}  // namespace quire::cpu
