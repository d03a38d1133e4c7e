// SPDX-License-Identifier: Apache-2.0
// Turns a JSON object into command line flags, which have names, types and checks already.
#include "capi/load.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "base/suggest.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/refused_flags.h"

namespace quire::capi {
namespace {

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

Failure unknown_option(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known = {"model"};
  for (const CLI::Option* option : app.get_options()) {
    std::string other = option->get_lnames().empty() ? "" : option->get_lnames()[0];
    std::replace(other.begin(), other.end(), '-', '_');
    known.push_back(std::move(other));
  }
  const std::string meant = did_you_mean(name, known);
  return invalid_field(
      name, {"is no option of a model", (meant.empty() ? "; docs/python.md says where to find the list" : meant)});
}

// Whether a value asks for nothing: false, or what the flag is anyway.
bool is_neutral(const json::Value& value, std::string_view neutral) {
  if (value.is_bool()) return !value.as_bool();
  if (neutral.empty()) return false;
  if (value.is_string()) return value.as_string() == neutral;
  const auto number = json::parse(neutral);
  return number.ok() && value.is_number() && number->is_number() && value.as_double() == number->as_double();
}

// An option of vLLM's that is refused, unless its value asks for nothing; nothing if it is not one of those.
std::optional<Status> check_refused(const std::string& name, const json::Value& value) {
  if (name == "disable_log_stats" && value.is_bool() && value.as_bool()) return Status();  // a library logs none
  for (const cli::RefusedFlag& flag : cli::refused_flags()) {
    if (flag_of(name) != flag.name) continue;
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
  std::vector<std::string> arguments;
  for (const auto& [name, value] : parsed->as_object()) {
    if (value.is_null()) continue;
    if (name == "model") {
      if (!value.is_string()) return invalid_field("model", "must be a string");
      options.model = value.as_string();
      continue;
    }
    if (const std::optional<Status> refused = check_refused(name, value)) {
      QUIRE_TRY(*refused);
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
  QUIRE_TRY(cli::resolve_model_argument(options));
  return options;
}

}  // namespace quire::capi
