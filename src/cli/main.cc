// SPDX-License-Identifier: Apache-2.0
// The program as a function: finds the subcommand and returns its exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/log.h"
#include "cli/command.h"
#include "cli/completions.h"
#include "cli/config_file.h"
#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/manual.h"
#include "cli/program.h"
#include "cli/serve_flags.h"
#include "cli/usage.h"

namespace {

using namespace quire::cli;

void add_commands(CLI::App& app, Environment& environment, int& exit_code) {
  add_serve(app, exit_code);
  add_run(app, exit_code);
  add_chat(app, exit_code);
  add_tokenize(app, exit_code);
  add_embed(app, exit_code);
  add_inspect(app, exit_code);
  add_devices(app, exit_code);
  add_selftest(app, exit_code);
  add_pull(app, exit_code);
  add_list(app, exit_code);
  add_show(app, exit_code);
  add_rm(app, exit_code);
  add_ps(app, exit_code);
  add_bench(app, exit_code);
  add_verify(app, exit_code);
  add_replay(app, exit_code);
  add_schema(app, exit_code);
  add_completions(app, exit_code);
  add_man(app, environment, exit_code);
  // `quire help COMMAND` becomes `quire COMMAND --help` before parsing; this is its entry in the list of commands.
  CLI::App* help = app.add_subcommand("help", "Show the flags of a command: quire help serve");
  help->add_option("COMMAND", "A command such as serve or bench serve")->type_name(command_value(app));
  app.add_subcommand("version", "Show the version")->callback([] { std::cout << "quire " QUIRE_VERSION "\n"; });
}

// Environment variables set what the command line left out, only for the command that was called.
void fill_from_environment(CLI::App& app, Environment& environment) {
  const auto apply = [&environment](CLI::App& command) {
    if (const auto status = environment.apply(command); !status.ok()) {
      throw CLI::ValidationError(status.error().message);
    }
  };
  std::vector<CLI::App*> commands = app.get_subcommands([](CLI::App*) { return true; });
  for (size_t i = 0; i < commands.size(); ++i) {
    CLI::App* command = commands[i];
    const auto inner = command->get_subcommands([](CLI::App*) { return true; });
    commands.insert(commands.end(), inner.begin(), inner.end());
    if (inner.empty()) command->parse_complete_callback([command, apply] { apply(*command); });
  }
}

int run(int argc, const char* const* argv) {
  CLI::App app{"quire: run language models. The same request gives the same bits, alone or in any batch.", "quire"};
  app.formatter(make_help_formatter());
  app.set_version_flag("-v,--version", "quire " QUIRE_VERSION, "Show the version");
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.footer(
      "MODEL is a folder, a .gguf file, a cached name, or omitted for the default model, SmolLM2-135M-Instruct.\n"
      "Environment variables set flags, such as QUIRE_MAX_MODEL_LEN for --max-model-len; the command line has "
      "priority.\n"
      "Flags without a variable: --help, --version, serve --config, pull --include, bench kernels --json and bench "
      "lengths --max-num-seqs.\n"
      "quire help COMMAND, or quire COMMAND --help, lists the flags of a command.");
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "debug, info, warning or error, to standard error")
      ->envname("QUIRE_LOG_LEVEL")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));

  int exit_code = 0;
  Environment environment;
  add_commands(app, environment, exit_code);
  check_numbers(app);
  environment.hide(app);
  fill_from_environment(app, environment);
  app.parse_complete_callback([&] {
    if (const auto status = environment.apply(app); !status.ok()) {
      throw CLI::ValidationError(status.error().message);
    }
    // The log of a server is wanted; other commands should print only their output.
    const bool chosen = app.get_option("--log-level")->count() > 0;
    quire::init_logging(!chosen && app.got_subcommand("serve") ? "info" : log_level.c_str());
    for (const std::string& warning : environment.warnings()) quire::log_warn("{}", warning);
  });

  std::vector<std::string> arguments = normalise_arguments(argc, argv);
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  if (!arguments.empty() && arguments[0] == "serve") {
    auto expanded = with_config_file(std::move(arguments));
    if (expanded.ok()) expanded = spread_lists(std::move(*expanded));
    if (!expanded.ok()) return report(expanded.error());
    arguments = std::move(*expanded);
  }
  arguments = join_members(std::move(arguments));
  const std::string hint = help_command(app, arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 expects them reversed
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    environment.restore();
    // --help and --version end here, but `quire help frobnicate` is an error although it ends in --help.
    const bool left = !app.remaining(true).empty();
    if (error.get_exit_code() == 0 && !left) return app.exit(error);
    std::cerr << "quire: " << describe_usage_error(app, error) << "\nTry: " << hint << "\n";
    return kExitUsage;
  }
  if (app.get_subcommands().empty()) {
    environment.restore();
    std::cout << app.help();
    return kExitUsage;
  }
  return exit_code;
}

// A full disk shows when the rest is written. A reader that left, as `head` does, is no failure.
int finish_output(int exit_code) {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written || errno == EPIPE || exit_code != 0) return exit_code;
  std::cerr << "quire: cannot write to standard output";
  if (errno != 0) std::cerr << " (" << std::strerror(errno) << ")";
  std::cerr << "\n";
  return kExitFailure;
}

}  // namespace

int quire::cli::run_program(int argc, const char* const* argv) {
  return finish_output(run(argc, argv));
}
