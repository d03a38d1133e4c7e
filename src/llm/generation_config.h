// SPDX-License-Identifier: Apache-2.0
// The model's own sampling defaults: generation_config.json and what overrides it.
#pragma once

#include <optional>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "llm/options.h"
#include "sampling/params.h"

namespace quire::llm {

// Defaults that a request's settings start from. Immutable after load.
struct GenerationConfig {
  sampling::SamplingParams defaults;  // temperature, top_k, top_p, min_p, repetition_penalty as the model wants them
  std::optional<int64_t> max_new_tokens;  // default for max_tokens
  std::vector<int32_t> eos_token_ids;     // all of them
  bool from_file = false;
};

// `folder` is the model's; an absent file is fine, a broken one is an Error.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder, const Options& options);

}  // namespace quire::llm
