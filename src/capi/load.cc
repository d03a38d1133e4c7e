// SPDX-License-Identifier: Apache-2.0
// Turns a JSON object into command line flags, which have names, types and checks already.
#include "capi/load.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/suggest.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/unused_flags.h"

namespace quire::capi {
namespace {

// "--max-model-len" -> "max_model_len".
std::string name_of(std::string_view flag) {
  std::string name(flag.substr(flag.find_first_not_of('-')));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

Failure unknown_option(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known = {"model"};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty()) known.push_back(name_of(option->get_lnames()[0]));
  }
  const std::string meant = did_you_mean(name, known);
  return invalid_field(
      name, {"is no option of a model", (meant.empty() ? "; quire run --help and quire_options() list them" : meant)});
}

// Whether a value asks for nothing: false, an empty text or structure, or what the flag is anyway.
bool is_neutral(const json::Value& value, std::string_view neutral) {
  if (value.is_bool()) return !value.as_bool();
  if (value.is_string() && value.as_string().empty()) return true;
  if (value.is_object()) return value.as_object().empty();
  if (value.is_array()) return value.as_array().empty();
  if (neutral.empty()) return false;
  if (value.is_string()) return value.as_string() == neutral;
  const auto number = json::parse(neutral);
  return number.ok() && value.is_number() && number->is_number() && value.as_double() == number->as_double();
}

// Flags of quire serve that programs for vLLM give to a model: the value that asks for something, and why it has no
// effect.
struct ServerFlag {
  std::string_view name;
  bool asks;
  const char* why;
};
constexpr ServerFlag kServerFlags[] = {
    {"disable_log_stats", false, "only quire serve logs statistics"},
    {"disable_log_requests", false, "only quire serve logs requests"},
    {"enable_log_requests", true, "only quire serve logs requests"},
};

// Options of vLLM's LLM that are no flags of quire serve, or other ones there: the value that asks for nothing, and why
// another one is refused or, if it could change no answer, has no effect.
struct LibraryOption {
  std::string_view name;
  std::string_view neutral;
  const char* why;
  bool refused = false;
};
constexpr const char* kNoCompiler = "kernels are compiled ahead of time";
constexpr const char* kNoImages = "images and audio are not supported yet";
constexpr const char* kOneBackend = "there is one implementation for each device";
constexpr LibraryOption kLibraryOptions[] = {
    {"distributed_executor_backend", "", "the ranks of a program are threads of its process"},
    {"data_parallel_size", "1", "a program has one engine; quire serve has --data-parallel-size", true},
    {"nnodes", "1", "the ranks of a program are threads of its process", true},
    {"served_model_name", "", "only a server has names for a model"},
    {"model_impl", "auto", kOneBackend},
    {"attention_backend", "auto", kOneBackend},
    {"guided_decoding_backend", "auto", "there is one backend for structured outputs"},
    {"config_format", "auto", "the format of a model's files is recognised"},
    {"model_loader_extra_config", "", "files are mapped into memory, which has no settings", true},
    {"max_parallel_loading_workers", "", "files are mapped into memory"},
    {"use_tqdm_on_load", "true", "loading shows no progress bar"},
    {"optimization_level", "", kNoCompiler},
    {"use_v2_block_manager", "true", "there is one manager of pages"},
    {"num_scheduler_steps", "1", "steps are scheduled ahead automatically"},
    {"stream_interval", "1", "pieces that have collected are returned as one anyway"},
    {"disable_cascade_attn", "", "attention is always computed in the same order"},
    {"disable_hybrid_kv_cache_manager", "", "layers of each kind have their own pages"},
    {"disable_sliding_window", "", "a model is run as its files describe it", true},
    {"calculate_kv_scales", "", "scales are computed for each token anyway"},
    {"enable_dbo", "", "a step is not split"},
    {"language_model_only", "true", kNoImages},
    {"mm_processor_cache_gb", "", kNoImages},
    {"reasoning_parser", "", "how a model marks its reasoning is read from its chat template; quire serve separates it",
     true},
};

// The same for such an option.
Status take_library_option(const LibraryOption& option, const json::Value& value) {
  if (is_neutral(value, option.neutral) || json::dump(value) == option.neutral) return {};
  const std::string name(option.name);
  if (option.refused) return invalid_field(name, {"is not supported: ", option.why, "; leave it out"});
  cli::warn_unused(name, option.why);
  return {};
}

// Warns of an option that changes nothing, unless its value asks for nothing.
Status ignore(const std::string& name, const json::Value& value, const cli::UnusedFlag& flag) {
  const bool is_switch = flag.treatment == cli::Treatment::kIgnoredSwitch;
  if (value.is_bool() != is_switch || !(value.is_bool() || value.is_number())) {
    return invalid_field(name, is_switch ? "must be true or false" : "must be a number");
  }
  if (!is_neutral(value, flag.neutral)) cli::warn_unused(name, flag.why);
  return {};
}

// An option of vLLM's that has no use here: an error, a warning, or nothing if its value asks for nothing. None if it
// is another option.
std::optional<Status> take_unused(const std::string& name, const json::Value& value) {
  for (const ServerFlag& flag : kServerFlags) {
    if (name != flag.name) continue;
    if (!value.is_bool()) return invalid_field(name, "must be true or false");
    if (value.as_bool() == flag.asks) cli::warn_unused(name, flag.why);
    return Status();
  }
  for (const LibraryOption& option : kLibraryOptions) {
    if (name == option.name) return take_library_option(option, value);
  }
  for (const cli::UnusedFlag& flag : cli::unused_flags()) {
    if (flag_of(name) != flag.name) continue;
    if (flag.treatment != cli::Treatment::kRefused) return ignore(name, value, flag);
    if (is_neutral(value, flag.neutral)) return Status();
    return invalid_field(name, {"is not supported: ", flag.why, "; leave it out"});
  }
  return std::nullopt;
}

// The argument that sets an option. A structure is passed as JSON text, which is what its flag takes.
Result<std::string> argument(const std::string& name, const json::Value& value) {
  const std::string flag = flag_of(name);
  switch (value.kind()) {
    case json::Kind::kBool:
      return value.as_bool() ? flag : "--no-" + flag.substr(2);
    case json::Kind::kString:
      return flag + "=" + value.as_string();
    case json::Kind::kArray:
      return invalid_field(name, "must not be a list");
    case json::Kind::kDouble: {
      // 4e9 is as good as 4000000000.
      const double number = value.as_double();
      const bool whole = number == std::floor(number) && std::fabs(number) < 0x1p53;
      return flag + "=" + (whole ? std::to_string(static_cast<int64_t>(number)) : json::dump(value));
    }
    default:
      return flag + "=" + json::dump(value);
  }
}

}  // namespace

Result<llm::Options> read_options(std::string_view text) {
  auto parsed = json::parse(text);
  if (!parsed.ok()) return invalid_argument({"the options are ", parsed.error().message});
  if (!parsed->is_object()) return invalid_argument("the options must be a JSON object");
  llm::Options options;
  CLI::App app;
  app.set_help_flag();
  cli::add_model_flags(app, options);
  std::string task = "auto";
  std::vector<std::string> arguments;
  for (const auto& [name, value] : parsed->as_object()) {
    if (value.is_null()) continue;
    if (name == "model") {
      if (!value.is_string()) return invalid_field("model", "must be a string");
      options.model = value.as_string();
      continue;
    }
    if (name == "task") {
      if (!value.is_string()) return invalid_field("task", "must be a string");
      task = value.as_string();
      continue;
    }
    if (std::optional<Status> taken = take_unused(name, value)) {
      QUIRE_TRY(std::move(*taken));
      continue;
    }
    const CLI::Option* option = app.get_option_no_throw(flag_of(name));
    if (option == nullptr || name.starts_with("no_")) return unknown_option(app, name);
    if (value.is_bool() != (option->get_items_expected_max() == 0)) {
      return invalid_field(name, value.is_bool() ? "must not be true or false" : "must be true or false");
    }
    const bool list = value.is_array() && option->get_items_expected_max() > 1;
    for (const json::Value& item : list ? value.as_array() : json::Array{value}) {
      QUIRE_ASSIGN(std::string one, argument(name, item));
      arguments.push_back(std::move(one));
    }
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 expects them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what());
  }
  QUIRE_TRY(cli::apply_task(task, options));
  QUIRE_TRY(cli::resolve_model_argument(options));
  return options;
}

json::Value options_json() {
  llm::Options options;
  CLI::App app;
  app.set_help_flag();
  cli::add_model_flags(app, options);
  json::Value out{json::Object{}};
  out.set("model", "A folder, a .gguf, a cached name, or nothing for the default model");
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty()) out.set(name_of(option->get_lnames()[0]), option->get_description());
  }
  out.set("task", "What sets runner and convert: auto, generate, embed, classify, score or reward");
  for (const ServerFlag& flag : kServerFlags) out.set(std::string(flag.name), std::string("No effect: ") + flag.why);
  const auto add = [&](const std::string& name, bool refused, const char* why) {
    if (out.find(name) == nullptr) out.set(name, std::string(refused ? "Not supported: " : "No effect: ") + why);
  };
  for (const LibraryOption& option : kLibraryOptions) add(std::string(option.name), option.refused, option.why);
  for (const cli::UnusedFlag& flag : cli::unused_flags()) {
    add(name_of(flag.name), flag.treatment == cli::Treatment::kRefused, flag.why);
  }
  return out;
}

}  // namespace quire::capi
