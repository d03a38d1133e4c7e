// SPDX-License-Identifier: Apache-2.0
// The fields of --speculative-config.
#include "llm/speculative_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/suggest.h"

namespace quire::llm {
namespace {

using engine::SpeculationOptions;

constexpr const char* kExample =
    "{\"method\": \"ngram\", \"num_speculative_tokens\": 5, \"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}";

Status check_fields(const json::Value& config) {
  static const std::vector<std::string> kFields = {"method", "num_speculative_tokens", "prompt_lookup_max",
                                                   "prompt_lookup_min"};
  if (config.find("model") != nullptr) {
    return invalid_argument("draft models are not supported, so 'model' must be left out; the method is \"ngram\"");
  }
  for (const auto& [name, value] : config.as_object()) {
    if (std::ranges::find(kFields, name) != kFields.end()) continue;
    return invalid_argument("there is no field '" + name + "'" + did_you_mean(name, kFields) +
                            " (the fields are method, num_speculative_tokens, prompt_lookup_min and "
                            "prompt_lookup_max)");
  }
  return {};
}

Result<SpeculationOptions> read(const json::Value& config) {
  QUIRE_TRY(check_fields(config));
  QUIRE_ASSIGN(const std::string method, json::get_string(config, "method"));
  if (method != "ngram") {
    return invalid_argument(
        "the method '" + method +
        "' is not supported; use \"ngram\", which needs no other model (draft models, MTP and EAGLE "
        "are not supported)");
  }
  SpeculationOptions out;
  QUIRE_ASSIGN(out.num_tokens, json::get_int(config, "num_speculative_tokens", 1, SpeculationOptions::kMaxTokens));
  // As in vLLM: one of the two alone is the other as well.
  const bool has_max = config.find("prompt_lookup_max") != nullptr;
  const bool has_min = config.find("prompt_lookup_min") != nullptr;
  const int64_t most = SpeculationOptions::kMaxLookup;
  if (has_max) {
    QUIRE_ASSIGN(out.prompt_lookup_max, json::get_int(config, "prompt_lookup_max", 1, most));
  }
  if (has_min) {
    QUIRE_ASSIGN(out.prompt_lookup_min, json::get_int(config, "prompt_lookup_min", 1, most));
  }
  if (!has_min && has_max) out.prompt_lookup_min = out.prompt_lookup_max;
  if (!has_max && has_min) out.prompt_lookup_max = out.prompt_lookup_min;
  if (out.prompt_lookup_min > out.prompt_lookup_max) {
    return invalid_argument("prompt_lookup_min is " + std::to_string(out.prompt_lookup_min) +
                            ", but it must not be greater than prompt_lookup_max, which is " +
                            std::to_string(out.prompt_lookup_max));
  }
  return out;
}

}  // namespace

Result<SpeculationOptions> parse_speculative_config(std::string_view text) {
  if (text.empty()) return SpeculationOptions{};
  const auto config = json::parse(text);
  if (!config.ok() || !config->is_object()) {
    return invalid_argument(std::string("--speculative-config must be a JSON object such as ") + kExample);
  }
  auto options = read(*config);
  if (!options.ok()) return Error{options.error().code, "--speculative-config: " + options.error().message};
  return options;
}

}  // namespace quire::llm
