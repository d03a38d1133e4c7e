// SPDX-License-Identifier: Apache-2.0
// Shell completions, made from the tables of flags.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace quire::cli {

// The scripts that complete quire's commands, flags and values. Cached models are looked up when the user presses Tab,
// with `quire completions models`.
std::string bash_completions(const CLI::App& program);
std::string zsh_completions(const CLI::App& program);
std::string fish_completions(const CLI::App& program);

// Adds the command.
void add_completions(CLI::App& app, int& exit_code);

}  // namespace quire::cli
