// SPDX-License-Identifier: Apache-2.0
// What a wrong command line says: one sentence, and what the user most likely meant.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace quire::cli {

// The sentence for a command line that CLI11 refused. `app` is the whole program, after parsing.
std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error);

// "quire bench serve --help": the help of the innermost command that the arguments name.
std::string help_command(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace quire::cli
