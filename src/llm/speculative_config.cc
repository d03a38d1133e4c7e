// SPDX-License-Identifier: Apache-2.0
// The fields of --speculative-config.
#include "llm/speculative_config.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/suggest.h"
#include "model/config/decoder_config.h"

namespace quire::llm {
namespace {

using engine::SpeculationOptions;
using Method = SpeculationOptions::Method;

constexpr const char* kExample =
    "{\"method\": \"ngram\", \"num_speculative_tokens\": 5, \"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}";

struct MethodName {
  const char* name;
  Method method;
};
// vLLM also has a name for the MTP layers of each family; they all mean "mtp".
constexpr MethodName kMethods[] = {{"ngram", Method::kNgram},
                                   {"suffix", Method::kSuffix},
                                   {"draft_model", Method::kDraftModel},
                                   {"eagle3", Method::kEagle3},
                                   {"mtp", Method::kMtp},
                                   {"deepseek_mtp", Method::kMtp},
                                   {"glm4_moe_mtp", Method::kMtp},
                                   {"glm4_moe_lite_mtp", Method::kMtp},
                                   {"qwen3_next_mtp", Method::kMtp},
                                   {"qwen3_5_mtp", Method::kMtp}};

// The fields of each method; null: of all of them.
struct Field {
  const char* name;
  const char* method;
};
constexpr Field kFields[] = {{"method", nullptr},
                             {"num_speculative_tokens", nullptr},
                             {"prompt_lookup_max", "ngram"},
                             {"prompt_lookup_min", "ngram"},
                             {"suffix_decoding_max_tree_depth", "suffix"},
                             {"suffix_decoding_max_cached_requests", "suffix"},
                             {"suffix_decoding_max_spec_factor", "suffix"},
                             {"suffix_decoding_min_token_prob", "suffix"},
                             {"model", "draft_model"},
                             {"max_model_len", "draft_model"},
                             {"draft_tensor_parallel_size", "draft_model"},
                             {"model", "eagle3"},
                             {"draft_tensor_parallel_size", "eagle3"}};

constexpr MethodName kDraftModel = {"draft_model", Method::kDraftModel};

// Fields of vLLM's that could change no answer here: how its drafters run, and when drafts are too many, which follows
// from the load (DraftPace).
constexpr std::string_view kWithoutEffect[] = {"enforce_eager", "disable_by_batch_size",
                                               "disable_padded_drafter_batch"};

// The flag is read several times: it is checked, and then every part that needs it reads it.
void warn_once(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (warned.insert(name).second) log_warn("--speculative-config: '{}' has no effect here", name);
}

// Takes out what says nothing: null, fields without effect, and vLLM's older name of prompt lookup, a model "[ngram]".
json::Value without_empty(const json::Value& config) {
  json::Value out{json::Object{}};
  for (const auto& [name, value] : config.as_object()) {
    if (value.is_null()) continue;
    if (std::ranges::find(kWithoutEffect, std::string_view(name)) != std::end(kWithoutEffect)) {
      warn_once(name);
    } else {
      out.set(name, value);
    }
  }
  const json::Value* model = out.find("model");
  const json::Value* method = out.find("method");
  const bool lookup =
      model != nullptr && model->is_string() && (model->as_string() == "[ngram]" || model->as_string() == "ngram");
  if (!lookup || (method != nullptr && !(method->is_string() && method->as_string() == "ngram"))) return out;
  std::erase_if(out.as_object(), [](const json::Member& member) { return member.first == "model"; });
  out.set("method", "ngram");
  return out;
}

Result<MethodName> read_method(const json::Value& config) {
  if (config.find("method") == nullptr && config.find("model") != nullptr) return kDraftModel;
  QUIRE_ASSIGN(const std::string name, json::get_string(config, "method"));
  std::vector<std::string> names;
  for (const MethodName& method : kMethods) {
    if (name == method.name) return method;
    names.emplace_back(method.name);
  }
  return invalid_argument(
      {"the method '", name, "' is not supported", did_you_mean(name, names),
       "; use \"ngram\" or \"suffix\", which need no other model, \"draft_model\", \"eagle3\", or \"mtp\" for models "
       "with layers for multi-token prediction"});
}

Status check_fields(const json::Value& config, const MethodName& method) {
  std::vector<std::string> known;
  std::string list;
  for (const Field& field : kFields) {
    if (field.method != nullptr && std::string_view(field.method) != method.name) continue;
    known.emplace_back(field.name);
    list += (list.empty() ? "" : ", ") + known.back();
  }
  for (const auto& [name, value] : config.as_object()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const auto* other =
        std::ranges::find_if(kFields, [&wanted = name](const Field& field) { return wanted == field.name; });
    const std::string hint = other != std::end(kFields)
                                 ? std::string("; it belongs to the method \"") + other->method + "\""
                                 : did_you_mean(name, known);
    return invalid_argument({"the method \"", std::string(method.name), "\" has no field '", name, "'", hint,
                             " (the fields are ", list, ")"});
  }
  return {};
}

// As in vLLM: one of the two alone is the other as well.
Status read_lookup(const json::Value& config, SpeculationOptions& out) {
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
  if (out.prompt_lookup_min <= out.prompt_lookup_max) return {};
  return invalid_argument({"prompt_lookup_min is ", out.prompt_lookup_min,
                           ", but it must not be greater than prompt_lookup_max, which is ", out.prompt_lookup_max});
}

// A number of a field that may be missing.
Status read_number(const json::Value& config, const char* name, int64_t most, double& out) {
  QUIRE_ASSIGN(out, json::get_double_or(config, name, out));
  if (out >= 0 && out <= static_cast<double>(most)) return {};
  return invalid_argument({"'", name, "' must be a number from 0 to ", most});
}

Status read_suffix(const json::Value& config, engine::SuffixOptions& out) {
  QUIRE_ASSIGN(out.max_tree_depth, json::get_int_or(config, "suffix_decoding_max_tree_depth", out.max_tree_depth, 1,
                                                    SpeculationOptions::kMaxTokens));
  QUIRE_ASSIGN(out.max_cached_requests, json::get_int_or(config, "suffix_decoding_max_cached_requests",
                                                         out.max_cached_requests, 0, 1'000'000'000));
  QUIRE_TRY(read_number(config, "suffix_decoding_max_spec_factor", 1000, out.max_spec_factor));
  return read_number(config, "suffix_decoding_min_token_prob", 1, out.min_token_prob);
}

Status read_draft_model(const json::Value& config, SpeculativeConfig& out) {
  QUIRE_ASSIGN(out.model, json::get_string(config, "model"));
  if (out.model.empty()) return invalid_argument("'model' is empty; it is a folder, a .gguf file or a cached name");
  if (config.find("max_model_len") != nullptr) {
    QUIRE_ASSIGN(out.max_model_len, json::get_int(config, "max_model_len", 1, model::kMaxPositions));
  }
  if (config.find("draft_tensor_parallel_size") != nullptr &&
      !json::get_int(config, "draft_tensor_parallel_size", 1, 1).ok()) {
    return invalid_argument("'draft_tensor_parallel_size' must be 1: a draft model runs on one device");
  }
  return {};
}

Result<SpeculativeConfig> read(const json::Value& config) {
  QUIRE_ASSIGN(const MethodName method, read_method(config));
  QUIRE_TRY(check_fields(config, method));
  SpeculativeConfig all;
  SpeculationOptions& out = all.options;
  out.method = method.method;
  if (method.method == Method::kNgram) QUIRE_TRY(read_lookup(config, out));
  if (method.method == Method::kSuffix) QUIRE_TRY(read_suffix(config, out.suffix));
  if (method.method == Method::kDraftModel || method.method == Method::kEagle3) {
    QUIRE_TRY(read_draft_model(config, all));
  }
  // As in vLLM: suffix decoding finds the number itself.
  out.num_tokens = out.suffix.max_tree_depth;
  if (method.method == Method::kSuffix && config.find("num_speculative_tokens") == nullptr) return all;
  QUIRE_ASSIGN(out.num_tokens, json::get_int(config, "num_speculative_tokens", 1, SpeculationOptions::kMaxTokens));
  return all;
}

}  // namespace

Result<SpeculativeConfig> parse_speculative_config(std::string_view text) {
  if (text.empty()) return SpeculativeConfig{};
  const auto config = json::parse(text);
  if (!config.ok() || !config->is_object()) {
    return invalid_argument({"--speculative-config must be a JSON object such as ", kExample});
  }
  auto parsed = read(without_empty(*config));
  if (!parsed.ok()) return Error{parsed.error().code, "--speculative-config: " + parsed.error().message};
  return parsed;
}

}  // namespace quire::llm
