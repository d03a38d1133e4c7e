// SPDX-License-Identifier: Apache-2.0
// Reads generation_config.json.
#include "llm/generation_config.h"

#include "base/file.h"

namespace quire::llm {
namespace {

namespace fs = std::filesystem;

Status apply(const json::Value& config, GenerationConfig& out) {
  sampling::SamplingParams& d = out.defaults;
  QUIRE_ASSIGN(d.temperature, json::get_double_or(config, "temperature", d.temperature));
  QUIRE_ASSIGN(d.top_p, json::get_double_or(config, "top_p", d.top_p));
  QUIRE_ASSIGN(d.top_k, json::get_int_or(config, "top_k", d.top_k, -1, int64_t{1} << 31));
  QUIRE_ASSIGN(d.min_p, json::get_double_or(config, "min_p", d.min_p));
  QUIRE_ASSIGN(d.repetition_penalty, json::get_double_or(config, "repetition_penalty", d.repetition_penalty));
  QUIRE_ASSIGN(d.presence_penalty, json::get_double_or(config, "presence_penalty", d.presence_penalty));
  QUIRE_ASSIGN(d.frequency_penalty, json::get_double_or(config, "frequency_penalty", d.frequency_penalty));
  if (const json::Value* max = config.find("max_new_tokens"); max != nullptr && !max->is_null()) {
    QUIRE_ASSIGN(out.max_new_tokens, json::get_int(config, "max_new_tokens", 1, int64_t{1} << 40));
  }
  return {};
}

Status read_eos(const json::Value& config, GenerationConfig& out) {
  const json::Value* eos = config.find("eos_token_id");
  if (eos == nullptr || eos->is_null()) return {};
  json::Array ids = eos->is_array() ? eos->as_array() : json::Array{*eos};
  for (const json::Value& id : ids) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) {
      return invalid_argument("field 'eos_token_id' must be a token id or a list of them");
    }
    out.eos_token_ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return {};
}

Error in_file(const fs::path& file, const Error& error) {
  return {error.code, "'" + file.string() + "': " + error.message};
}

}  // namespace

Result<GenerationConfig> load_generation_config(const fs::path& folder, const Options& options) {
  GenerationConfig out;
  const bool own_folder = options.generation_config != "auto" && options.generation_config != "vllm";
  const fs::path file = (own_folder ? fs::path(options.generation_config) : folder) / "generation_config.json";
  if (fs::exists(file)) {
    QUIRE_ASSIGN(const std::string text, read_file(file, size_t{1} << 20));
    auto config = json::parse(text);
    if (!config.ok()) return in_file(file, config.error());
    if (!config->is_object()) return in_file(file, invalid_argument("it must be a JSON object"));
    // The extra ends of text count also with --generation-config vllm: without them a chat model does not stop.
    auto status = read_eos(*config, out);
    if (status.ok() && options.generation_config != "vllm") {
      status = apply(*config, out);
      out.from_file = true;
    }
    if (!status.ok()) return in_file(file, status.error());
  } else if (own_folder) {
    return not_found("--generation-config: there is no '" + file.string() + "'");
  }
  if (!options.override_generation_config.empty()) {
    auto config = json::parse(options.override_generation_config);
    if (!config.ok() || !config->is_object()) {
      return invalid_argument("--override-generation-config must be a JSON object such as {\"temperature\": 0.5}");
    }
    auto status = apply(*config, out);
    if (!status.ok()) return Error{status.error().code, "--override-generation-config: " + status.error().message};
  }
  return out;
}

}  // namespace quire::llm
