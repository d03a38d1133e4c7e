// SPDX-License-Identifier: Apache-2.0
// QUIRE_* environment variables as flags: priority, ignored variables, and error messages.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::cli {

// Reads the variables that set flags. CLI11 could read them itself, but does so for every subcommand, so that an
// invalid variable of another command would stop the one that was called. So hide() removes the names from all options
// while parsing, and apply() sets the flags of the chosen command that the command line left out. Lives as long
// as the App; used by one thread.
class Environment {
 public:
  // Takes the names from all options of the program; called once, when all commands are there.
  void hide(CLI::App& app);
  // Sets the options of one command (not of its subcommands) that have no value yet. The Error names the variable, its
  // value and the expected kind of value. Variables that Kubernetes sets for a Service are ignored.
  Status apply(CLI::App& command);
  // One sentence for each variable that was ignored or is probably misspelt.
  std::vector<std::string> warnings() const;
  // Restores the names, for --help.
  void restore();

 private:
  std::map<CLI::Option*, std::string> names_;
  std::vector<std::string> service_variables_;  // that were ignored: "QUIRE_PORT=tcp://10.0.0.1:80"
};

// Whether a variable and its value look like those that Kubernetes sets in each container for a Service of that name:
// QUIRE_SERVICE_HOST, QUIRE_PORT=tcp://10.0.0.1:80, QUIRE_PORT_80_TCP_ADDR and so on.
bool is_service_variable(std::string_view name, std::string_view value);

// " (from QUIRE_MAX_MODEL_LEN in the environment)" if the sentence is about a flag that this variable set; else "".
std::string environment_source(const std::string& sentence);

}  // namespace quire::cli
