// SPDX-License-Identifier: Apache-2.0
// quire completions: what bash, zsh and fish need to complete a command line.
#include "cli/completions.h"

#include <algorithm>
#include <iostream>
#include <map>

#include "cli/command.h"
#include "cli/command_list.h"
#include "cli/hub/model_cache.h"

namespace quire::cli {
namespace {

std::string join(const std::vector<std::string>& words, const std::string& between) {
  return CLI::detail::join(words, between);
}

// "/bench/serve"; "" for the program itself. The scripts remember in this form where on the command line they are.
std::string place(const CommandInfo& command) {
  std::string out;
  for (const std::string& word : command.path) out += "/" + word;
  return out;
}

std::vector<std::string> places(const std::vector<CommandInfo>& commands) {
  std::vector<std::string> out;
  for (const CommandInfo& command : commands) {
    if (!command.path.empty()) out.push_back(place(command));
  }
  return out;
}

std::vector<std::string> command_names(const CommandInfo& command) {
  std::vector<std::string> out;
  for (const CLI::App* inner : commands_of(*command.app)) out.push_back(inner->get_name());
  return out;
}

// The beginning of a description, as a list of flags has room for little more than that.
std::string brief(const std::string& text) {
  return text.substr(0, std::min({text.find(". "), text.find("; "), text.find(": "), text.size()}));
}

// What the scripts complete a value with.
std::string value_method(const FlagInfo& flag) {
  if (flag.kind == "FILE" || flag.kind == "[FILE]") return "file";
  if (flag.kind == "DIR") return "folder";
  if (flag.kind == "MODEL") return "model";
  return flag.words.empty() ? "text" : "words";
}

std::string replace_each(const std::string& text, const std::map<char, std::string>& with) {
  std::string out;
  for (const char c : text) {
    const auto found = with.find(c);
    out += found == with.end() ? std::string(1, c) : found->second;
  }
  return out;
}

// bash: flags and values of each command as branches of a case.

std::string bash_values(const CommandInfo& command) {
  // Flags that are completed alike share a branch.
  std::map<std::string, std::vector<std::string>> branches;
  for (const FlagInfo& flag : command.flags) {
    if (!flag.takes_value) continue;
    auto& names = branches["kind=" + value_method(flag) + " words=\"" + join(flag.words, " ") + "\""];
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  std::string out;
  for (const auto& [then, names] : branches) out += "        " + join(names, " | ") + ") " + then + " ;;\n";
  return out;
}

std::string bash_branch(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const FlagInfo& flag : command.flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  std::string argument = "kind=none";
  if (const auto inner = command_names(command); !inner.empty()) {
    argument = "kind=words words=\"" + join(inner, " ") + "\"";
  } else if (!command.arguments.empty()) {
    argument =
        "kind=" + value_method(command.arguments[0]) + " words=\"" + join(command.arguments[0].words, " ") + "\"";
  }
  return "    '" + place(command) + "')\n      flags=\"" + join(names, " ") + "\"\n      " + argument +
         "\n      case $previous in\n" + bash_values(command) + "      esac\n      ;;\n";
}

constexpr const char* kBashStart =
    R"sh(# Completion of quire for bash, written by `quire completions bash`.
_quire() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command="" flags="" words="" kind="" line i
  # bash splits --flag=value into three words.
  if [[ $current == "=" ]]; then
    current=""
  elif [[ $previous == "=" ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case $command/${COMP_WORDS[i]} in
)sh";

constexpr const char* kBashEnd = R"sh(  esac
  if [[ $current == -* ]]; then kind=words words=$flags; fi
  COMPREPLY=()
  if [[ $kind == model ]]; then words="$words $("$1" completions models 2>/dev/null)"; fi
  while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -W "$words" -- "$current")
  case $kind in
    file | model) while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$current") ;;
    folder) while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -d -- "$current") ;;
  esac
  case $kind in
    file | folder | model) compopt -o filenames 2>/dev/null ;;
  esac
}
complete -F _quire quire
)sh";

// zsh: one function per command, with the specifications that _arguments takes.

std::string zsh_quoted(const std::string& text) {
  return "'" + CLI::detail::find_and_replace(text, "'", "'\\''") + "'";
}

std::string zsh_text(const std::string& text) {
  return replace_each(text, {{'[', "\\["}, {']', "\\]"}, {':', "\\:"}, {'\\', "\\\\"}});
}

std::string zsh_function(const CommandInfo& command) {
  std::string name = "_quire";
  for (const std::string& word : command.path) name += "_" + word;
  return name;
}

// ":message:action", the part of a specification that is about a value.
std::string zsh_value(const FlagInfo& flag) {
  const std::string kind = value_method(flag);
  const std::string words = join(flag.words, " ");
  const std::string message = ":" + zsh_text(flag.kind.empty() ? "value" : flag.kind) + ":";
  if (kind == "model") return message + "__quire_models";
  if (kind == "file") return message + "_files";
  if (kind == "folder") {
    return message + (words.empty() ? "_files -/" : "{compadd -- " + words + "; _files -/}");
  }
  return message + (words.empty() ? " " : "(" + words + ")");
}

std::string zsh_specifications(const CommandInfo& command) {
  std::string out;
  for (const FlagInfo& flag : command.flags) {
    const bool repeats = flag.option->get_expected_max() == CLI::detail::expected_max_vector_size;
    for (const std::string& name : flag.names) {
      const std::string equals = flag.takes_value && name.rfind("--", 0) == 0 ? "=" : "";
      out += "    " +
             zsh_quoted((repeats ? "*" : "") + name + equals + "[" + zsh_text(brief(flag.option->get_description())) +
                        "]" + (flag.takes_value ? zsh_value(flag) : "")) +
             " \\\n";
    }
  }
  for (size_t i = 0; i < command.arguments.size(); ++i) {
    out += "    " + zsh_quoted(std::to_string(i + 1) + zsh_value(command.arguments[i])) + " \\\n";
  }
  return out;
}

std::string zsh_command(const CommandInfo& command) {
  const std::string start = zsh_function(command) + "() {\n";
  const auto inner = commands_of(*command.app);
  if (inner.empty()) return start + "  _arguments \\\n" + zsh_specifications(command) + "    && return\n}\n\n";
  std::string list;
  for (const CLI::App* one : inner) {
    list += "        " + zsh_quoted(one->get_name() + ":" + zsh_text(brief(one->get_description()))) + "\n";
  }
  return start + "  local state line\n  typeset -A opt_args\n  _arguments -C \\\n" + zsh_specifications(command) +
         "    '1: :->command' \\\n    '*:: :->rest' && return\n  case $state in\n    command)\n" +
         "      local -a commands=(\n" + list + "      )\n      _describe command commands\n      ;;\n" +
         "    rest) (( $+functions[" + zsh_function(command) + "_$line[1]] )) && " + zsh_function(command) +
         "_$line[1] ;;\n  esac\n}\n\n";
}

constexpr const char* kZshStart = R"sh(#compdef quire
# Completion of quire for zsh, written by `quire completions zsh`.
__quire_models() {
  local -a models=(${(f)"$(_call_program models quire completions models 2>/dev/null)"})
  compadd -- $models
  _files
}

)sh";

constexpr const char* kZshEnd = R"sh(if [[ $funcstack[1] == _quire ]]; then
  _quire "$@"
else
  compdef _quire quire
fi
)sh";

// fish: one line per flag, with a condition on the command.

std::string fish_quoted(const std::string& text) {
  return "'" + replace_each(text, {{'\'', "\\'"}, {'\\', "\\\\"}}) + "'";
}

// The arguments of `complete` that are about a value.
std::string fish_value(const FlagInfo& flag) {
  const std::string kind = value_method(flag);
  std::string words = join(flag.words, " ");
  if (kind == "file") return " -r -F";
  if (kind == "model") return " -r -F -a '(quire completions models 2>/dev/null)'";
  if (kind == "folder") words += std::string(words.empty() ? "" : " ") + "(__fish_complete_directories)";
  return words.empty() ? " -x" : " -x -a " + fish_quoted(words);
}

std::string fish_command(const CommandInfo& command) {
  const std::string start = "complete -c quire -n " + fish_quoted("__quire_in '" + place(command) + "'");
  std::string out;
  for (const CLI::App* inner : commands_of(*command.app)) {
    out += start + " -a " + inner->get_name() + " -d " + fish_quoted(brief(inner->get_description())) + "\n";
  }
  for (const FlagInfo& argument : command.arguments) {
    if (value_method(argument) == "text") continue;
    std::string value = fish_value(argument);
    if (const size_t required = value.find(" -r"); required != std::string::npos) value.erase(required, 3);
    out += start + value + "\n";
  }
  for (const FlagInfo& flag : command.flags) {
    std::string names;
    for (const std::string& name : flag.names) {
      names += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    out += start + names + (flag.takes_value ? fish_value(flag) : "") + " -d " +
           fish_quoted(brief(flag.option->get_description())) + "\n";
  }
  return out;
}

constexpr const char* kFishStart = R"sh(# Completion of quire for fish, written by `quire completions fish`.
function __quire_in --description 'Whether the command line is at this command'
    set -l command ''
    set -l words (commandline -opc)
    for word in $words[2..-1]
        switch "$command/$word"
)sh";

constexpr const char* kFishEnd = R"sh(                set command "$command/$word"
        end
    end
    test "$command" = "$argv[1]"
end
complete -c quire -f
)sh";

std::string model_names() {
  std::string out;
  for (const CachedModel& model : list_cached_models()) {
    if (model.complete) out += model.name + "\n";
  }
  return out;
}

}  // namespace

std::string bash_completions(const CLI::App& program) {
  const auto commands = list_commands(program);
  std::string out = kBashStart;
  out += "      " + join(places(commands), " | ") + ") command+=/${COMP_WORDS[i]} ;;\n    esac\n  done\n";
  out += "  case $command in\n";
  for (const CommandInfo& command : commands) out += bash_branch(command);
  return out + kBashEnd;
}

std::string zsh_completions(const CLI::App& program) {
  std::string out = kZshStart;
  for (const CommandInfo& command : list_commands(program)) out += zsh_command(command);
  return out + kZshEnd;
}

std::string fish_completions(const CLI::App& program) {
  const auto commands = list_commands(program);
  std::string out = kFishStart;
  out += "            case " + join(places(commands), " ") + "\n";
  out += kFishEnd;
  for (const CommandInfo& command : commands) out += fish_command(command);
  return out;
}

void add_completions(CLI::App& app, int& exit_code) {
  auto what = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completions", "Print a script that completes quire's commands in a shell");
  command->footer(
      "Packages install the scripts. By hand:\n"
      "  source <(quire completions bash)\n"
      "  quire completions zsh > ~/.zfunc/_quire\n"
      "  quire completions fish > ~/.config/fish/completions/quire.fish");
  command
      ->add_option("SHELL", *what, "bash, zsh or fish; models: the names of the cached models, which the scripts offer")
      ->check(CLI::IsMember({"bash", "zsh", "fish", "models"}))
      ->required();
  command->callback([&app, what, &exit_code] {
    const std::string text = *what == "bash"   ? bash_completions(app)
                             : *what == "zsh"  ? zsh_completions(app)
                             : *what == "fish" ? fish_completions(app)
                                               : model_names();
    std::cout << text;
    exit_code = 0;  // run_program() sees whether it was written
  });
}

}  // namespace quire::cli
