// SPDX-License-Identifier: Apache-2.0
// Fuzzes structural tags and the masks that follow from them.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/json.h"
#include "constraint_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto tag = quire::json::parse({reinterpret_cast<const char*>(data), size});
  if (!tag.ok()) return 0;
  quire::grammar::Spec spec;
  spec.kind = quire::grammar::Spec::Kind::kStructuralTag;
  spec.json = std::move(tag).value();
  quire::fuzz::try_constraint(spec);
  return 0;
}
