// SPDX-License-Identifier: Apache-2.0
// Applies QUIRE_* variables to the flags of a command.
#include "cli/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/env.h"
#include "base/suggest.h"
#include "cli/help.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): by POSIX, the program declares it

namespace quire::cli {
namespace {

// Variables that quire reads in addition to those of flags, and prefixes of such variables.
constexpr std::string_view kOwnVariables[] = {"QUIRE_HOME",
                                              "QUIRE_LIBCUDA",
                                              "QUIRE_LIBCUBLASLT",
                                              "QUIRE_LIBMPI",
                                              "QUIRE_LIBNCCL",
                                              "QUIRE_ATTENTION_FIND",
                                              "QUIRE_ALLOW_LONG_MAX_MODEL_LEN",
                                              "QUIRE_EMULATOR_ORDER",
                                              "QUIRE_BIN_DIR",
                                              "QUIRE_SHARED"};
constexpr std::string_view kOwnPrefixes[] = {"QUIRE_CUDA_", "QUIRE_TEST_", "QUIRE_CPU_"};

// A flag whose value came from the environment.
struct Source {
  std::string flag;  // "max-model-len"
  std::string variable;
};
std::vector<Source>& sources() {
  static std::vector<Source> list;
  return list;
}

bool is_own(std::string_view name) {
  return std::find(std::begin(kOwnVariables), std::end(kOwnVariables), name) != std::end(kOwnVariables) ||
         std::any_of(std::begin(kOwnPrefixes), std::end(kOwnPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "tcp://10.0.0.1:80", "udp://[fd00::1]:53".
bool is_service_address(std::string_view value) {
  for (const std::string_view scheme : {"tcp://", "udp://", "sctp://"}) {
    if (!value.starts_with(scheme)) continue;
    const size_t colon = value.rfind(':');
    return colon > scheme.size() && all_digits(value.substr(colon + 1));
  }
  return false;
}

// Ends with _PORT_80_TCP, or with that followed by _PROTO, _PORT or _ADDR.
bool is_service_port_name(std::string_view name) {
  for (const std::string_view tail : {"_PROTO", "_PORT", "_ADDR"}) {
    if (name.ends_with(tail)) name.remove_suffix(tail.size());
  }
  for (const std::string_view protocol : {"_TCP", "_UDP", "_SCTP"}) {
    if (!name.ends_with(protocol)) continue;
    name.remove_suffix(protocol.size());
    const size_t underscore = name.rfind('_');
    return underscore != std::string_view::npos && all_digits(name.substr(underscore + 1)) &&
           name.substr(0, underscore).ends_with("_PORT");
  }
  return false;
}

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : option.get_lnames()[0];
}

// Whether the text has this word. A flag that is one short word ("port", "n") only counts with its dashes or at the
// beginning, since the word may mean something else.
bool mentions(const std::string& text, const std::string& word) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (end < text.size() && (is_part(text[end]) || text[end] == '-')) continue;
    if (at > 0 && is_part(text[at - 1])) continue;
    const bool dashes = at >= 2 && text.compare(at - 2, 2, "--") == 0;
    if (dashes || at == 0 || word.find_first_of("-_") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

bool is_service_variable(std::string_view name, std::string_view value) {
  if (name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") ||
      name.find("_SERVICE_PORT_") != std::string_view::npos) {
    return true;
  }
  if (name.ends_with("_PORT") && is_service_address(value)) return true;
  return is_service_port_name(name);
}

std::string environment_source(const std::string& sentence) {
  for (const Source& source : sources()) {
    std::string snake = source.flag;
    std::replace(snake.begin(), snake.end(), '-', '_');
    if (!mentions(sentence, source.flag) && !mentions(sentence, snake)) continue;
    return " (from " + source.variable + " in the environment)";
  }
  return "";
}

void Environment::hide(CLI::App& app) {
  std::vector<CLI::App*> apps = {&app};
  for (size_t i = 0; i < apps.size(); ++i) {
    for (CLI::Option* option : apps[i]->get_options()) {
      if (option->get_envname().empty()) continue;
      names_[option] = option->get_envname();
      option->envname("");
    }
    for (CLI::App* command : apps[i]->get_subcommands([](CLI::App*) { return true; })) apps.push_back(command);
  }
}

void Environment::restore() {
  for (const auto& [option, name] : names_) option->envname(name);
}

Status Environment::apply(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const auto named = names_.find(option);
    if (named == names_.end()) continue;
    const std::string& variable = named->second;
    const auto value = env(variable.c_str());
    if (!value) continue;
    if (is_service_variable(variable, *value)) {
      service_variables_.push_back(variable + "=" + *value);
      continue;
    }
    if (option->count() > 0) continue;  // the command line has priority
    try {
      option->add_result(*value);
      option->run_callback();
    } catch (const CLI::ParseError&) {
      const std::string wanted = wanted_value(*option);
      return invalid_argument({variable, " in the environment is '", *value, "', which ",
                               (option->nonpositional() ? "--" + long_name(*option) : option->get_name()),
                               " does not accept", (wanted.empty() ? "" : ": it must be " + wanted)});
    }
    if (option->nonpositional()) sources().push_back({long_name(*option), variable});
  }
  return {};
}

std::vector<std::string> Environment::warnings() const {
  std::vector<std::string> out;
  if (!service_variables_.empty()) {
    out.push_back(service_variables_[0] +
                  " is ignored: Kubernetes sets it for a Service of that name; enableServiceLinks: false in the pod's "
                  "spec prevents this");
  }
  std::set<std::string> known_set(std::begin(kOwnVariables), std::end(kOwnVariables));
  for (const auto& [option, name] : names_) known_set.insert(name);
  const std::vector<std::string> known(known_set.begin(), known_set.end());
  constexpr std::string_view kPrefix = "QUIRE_";
  std::vector<std::string> bare;  // without the prefix, which does not count for similarity
  for (const std::string& name : known) bare.push_back(name.substr(kPrefix.size()));
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair = *entry;
    const size_t equal = pair.find('=');
    if (equal == std::string_view::npos || !pair.starts_with(kPrefix)) continue;
    const std::string name(pair.substr(0, equal));
    if (known_set.count(name) > 0 || is_own(name) || is_service_variable(name, pair.substr(equal + 1))) continue;
    const auto meant = closest_word(std::string_view(name).substr(kPrefix.size()), bare, false);
    if (!meant) continue;
    out.push_back(name + " is ignored: quire has no such variable; did you mean " + std::string(kPrefix) + *meant +
                  "?");
  }
  return out;
}

}  // namespace quire::cli
