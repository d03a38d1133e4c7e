// SPDX-License-Identifier: Apache-2.0
// Reads --speculative-config, a JSON object in vLLM's words.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/proposer.h"

namespace quire::llm {

struct SpeculativeConfig {
  engine::SpeculationOptions options;  // without max_length
  std::string model;                   // of a draft model; "": none
  int64_t max_model_len = 0;           // of the draft model; 0: its own
};
// "" is no speculation.
Result<SpeculativeConfig> parse_speculative_config(std::string_view json);

}  // namespace quire::llm
