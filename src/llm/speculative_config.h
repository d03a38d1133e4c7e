// SPDX-License-Identifier: Apache-2.0
// Reads --speculative-config, a JSON object in vLLM's words.
#pragma once

#include <string_view>

#include "base/result.h"
#include "engine/proposer.h"

namespace quire::llm {

// The options of the engine; "" is no speculation.
Result<engine::SpeculationOptions> parse_speculative_config(std::string_view json);

}  // namespace quire::llm
