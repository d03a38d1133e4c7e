// SPDX-License-Identifier: Apache-2.0
// quire man: manual pages in roff.
#include "cli/manual.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/help.h"

namespace quire::cli {
namespace {

// Text that roff prints as it is.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  // A line that begins with a dot would be a request.
  return !out.empty() && out[0] == '.' ? "\\&" + out : out;
}

std::string bold(const std::string& text) {
  return "\\fB" + roff(text) + "\\fR";
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string roff_entry(const std::string& label, const std::string& text) {
  return ".TP\n" + label + "\n" + (text.empty() ? "\\&" : roff(text)) + "\n";
}

// "--host TEXT": names in bold, what to write in their place in italics.
std::string flag_entry(const CLI::Option& option) {
  const std::string label = flag_label(option, false);
  const size_t space = std::min(label.find(' '), label.size());
  std::string styled = bold(CLI::detail::find_and_replace(label.substr(0, space), ",", ", "));
  if (space < label.size()) styled += " \\fI" + roff(label.substr(space + 1)) + "\\fR";
  return roff_entry(styled, flag_text(option));
}

std::string roff_flags(const CommandInfo& command) {
  std::string out;
  for (const std::string& group : command.app->get_groups()) {
    std::string entries;
    for (const FlagInfo& flag : command.flags) {
      const auto own = command.app->get_options([&](const CLI::Option* option) { return option == flag.option; });
      if (!own.empty() && flag.option->get_group() == group) entries += flag_entry(*flag.option);
    }
    if (entries.empty()) continue;
    out += group == "Options" ? ".SH OPTIONS\n" : (out.empty() ? ".SH OPTIONS\n" : "") + (".SS " + group + "\n");
    out += entries;
  }
  return out;
}

// Indented lines of a footer are commands to copy.
std::string notes(const std::string& footer) {
  std::string out;
  bool example = false;
  for (const std::string& line : CLI::detail::split(footer, '\n')) {
    const size_t inner = std::min(line.find_first_not_of(' '), line.size());
    const bool indented = inner > 0;
    if (indented != example) out += indented ? ".RS\n.nf\n" : ".fi\n.RE\n";
    if (!indented && !out.empty()) out += ".PP\n";
    example = indented;
    out += roff(line.substr(inner)) + "\n";
  }
  return out + (example ? ".fi\n.RE\n" : "");
}

const CommandInfo* find_command(const std::vector<CommandInfo>& commands, const std::vector<std::string>& path) {
  const auto found =
      std::find_if(commands.begin(), commands.end(), [&](const CommandInfo& command) { return command.path == path; });
  return found == commands.end() ? nullptr : &*found;
}

Status write_pages(const std::vector<CommandInfo>& commands, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return unavailable({"cannot create the folder '", folder.string(), "': ", error.message()});
  for (const CommandInfo& command : commands) {
    QUIRE_TRY(write_file(folder / (page_name(*command.app) + ".1"), manual_page(command)));
  }
  return {};
}

struct ManFlags {
  std::vector<std::string> command;
  std::string output_dir;
};

int man(const CLI::App& app, const ManFlags& flags) {
  const auto commands = list_commands(app);
  if (!flags.output_dir.empty()) {
    const Status status = write_pages(commands, flags.output_dir);
    return status.ok() ? 0 : report(status.error());
  }
  const CommandInfo* command = find_command(commands, flags.command);
  if (command == nullptr) {
    return report(invalid_argument(
        {"quire has no command '", CLI::detail::join(flags.command, " "), "': quire --help lists the commands"}));
  }
  const std::string page = manual_page(*command);
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : kExitFailure;
}

}  // namespace

std::string page_name(const CLI::App& command) {
  return CLI::detail::find_and_replace(full_name(command), " ", "-");
}

std::string manual_page(const CommandInfo& command) {
  const CLI::App& app = *command.app;
  const std::string name = page_name(app);
  std::string out = ".\\\" Written by `quire man`.\n.TH " + roff(upper(name)) +
                    " 1 \"\" \"quire " QUIRE_VERSION
                    "\" \"User Commands\"\n.ad l\n.nh\n";  // neither adjusted nor hyphenated
  std::string about = app.get_description();
  if (const std::string start = "quire: "; about.starts_with(start)) about.erase(0, start.size());
  out += ".SH NAME\n" + roff(name) + " \\- " + roff(about) + "\n";
  out += ".SH SYNOPSIS\n" + bold(full_name(app)) + " [OPTIONS]";
  for (const FlagInfo& argument : command.arguments) {
    const std::string& label = flag_label(*argument.option, true);
    out += argument.option->get_required() ? " " + roff(label) : " [" + roff(label) + "]";
  }
  const auto inner = commands_of(app);
  out += inner.empty() ? "\n" : " COMMAND\n";
  if (!inner.empty()) {
    out += ".SH COMMANDS\n";
    for (const CLI::App* one : inner) out += roff_entry(bold(page_name(*one)) + "(1)", one->get_description());
  }
  if (!command.arguments.empty()) out += ".SH ARGUMENTS\n";
  for (const FlagInfo& argument : command.arguments) {
    out += roff_entry("\\fI" + roff(flag_label(*argument.option, true)) + "\\fR", flag_text(*argument.option));
  }
  out += roff_flags(command);
  if (!app.get_footer().empty()) out += ".SH NOTES\n" + notes(app.get_footer());
  out +=
      ".SH EXIT STATUS\n0: success; 1: failure; 2: the command line or the request was wrong; "
      "130: stopped by Ctrl\\-C.\n";
  if (app.get_parent() != nullptr) out += ".SH SEE ALSO\n" + bold(page_name(*app.get_parent())) + "(1)\n";
  return out;
}

void add_man(CLI::App& app, Environment& environment, int& exit_code) {
  auto flags = std::make_shared<ManFlags>();
  CLI::App* command = app.add_subcommand("man", "Print a manual page: quire man serve | man -l -");
  command->add_option("COMMAND", flags->command, "A command such as serve or bench serve; without one, quire itself")
      ->type_name(command_value(app));
  command->add_option("--output-dir", flags->output_dir, "Write the pages of all commands into this folder")
      ->envname(env_name("--output-dir"))
      ->type_name(kFolder);
  command->callback([&app, &environment, flags, &exit_code] {
    environment.restore();
    exit_code = man(app, *flags);
  });
}

}  // namespace quire::cli
