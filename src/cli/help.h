// SPDX-License-Identifier: Apache-2.0
// The layout of --help: flags in groups, their descriptions wrapped to the width of the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace quire::cli {

std::shared_ptr<CLI::Formatter> make_help_formatter();

// "--history,--no-history" or "--port INT"; for an argument its name.
std::string flag_label(const CLI::Option& option, bool positional);
// The description of a flag with its range, default and variable.
std::string flag_text(const CLI::Option& option);

// Describes the value of a flag: "a whole number from 0 to 65535", "one of debug, info"; "" if any text is valid.
std::string wanted_value(const CLI::Option& option);

}  // namespace quire::cli
