// SPDX-License-Identifier: Apache-2.0
// Reads generation_config.json.
#include "llm/generation_config.h"

#include "base/file.h"
#include "base/log.h"
#include "sampling/param_table.h"

namespace quire::llm {
namespace {

namespace fs = std::filesystem;

// Takes over the settings of `config`. An Error if one of them has the wrong type. `refuse` is called for a number that
// no request could have; if it returns no Error, the number is left out.
template <typename Refuse>
Status apply(const json::Value& config, GenerationConfig& out, const Refuse& refuse) {
  sampling::SamplingParams& d = out.defaults;
  for (const sampling::ParamInfo& info : sampling::param_table()) {
    if ((info.sources & sampling::kInFile) == 0) continue;
    if (const auto* real = std::get_if<double sampling::SamplingParams::*>(&info.member)) {
      const double before = d.**real;
      QUIRE_ASSIGN(d.**real, json::get_double_or(config, info.name, before));
      if (const Status fits = sampling::check_range(info, d); !fits.ok()) {
        QUIRE_TRY(refuse(fits.error()));
        d.** real = before;
      }
    } else {
      const auto integer = std::get<int64_t sampling::SamplingParams::*>(info.member);
      const auto min = static_cast<int64_t>(info.rules.min);
      QUIRE_ASSIGN(d.*integer, json::get_int_or(config, info.name, d.*integer, min, int64_t{1} << 31));
    }
  }
  if (const json::Value* max = config.find("max_new_tokens"); max != nullptr && !max->is_null()) {
    QUIRE_ASSIGN(d.max_tokens, json::get_int(config, "max_new_tokens", 1, int64_t{1} << 40));
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

}  // namespace

Result<GenerationConfig> load_generation_config(const fs::path& folder, const Options& options) {
  GenerationConfig out;
  out.defaults.max_tokens.reset();
  const bool own_folder = options.generation_config != "auto" && options.generation_config != "vllm";
  const fs::path file = (own_folder ? fs::path(options.generation_config) : folder) / "generation_config.json";
  if (fs::exists(file)) {
    QUIRE_ASSIGN(const std::string text, read_file(file, size_t{1} << 20));
    auto config = json::parse(text);
    if (!config.ok()) return in_file(file, config.error());
    if (!config->is_object()) return in_file(file, invalid_argument("it must be a JSON object"));
    // EOS tokens are read even with --generation-config vllm: without them a chat model would not stop.
    auto status = read_eos(*config, out);
    if (status.ok() && options.generation_config != "vllm") {
      status = apply(*config, out, [&](const Error& error) {
        log_warn("'{}': {} It is not used.", file.string(), error.message);
        return Status();
      });
    }
    if (!status.ok()) return in_file(file, status.error());
  } else if (own_folder) {
    return not_found({"--generation-config: there is no '", file.string(), "'"});
  }
  if (!options.override_generation_config.empty()) {
    auto config = json::parse(options.override_generation_config);
    if (!config.ok() || !config->is_object()) {
      return invalid_argument("--override-generation-config must be a JSON object such as {\"temperature\": 0.5}");
    }
    auto status = apply(*config, out, [](const Error& error) { return Status(error); });
    if (!status.ok()) return Error{status.error().code, "--override-generation-config: " + status.error().message};
  }
  return out;
}

}  // namespace quire::llm
