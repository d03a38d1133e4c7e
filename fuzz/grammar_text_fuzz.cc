// SPDX-License-Identifier: Apache-2.0
// Fuzzes the readers of EBNF and Lark grammars, and the masks of what they read.
#include <cstddef>
#include <cstdint>
#include <string>

#include "constraint_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::grammar::Spec spec;
  spec.kind = quire::grammar::Spec::Kind::kGrammar;
  spec.text.assign(reinterpret_cast<const char*>(data), size);
  quire::fuzz::try_constraint(spec);
  return 0;
}
