// SPDX-License-Identifier: Apache-2.0
// Flags of vLLM's that do not apply here (yet), each with the reason that is given: for quire serve and for programs
// that use the library.
#pragma once

#include <span>

namespace quire::cli {

struct RefusedFlag {
  const char* name;
  const char* neutral;  // the value that is accepted since it asks for nothing; "": none
  const char* why;
};

std::span<const RefusedFlag> refused_flags();

}  // namespace quire::cli
