// SPDX-License-Identifier: Apache-2.0
// How --help looks: flags in groups, their descriptions wrapped to the terminal's width.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace quire::cli {

std::shared_ptr<CLI::Formatter> make_help_formatter();

// What a flag's value must be, in words: "a whole number from 0 to 65535", "one of debug, info, warning, error".
// "" where any text will do.
std::string wanted_value(const CLI::Option& option);

}  // namespace quire::cli
