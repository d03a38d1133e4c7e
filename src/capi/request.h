// SPDX-License-Identifier: Apache-2.0
// From the JSON of a request to what the engine takes, by the API's tables of fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "llm/llm.h"

namespace quire::capi {

// What becomes of the output of a request that pools.
struct PoolUse {
  llm::PoolTask task = llm::PoolTask::kEmbed;
  llm::PoolSettings settings = {};
};
struct ReadRequest {
  engine::Request request;
  std::optional<PoolUse> pool = std::nullopt;  // of a request with a task
};

// Reads and checks a request. `tokens`: the prompt, unless it is empty; then the request has it. Any thread.
Result<ReadRequest> read_request(const llm::Llm& llm, std::string_view text, std::span<const int32_t> tokens);
// The token ids of a request's prompt.
Result<std::vector<int32_t>> read_prompt(const llm::Llm& llm, std::string_view text);
// What the model pools, as JSON: its tasks, how it scores, the size of its embeddings, its labels.
json::Value pooling_json(const llm::Llm& llm);
// The sampling parameters that a request without any has, as JSON.
json::Value default_params_json(const llm::Llm& llm);

}  // namespace quire::capi
