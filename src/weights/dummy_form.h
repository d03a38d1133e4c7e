// SPDX-License-Identifier: Apache-2.0
// The random weights (--load-format dummy) of a quantised config: which type a linear has, and scales that give its
// weights the spread of plain ones. backend/random_rows.h has the formula of codes and scales.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/linear.h"
#include "weights/quant_scheme.h"

namespace quire::weights {

// What the loader makes of a linear with these settings in a file (LoadedMatrix in weights/quantised.h).
struct DummyForm {
  DType type = DType::kF32;  // one of GGUF's, G4, G8 or GF8; F32: floats, because the groups do not fit
  int bits = 0;              // of a code; 0: there are none
  int64_t group = 0;         // G4, G8 and GF8. 0 in GF8: no group fits, and it must be expanded
  int64_t scale_rows = 1, scale_columns = 0;
  bool reordered = false;  // act-order: inputs are taken in the order of dummy_order()
};

// An Error if the config has settings that no random weights can have.
Status check_dummy_scheme(const QuantScheme& scheme);
// Nothing if the module has plain weights: its settings say so, or its type has no blocks for rows of k elements.
// GGUF's types of 256 elements become those of 32 that llama.cpp takes in their place where 256 do not divide k.
// REQUIRES: check_dummy_scheme()
std::optional<DummyForm> dummy_form(const QuantScheme& scheme, std::string_view module, int64_t n, int64_t k);
// Turns the recipe of a plain tensor into that of codes. REQUIRES: form.bits > 0
void set_codes(const DummyForm& form, int64_t k, RandomElements& random);
// A permutation of k inputs.
std::vector<int32_t> dummy_order(uint64_t key, int64_t k);
// The least bytes that an element of a quantised linear takes; `plain` for one that is not.
double dummy_element_bytes(const QuantScheme& scheme, double plain);

}  // namespace quire::weights
