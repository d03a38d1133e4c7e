// SPDX-License-Identifier: Apache-2.0
// Families against transformers in float32, on any device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "models/harness.h"

namespace quire::testing {

// Logits within a derived tolerance, and equal greedy tokens, for the prompts of a golden case and its first max_tokens
// tokens. `device`: "" is the tests' default (test_device()). Prompts longer than longest_prompt are skipped.
void expect_golden(const std::string& name, const std::string& device = "", int64_t max_tokens = 64,
                   size_t longest_prompt = 1 << 20);

// The same for the first three drafts after each prompt of a case with ahead.json: the logits of its layer for
// multi-token prediction. On a CPU.
void expect_golden_drafts(const std::string& name);
// The same for an EAGLE-3 layer in a folder of the case.
void expect_golden_eagle(const std::string& name, const std::string& folder);
// The floats of an expected.json, and how far logits may be from those of a prompt there.
std::vector<float> floats_from_base64(const std::string& text);
double logit_tolerance(const json::Value& prompt);

std::vector<std::string> golden_cases();
// The case's name in a form that googletest accepts.
std::string test_name(const std::string& golden_case);

}  // namespace quire::testing
