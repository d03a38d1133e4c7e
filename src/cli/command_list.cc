// SPDX-License-Identifier: Apache-2.0
// Reads commands and flags back from CLI11.
#include "cli/command_list.h"

#include <algorithm>

namespace quire::cli {
namespace {

FlagInfo describe(const CLI::Option& option, bool positional) {
  FlagInfo flag;
  flag.option = &option;
  flag.takes_value = option.get_expected_max() != 0;
  if (!positional) {
    for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  }
  if (flag.takes_value) {
    flag.kind = value_kind(option);
    flag.words = value_words(option);
  }
  return flag;
}

bool has_flag(const CommandInfo& command, const std::string& name) {
  return std::any_of(command.flags.begin(), command.flags.end(), [&](const FlagInfo& flag) {
    return std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end();
  });
}

void add_command(const CLI::App& app, std::vector<std::string> path, std::vector<CommandInfo>& out) {
  CommandInfo command;
  command.app = &app;
  command.path = std::move(path);
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options([](const CLI::Option*) { return true; })) {
      if (option->get_group().empty()) continue;
      if (at == &app && option->get_positional()) command.arguments.push_back(describe(*option, true));
      if (!option->nonpositional()) continue;
      FlagInfo flag = describe(*option, false);
      if (!has_flag(command, flag.names.back())) command.flags.push_back(std::move(flag));
    }
  }
  const std::vector<std::string> here = command.path;
  out.push_back(std::move(command));
  for (const CLI::App* inner : commands_of(app)) {
    std::vector<std::string> inner_path = here;
    inner_path.push_back(inner->get_name());
    add_command(*inner, std::move(inner_path), out);
  }
}

}  // namespace

std::vector<CommandInfo> list_commands(const CLI::App& program) {
  std::vector<CommandInfo> out;
  add_command(program, {}, out);
  return out;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

std::string command_value(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return "TEXT:{" + CLI::detail::join(names, ",") + "}";
}

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

std::string value_kind(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find_first_of(":{"));
}

std::vector<std::string> value_words(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  if (open == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, type.find('}', open) - open - 1), ',');
}

}  // namespace quire::cli
