// SPDX-License-Identifier: Apache-2.0
// Error messages for wrong commands and flags.
#include "cli/usage.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "base/suggest.h"
#include "cli/command_list.h"
#include "cli/help.h"

namespace quire::cli {
namespace {

// The innermost command that was parsed.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* found = &app;
  for (;;) {
    const std::vector<CLI::App*> parsed = found->get_subcommands();
    if (parsed.empty()) return *found;
    found = parsed.back();
  }
}

// The flags of a command and of its parents, with their dashes.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options([](const CLI::Option*) { return true; })) {
      if (option->get_group().empty()) continue;  // refused flags of vLLM's are not suggested
      for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
    }
  }
  return out;
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  std::string list;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
    list += (list.empty() ? "" : ", ") + command->get_name();
  }
  const std::string meant = did_you_mean(word, names);
  return full_name(app) + " has no command '" + word + "'" + (meant.empty() ? ": choose one of " + list : meant);
}

template <typename T>
bool is_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// What is wrong with the text of a number; "" if nothing is. Whole numbers lose their leading zeros and plus sign.
std::string check_number(const std::string& kind, std::string& text) {
  text = CLI::detail::trim(text);
  if (kind == "FLOAT") {
    char* end = nullptr;
    std::strtod(text.c_str(), &end);
    return text.empty() || *end != '\0' || text.find_first_of("xX") != std::string::npos ? "it is no number" : "";
  }
  const bool minus = text.rfind('-', 0) == 0;
  size_t first = text.empty() || (text[0] != '-' && text[0] != '+') ? 0 : 1;
  while (first + 1 < text.size() && text[first] == '0') ++first;
  const std::string plain = (minus ? "-" : "") + text.substr(first);
  const bool whole = kind == "UINT" ? is_whole<uint64_t>(plain) : is_whole<int64_t>(plain);
  if (whole) text = plain;
  return whole ? "" : "it is no whole number";
}

// "--max-tokens is 'abc'; it must be a whole number", for a value that CLI11 rejected with "--max-tokens: ..." or
// "Could not convert: --max-tokens = abc"; "" if the message is not about a flag's only value.
std::string unsuitable_value(const CLI::App& command, const std::string& message) {
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options([](const CLI::Option*) { return true; })) {
      const std::string name = option->get_name();
      if (!message.starts_with(name + ": ") && message.find(": " + name + " = ") == std::string::npos) continue;
      const std::string wanted = wanted_value(*option);
      if (wanted.empty() || option->results().size() != 1) return "";
      const std::vector<std::string> words = value_words(*option);
      const std::string meant = words.empty() ? "" : did_you_mean(option->results()[0], words);
      return name + " is '" + option->results()[0] + "'" + (meant.empty() ? "; it must be " + wanted : meant);
    }
  }
  return "";
}

}  // namespace

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string kind = value_kind(*option);
    if (option->get_expected_max() == 0 || (kind != "INT" && kind != "UINT" && kind != "FLOAT")) continue;
    option->transform(CLI::Validator([kind](std::string& text) { return check_number(kind, text); }, "", ""));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) check_numbers(*command);
}

std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> left = app.remaining(true);
  const auto word = std::find_if(left.begin(), left.end(), [](const std::string& a) { return a.rfind('-', 0) != 0; });
  const bool wants_command = !commands_of(command).empty();
  if (wants_command && word != left.end()) return unknown_command(command, *word);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !left.empty()) {
    const std::string& first = left.front();
    if (first.rfind('-', 0) != 0) return "'" + first + "' is an unexpected argument of " + full_name(command);
    const std::string flag = first.substr(0, first.find('='));
    return full_name(command) + " has no flag " + flag + did_you_mean(flag, flags_of(command));
  }
  if (wants_command && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    std::string list;
    for (const CLI::App* one : commands_of(command)) list += (list.empty() ? "" : ", ") + one->get_name();
    return full_name(command) + " needs a command: " + list;
  }
  const std::string message = error.what();
  if (const size_t at = message.find(": 1 required "); at != std::string::npos && message.ends_with(" missing")) {
    return message.substr(0, at) + " needs a value";
  }
  const std::string_view several = ": At Most 1 required but received ";
  if (const size_t at = message.find(several); at != std::string::npos) {
    return message.substr(0, at) + " was given " + message.substr(at + several.size()) + " times; give it once";
  }
  const std::string unsuitable = unsuitable_value(command, message);
  return unsuitable.empty() ? message : unsuitable;
}

std::string help_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    const auto commands = commands_of(*at);
    const auto found = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* command) { return command->get_name() == word; });
    if (found == commands.end()) break;
    at = *found;
  }
  return full_name(*at) + " --help";
}

}  // namespace quire::cli
