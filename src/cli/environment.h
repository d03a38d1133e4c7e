// SPDX-License-Identifier: Apache-2.0
// QUIRE_* variables as flags: who wins, what is ignored, and what a bad one says.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::cli {

// Reads the variables that stand for flags. CLI11 would read them itself, but for every subcommand, so that a variable
// which is wrong for a command that nobody called would stop the one that was called. So this class takes the names
// off all options for the time of parsing, and apply() gives the chosen command the variables of those flags that the
// command line left out. Lives as long as the App; one thread.
class Environment {
 public:
  explicit Environment(CLI::App& app);

  // Fills in the options of one command (not of its subcommands) that have no value yet. The Error names the variable,
  // its value and what it should be. Variables that Kubernetes sets for a Service are ignored.
  Status apply(CLI::App& command);
  // One sentence for each thing that a user should know: variables that were ignored, and likely misspellings.
  std::vector<std::string> warnings() const;
  // Puts the names back, for --help.
  void restore();

 private:
  std::map<CLI::Option*, std::string> names_;
  std::vector<std::string> service_variables_;  // ignored, "QUIRE_PORT=tcp://10.0.0.1:80"
};

// Whether a variable and its value look like what Kubernetes sets in each container for a Service of that name:
// QUIRE_SERVICE_HOST, QUIRE_PORT=tcp://10.0.0.1:80, QUIRE_PORT_80_TCP_ADDR and so on.
bool is_service_variable(std::string_view name, std::string_view value);

// " (from QUIRE_MAX_MODEL_LEN in the environment)" when the sentence is about a flag whose value came from there.
std::string environment_source(const std::string& sentence);

}  // namespace quire::cli
