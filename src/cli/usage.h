// SPDX-License-Identifier: Apache-2.0
// Messages for a wrong command line: one sentence, and what the user probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace quire::cli {

// Makes all flags of numbers refuse what is no decimal number or is out of range of the type. CLI11 would take the
// nearest number that there is, 010 for eight, and an empty value for zero.
void check_numbers(CLI::App& app);

// The sentence for a command line that CLI11 rejected. `app` is the whole program, after parsing.
std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error);

// "quire bench serve --help": the help of the innermost command in the arguments.
std::string help_command(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace quire::cli
