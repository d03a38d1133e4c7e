// SPDX-License-Identifier: Apache-2.0
// Formats --help. CLI11 2.1 does not wrap lines, so this does.
#include "cli/help.h"

#include <unistd.h>

#include <algorithm>

#include "cli/command_list.h"
#include "cli/terminal.h"

namespace quire::cli {
namespace {

constexpr int kNameColumns = 32;     // where descriptions begin
constexpr int kNarrowIndent = 8;     // where they begin on a narrow terminal, on the next line
constexpr int kNarrowColumns = 64;   // a narrower terminal is narrow
constexpr int kWidestColumns = 120;  // longer lines are hard to read

int help_columns() {
  return std::min(output_columns(STDOUT_FILENO), kWidestColumns);
}

// A name in the left column and its description in the right one.
std::string entry(const std::string& name, const std::string& description) {
  const int columns = help_columns();
  const bool narrow = columns < kNarrowColumns;
  const int indent = narrow ? kNarrowIndent : kNameColumns;
  std::string out = "  " + name;
  if (description.empty()) return out + "\n";
  if (narrow || static_cast<int>(out.size()) + 2 > indent) {
    out += "\n" + std::string(static_cast<size_t>(indent), ' ');
  } else {
    out.append(static_cast<size_t>(indent) - out.size(), ' ');
  }
  return out + wrap(description, columns, indent, indent) + "\n";
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(flag_label(*option, is_positional), flag_text(*option));
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_display_name(true), command->get_description());
  }

  std::string make_description(const CLI::App* app) const override {
    return wrap(app->get_description(), help_columns(), 0, 0) + "\n";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    while (!usage.empty() && usage.back() == '\n') usage.pop_back();
    return wrap(usage, help_columns(), 7, 0) + "\n";
  }

  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = app->get_footer();
    if (footer.empty()) return "";
    std::string out;
    for (size_t at = 0; at <= footer.size();) {
      const size_t end = std::min(footer.find('\n', at), footer.size());
      const std::string line = footer.substr(at, end - at);
      // The continuation line of an example or a list is indented further than the example.
      const size_t inner = std::min(line.find_first_not_of(' '), line.size());
      out += wrap(line, help_columns(), inner == 0 ? 0 : static_cast<int>(inner) + 4, 0) + "\n";
      at = end + 1;
    }
    return out;
  }
};

}  // namespace

std::shared_ptr<CLI::Formatter> make_help_formatter() {
  return std::make_shared<HelpFormatter>();
}

std::string flag_label(const CLI::Option& option, bool positional) {
  std::string label = positional ? option.get_name(true, false) : option.get_name(false, true);
  for (const char* value : {"{false}", "{true}"}) label = CLI::detail::find_and_replace(label, value, "");
  if (positional || option.get_expected_max() == 0) return label;
  const std::string& own_text = option.get_option_text();
  const std::string kind = own_text.empty() ? value_kind(option) : own_text;
  if (!kind.empty()) label += " " + kind;
  if (option.get_expected_max() == CLI::detail::expected_max_vector_size) label += " ...";
  return label;
}

std::string flag_text(const CLI::Option& option) {
  const bool takes_value = option.get_expected_max() != 0;
  std::string text = option.get_description();
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : " ") + more; };
  if (takes_value && option.get_type_name().find(" in [") != std::string::npos) add("(" + wanted_value(option) + ")");
  if (takes_value && !option.get_default_str().empty()) add("(default " + option.get_default_str() + ")");
  if (option.get_required()) add("(required)");
  if (!option.get_envname().empty()) add("(Env:" + option.get_envname() + ")");
  return text;
}

std::string wanted_value(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "true or false";
  const std::string type = option.get_type_name();
  if (const auto words = value_words(option); !words.empty()) return "one of " + CLI::detail::join(words, ", ");
  const std::string kind = value_kind(option);
  const std::string number = kind == "INT" || kind == "UINT" ? "a whole number" : kind == "FLOAT" ? "a number" : "";
  if (number.empty()) return "";
  if (const size_t open = type.find(" in ["); open != std::string::npos) {
    const size_t begin = open + 5;
    const std::string range = type.substr(begin, type.find(']', begin) - begin);
    return number + " from " + CLI::detail::find_and_replace(range, " - ", " to ");
  }
  return type.find("POSITIVE") != std::string::npos ? number + " above 0" : number;
}

}  // namespace quire::cli
