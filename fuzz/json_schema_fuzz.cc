// SPDX-License-Identifier: Apache-2.0
// Fuzzes JSON Schemas and the masks that follow from them: the first byte has the options, the rest is the schema.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/json.h"
#include "constraint_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto schema = quire::json::parse({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!schema.ok()) return 0;
  quire::grammar::Spec spec;
  spec.kind = quire::grammar::Spec::Kind::kJson;
  spec.json = std::move(schema).value();
  spec.any_whitespace = (data[0] & 1) == 0;
  spec.additional_properties = (data[0] & 2) == 0;
  if ((data[0] & 4) != 0) spec.whitespace_pattern = " ?";
  quire::fuzz::try_constraint(spec);
  return 0;
}
