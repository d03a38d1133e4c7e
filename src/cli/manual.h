// SPDX-License-Identifier: Apache-2.0
// The manual pages, made from the tables of flags.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/command_list.h"
#include "cli/environment.h"

namespace quire::cli {

// One page in roff with the man macros: the contents of `quire COMMAND --help`, for man.
std::string manual_page(const CommandInfo& command);
// "quire-bench-serve": the page's name, and with ".1" its file.
std::string page_name(const CLI::App& command);

// Adds the command. Pages show the variables of flags, which `environment` keeps while the command line is parsed.
void add_man(CLI::App& app, Environment& environment, int& exit_code);

}  // namespace quire::cli
