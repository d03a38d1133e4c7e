// SPDX-License-Identifier: Apache-2.0
// Reads the lines of a configuration, which are a small part of YAML, joins members into JSON, and spreads lists.
#include "cli/config_file.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "cli/hub/model_cache.h"

namespace quire::cli {
namespace {

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// The value without its quotes, or without the comment behind it. A '#' begins one after a space, and not inside
// quotes.
std::string value_of(std::string_view text) {
  text = trim(text);
  if (text.empty()) return {};
  const char quote = text[0];
  if (quote == '"' || quote == '\'') {
    const size_t end = text.find(quote, 1);
    const std::string_view rest = end == std::string_view::npos ? text : trim(text.substr(end + 1));
    if (rest.empty() || rest[0] == '#') return std::string(text.substr(1, end - 1));
    if (text.size() >= 2 && text.back() == quote) return std::string(text.substr(1, text.size() - 2));
  }
  const bool json = quote == '{' || quote == '[';
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (json && text[i] == '"' && text[i - 1] != '\\') inside = !inside;
    if (text[i] == '#' && !inside && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) {
      return std::string(trim(text.substr(0, i)));
    }
  }
  return std::string(text);
}

struct Setting {
  std::string flag;  // "--port", "--speculative-config.method"
  std::string value;
};

// The settings of a file. Members of a flag and entries of a list are more indented than its name, or, entries of a
// list, as much.
class ConfigReader {
 public:
  explicit ConfigReader(std::string file) : file_(std::move(file)) {}

  Result<std::vector<Setting>> read(std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      ++number_;
      QUIRE_TRY(read_line(text.substr(at, end - at)));
      at = end + 1;
    }
    return std::move(out_);
  }

 private:
  struct Open {
    size_t indent = 0;
    std::string name;
  };

  Status read_line(std::string_view whole) {
    const std::string_view line = trim(whole);
    if (line.empty() || line[0] == '#' || line == "---") return {};
    const size_t indent = whole.find_first_not_of(" \t");
    if (line == "-" || line.starts_with("- ")) {
      while (!open_.empty() && open_.back().indent > indent) open_.pop_back();
      if (open_.empty()) return wrong("a list needs a `flag:` before it");
      const bool member = open_.back().name.find('.') != std::string::npos;
      out_.push_back({open_.back().name + (member ? "+" : ""), value_of(line.substr(1))});
      return {};
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return wrong("expected `flag: value`");
    while (!open_.empty() && open_.back().indent >= indent) open_.pop_back();
    std::string name(trim(line.substr(0, colon)));
    if (open_.empty()) {
      std::replace(name.begin(), name.end(), '_', '-');
      name = "--" + name;
    } else {
      name = open_.back().name + "." + name;
    }
    std::string value = value_of(line.substr(colon + 1));
    if (value.empty()) {
      open_.push_back({indent, std::move(name)});
    } else {
      out_.push_back({std::move(name), std::move(value)});
    }
    return {};
  }

  Status wrong(const char* what) const { return invalid_argument({"'", file_, "', line ", number_, ": ", what}); }

  const std::string file_;
  size_t number_ = 0;
  std::vector<Open> open_;  // the names that the lines before have left open
  std::vector<Setting> out_;
};

// Whether the arguments have the flag, its --no- form or one of its members.
bool has_flag(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=") || argument.starts_with(flag + ".") ||
           argument == "--no-" + flag.substr(2);
  });
}

// Whether MODEL stands right behind `serve`.
bool begins_with_model(const std::vector<std::string>& arguments) {
  return arguments.size() > 1 && !arguments[1].starts_with('-');
}

// Whether a word is a model's file or folder, possibly as NAME=MODEL.
bool is_model_file(const std::string& word) {
  const std::string file = word.substr(word.find('=') + 1);
  std::error_code error;
  return file.ends_with(".gguf") || std::filesystem::exists(file, error);
}

// Sets a member of a member ... of `object`; `path` is "a.b" or, to append to a list, "a.b+".
void set_member(json::Value& object, std::string_view path, json::Value value) {
  const size_t dot = path.find('.');
  const bool appends = dot == std::string_view::npos && path.ends_with('+');
  const std::string_view name = appends ? path.substr(0, path.size() - 1) : path.substr(0, dot);
  if (dot == std::string_view::npos && !appends) return object.set(name, std::move(value));
  const json::Value* old = object.find(name);
  json::Value inner = old != nullptr ? *old : json::Value();
  if (appends) {
    if (!inner.is_array()) inner = json::Array{};
    inner.as_array().push_back(std::move(value));
  } else {
    if (!inner.is_object()) inner = json::Object{};
    set_member(inner, path.substr(dot + 1), std::move(value));
  }
  object.set(name, std::move(inner));
}

}  // namespace

Result<std::vector<std::string>> with_config_file(std::vector<std::string> arguments) {
  const auto flag = std::find_if(arguments.begin(), arguments.end(),
                                 [](const std::string& a) { return a == "--config" || a.starts_with("--config="); });
  if (flag == arguments.end()) return arguments;
  const bool joined = flag->size() > 8;
  if (!joined && flag + 1 == arguments.end()) return arguments;  // CLI11 reports what is missing
  const std::string file = joined ? flag->substr(9) : *(flag + 1);
  QUIRE_ASSIGN(const std::string text, read_file(file));
  QUIRE_ASSIGN(const std::vector<Setting> settings, ConfigReader(file).read(text));
  const bool names_model = begins_with_model(arguments);
  std::vector<std::string> out;
  for (const auto& [name, value] : settings) {
    const std::string whole = name.substr(0, name.find('.'));
    if (has_flag(arguments, whole) || (name == "--model" && names_model)) continue;
    if (name == "--model" || name != whole || (value != "true" && value != "false")) {
      out.push_back(name + "=" + value);
    } else {
      out.push_back(value == "true" ? name : "--no-" + name.substr(2));
    }
  }
  // Last, because a flag that takes a list would also take a MODEL that follows it.
  arguments.insert(std::find(arguments.begin(), arguments.end(), "--"), out.begin(), out.end());
  return arguments;
}

namespace {

// Without a MODEL in front of the flags, the second word behind a flag is the MODEL. If there is no such model, it was
// meant for the flag. It is not repeated, because it may be a key.
Status check_words_behind(const std::vector<std::string>& arguments, std::string_view flag) {
  for (size_t i = 0; i + 2 < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] != flag) continue;
    for (i += 2; i < arguments.size() && !arguments[i].starts_with('-'); ++i) {
      const std::string& word = arguments[i];
      const bool on_hub = word.find('/') != std::string::npos;  // perhaps; it is pulled then
      if (on_hub || is_model_file(word) || resolve_model(word.substr(word.find('=') + 1)).ok()) continue;
      return invalid_argument({"without a MODEL in front of the flags, the second word behind ", flag,
                               " is the MODEL, and there is no such model; write quire serve MODEL ", flag,
                               " with its words, or give ", flag, " once for each of them"});
    }
    --i;
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> spread_lists(std::vector<std::string> arguments) {
  if (!begins_with_model(arguments) && !has_flag(arguments, "--model") && !has_flag(arguments, "--models-dir")) {
    for (const char* flag : {"--api-key", "--served-model-name"}) QUIRE_TRY(check_words_behind(arguments, flag));
    return arguments;
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string flag = arguments[i];
    out.push_back(flag);
    if (flag == "--") {
      std::move(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end(), std::back_inserter(out));
      break;
    }
    const bool keys = flag == "--api-key";
    if (!keys && flag != "--served-model-name") continue;
    for (bool first = true; i + 1 < arguments.size() && !arguments[i + 1].starts_with('-'); first = false) {
      const std::string& word = arguments[++i];
      if (!first && keys && is_model_file(word)) {
        return invalid_argument({"--api-key takes all words up to the next flag as keys, but '", word,
                                 "' is a model: put it in front of the flags"});
      }
      if (!first) out.push_back(flag);
      out.push_back(word);
    }
  }
  return out;
}

std::vector<std::string> join_members(std::vector<std::string> arguments) {
  std::vector<std::string> out;
  std::vector<std::pair<size_t, json::Value>> joined;  // places in `out` and their objects
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    if (argument == "--") {
      std::move(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end(), std::back_inserter(out));
      break;
    }
    const size_t equals = argument.find('=');
    const size_t dot = argument.find('.');
    const bool has_value = equals != std::string::npos || i + 1 < arguments.size();
    if (!argument.starts_with("--") || dot == std::string::npos || dot > equals || !has_value) {
      out.push_back(std::move(argument));
      continue;
    }
    const std::string flag = argument.substr(0, dot);
    const std::string path = argument.substr(dot + 1, equals == std::string::npos ? equals : equals - dot - 1);
    const std::string text = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    auto place = std::find_if(joined.begin(), joined.end(), [&](const auto& one) { return out[one.first] == flag; });
    if (place == joined.end()) {
      place = joined.insert(joined.end(), {out.size(), json::Object{}});
      out.push_back(flag);
    }
    auto value = json::parse(text);
    set_member(place->second, path, value.ok() ? std::move(*value) : json::Value(text));
  }
  for (const auto& [place, object] : joined) out[place] += "=" + json::dump(object);
  return out;
}

}  // namespace quire::cli
