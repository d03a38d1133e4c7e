// SPDX-License-Identifier: Apache-2.0
// From the JSON of a request to what the engine takes, by the API's tables of fields.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "llm/llm.h"

namespace quire::capi {

// Reads and checks a request. `tokens`: the prompt, unless it is empty; then the request has it. Any thread.
Result<engine::Request> read_request(const llm::Llm& llm, std::string_view text, std::span<const int32_t> tokens);
// The token ids of a request's prompt.
Result<std::vector<int32_t>> read_prompt(const llm::Llm& llm, std::string_view text);
// The sampling parameters that a request without any has, as JSON.
json::Value default_params_json(const llm::Llm& llm);

}  // namespace quire::capi
