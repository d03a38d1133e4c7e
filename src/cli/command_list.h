// SPDX-License-Identifier: Apache-2.0
// The commands and their flags as plain lists, for what is made from them: completions, the manual, suggestions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace quire::cli {

// A flag, or a positional argument if it has no names.
struct FlagInfo {
  const CLI::Option* option = nullptr;
  std::vector<std::string> names;  // with their dashes: "-h", "--help"; "--history", "--no-history"
  bool takes_value = false;
  std::string kind;                // of the value: "FILE", "DIR", "MODEL", "INT", "TEXT"...
  std::vector<std::string> words;  // values to choose from; with FILE, DIR and MODEL others are valid, too
};

struct CommandInfo {
  const CLI::App* app = nullptr;
  std::vector<std::string> path;  // {"bench", "serve"}; empty for the program
  std::vector<FlagInfo> flags;    // its own, and those of its parents, which it accepts as well
  std::vector<FlagInfo> arguments;
};

// The program and all of its commands, each before its own commands. Hidden flags are left out.
std::vector<CommandInfo> list_commands(const CLI::App& program);

// The commands directly below one.
std::vector<const CLI::App*> commands_of(const CLI::App& app);
// The type of an argument that is the name of a command (see flags.h); call it when all commands are there.
std::string command_value(const CLI::App& app);
// "quire bench serve".
std::string full_name(const CLI::App& app);
// The kind of value and the words of an option, from CLI11's name of its type: "TEXT:{auto,cpu}", "INT:INT in [0 - 9]".
std::string value_kind(const CLI::Option& option);
std::vector<std::string> value_words(const CLI::Option& option);

}  // namespace quire::cli
