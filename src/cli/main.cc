// SPDX-License-Identifier: Apache-2.0
// quire: the program. Finds the subcommand and gives its exit code.
#include <CLI/CLI.hpp>
#include <iostream>

#include "base/env.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/serve_flags.h"

int main(int argc, char** argv) {
  using namespace quire::cli;
  CLI::App app{"quire: run language models. The same request gives the same bits, alone or in a crowd.", "quire"};
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.get_formatter()->column_width(34);
  app.footer(
      "MODEL is a folder, a .gguf file, a cached name, or left out: the default model, SmolLM2-135M-Instruct.\n"
      "Each flag has an environment variable: QUIRE_MAX_MODEL_LEN for --max-model-len.\n"
      "quire COMMAND --help tells more of a command.");
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "debug, info, warning or error, to standard error")
      ->envname("QUIRE_LOG_LEVEL")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.parse_complete_callback([&] {
    // A server's log is its face; a command's output should stand alone.
    const bool chosen = app.get_option("--log-level")->count() > 0;
    quire::init_logging(!chosen && app.got_subcommand("serve") ? "info" : log_level.c_str());
  });

  int exit_code = 0;
  add_serve(app, exit_code);
  add_run(app, exit_code);
  add_chat(app, exit_code);
  add_tokenize(app, exit_code);
  add_inspect(app, exit_code);
  add_devices(app, exit_code);
  add_selftest(app, exit_code);
  add_pull(app, exit_code);
  add_bench(app, exit_code);
  add_schema(app, exit_code);

  std::vector<std::string> arguments = normalise_arguments(argc, argv);
  if (!arguments.empty() && arguments[0] == "serve") {
    auto expanded = with_config_file(std::move(arguments));
    if (!expanded.ok()) return report(expanded.error());
    arguments = std::move(*expanded);
  }
  std::string hint = "quire --help";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!arguments.empty() && arguments[0] == command->get_name()) hint = "quire " + arguments[0] + " --help";
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::cerr << "quire: " << error.what() << "\nTry: " << hint << "\n";
    return kExitUsage;
  }
  if (app.get_subcommands().empty()) {
    std::cout << app.help();
    return kExitUsage;
  }
  return exit_code;
}
