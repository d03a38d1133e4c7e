// SPDX-License-Identifier: Apache-2.0
// GenerationConfig: the model's sampling defaults, from generation_config.json and what overrides it.
#pragma once

#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "llm/options.h"
#include "sampling/params.h"

namespace quire::llm {

// Where a request's settings start from. Immutable after load.
struct GenerationConfig {
  sampling::SamplingParams defaults;   // neutral where the model sets nothing; max_tokens is its max_new_tokens
  std::vector<int32_t> eos_token_ids;  // all that the file has
};

// `folder` is the model's. If it has no such file the defaults are neutral; a file that cannot be read is an Error.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder, const Options& options);

}  // namespace quire::llm
