// SPDX-License-Identifier: Apache-2.0
// Error messages for wrong commands and flags.
#include "cli/usage.h"

#include <algorithm>

#include "base/suggest.h"
#include "cli/command_list.h"

namespace quire::cli {
namespace {

// The innermost command that was parsed.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* found = &app;
  for (;;) {
    const std::vector<CLI::App*> parsed = found->get_subcommands();
    if (parsed.empty()) return *found;
    found = parsed.back();
  }
}

// The flags of a command and of its parents, with their dashes.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options([](const CLI::Option*) { return true; })) {
      if (option->get_group().empty()) continue;  // refused flags of vLLM's are not suggested
      for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
    }
  }
  return out;
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  std::string list;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
    list += (list.empty() ? "" : ", ") + command->get_name();
  }
  const std::string meant = did_you_mean(word, names);
  return full_name(app) + " has no command '" + word + "'" + (meant.empty() ? ": choose one of " + list : meant);
}

}  // namespace

std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> left = app.remaining(true);
  const auto word = std::find_if(left.begin(), left.end(), [](const std::string& a) { return a.rfind('-', 0) != 0; });
  const bool wants_command = !commands_of(command).empty();
  if (wants_command && word != left.end()) return unknown_command(command, *word);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !left.empty()) {
    const std::string& first = left.front();
    if (first.rfind('-', 0) != 0) return "'" + first + "' is an unexpected argument of " + full_name(command);
    const std::string flag = first.substr(0, first.find('='));
    return full_name(command) + " has no flag " + flag + did_you_mean(flag, flags_of(command));
  }
  if (wants_command && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    std::string list;
    for (const CLI::App* one : commands_of(command)) list += (list.empty() ? "" : ", ") + one->get_name();
    return full_name(command) + " needs a command: " + list;
  }
  return error.what();
}

std::string help_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    const auto commands = commands_of(*at);
    const auto found = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* command) { return command->get_name() == word; });
    if (found == commands.end()) break;
    at = *found;
  }
  return full_name(*at) + " --help";
}

}  // namespace quire::cli
