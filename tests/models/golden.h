// SPDX-License-Identifier: Apache-2.0
// Families against transformers in float32, on any device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/harness.h"

namespace quire::testing {

// Logits within a derived tolerance, and greedy tokens equal, of the golden case's prompts and its first max_tokens
// tokens. `device`: "" is the tests' own (test_device()). Prompts longer than longest_prompt are left out.
void expect_golden(const std::string& name, const std::string& device = "", int64_t max_tokens = 64,
                   size_t longest_prompt = 1 << 20);

std::vector<std::string> golden_cases();
// The case's name as googletest takes it.
std::string test_name(const std::string& golden_case);

}  // namespace quire::testing
