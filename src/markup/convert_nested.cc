// SPDX-License-Identifier: Apache-2.0
// Conversion of Gemma's values and of nested elements to JSON.
#include <utility>
#include <vector>

#include "markup/convert.h"

namespace quire::markup {
namespace {

constexpr int kMaxElementDepth = 64;

// Reads Gemma's values from a text that is complete.
class GemmaReader {
 public:
  GemmaReader(std::string_view text, std::string_view delimiter, bool parse_strings)
      : text_(text), delimiter_(delimiter), parse_strings_(parse_strings) {}

  bool value(const Schema& schema, int depth, std::string& out) {
    skip_blanks();
    if (depth > kMaxElementDepth) return false;
    if (at_delimiter()) {
      const std::string_view text = delimited();
      if (parse_strings_) {
        out += json_or_string(text);
      } else {
        append_json_string(out, text);
      }
      return true;
    }
    if (pos_ < text_.size() && text_[pos_] == '{') return object(schema, depth, out);
    if (pos_ < text_.size() && text_[pos_] == '[') return array(schema, depth, out);
    return bare(schema, out);
  }

  bool at_end() {
    skip_blanks();
    return pos_ == text_.size();
  }

 private:
  void skip_blanks() {
    while (pos_ < text_.size() && std::string_view(" \t\r\n").find(text_[pos_]) != std::string_view::npos) ++pos_;
  }
  bool at_delimiter() const { return text_.substr(pos_).starts_with(delimiter_); }
  bool take(char c) {
    skip_blanks();
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  // The text up to the next delimiter, or to the end if there is none.
  std::string_view delimited() {
    pos_ += delimiter_.size();
    const size_t end = std::min(text_.find(delimiter_, pos_), text_.size());
    const std::string_view out = text_.substr(pos_, end - pos_);
    pos_ = std::min(end + delimiter_.size(), text_.size());
    return out;
  }

  bool object(const Schema& schema, int depth, std::string& out) {
    take('{');
    out += '{';
    for (bool first = true; !take('}'); first = false) {
      if (!first && !take(',')) return false;
      skip_blanks();
      std::string_view key;
      if (at_delimiter()) {
        key = delimited();
      } else {
        const size_t end = text_.find_first_of(":,{}[]", pos_);
        if (end == std::string_view::npos) return false;
        key = text_.substr(pos_, end - pos_);
        pos_ = end;
        if (key.size() >= 2 && key.front() == '"' && key.back() == '"') key = key.substr(1, key.size() - 2);
      }
      if (!take(':')) return false;
      if (!first) out += ", ";
      append_json_string(out, key);
      out += ": ";
      if (!value(schema.property(key), depth + 1, out)) return false;
    }
    out += '}';
    return true;
  }

  bool array(const Schema& schema, int depth, std::string& out) {
    take('[');
    out += '[';
    for (bool first = true; !take(']'); first = false) {
      if (!first && !take(',')) return false;
      if (!first) out += ", ";
      if (!value(schema.items(), depth + 1, out)) return false;
    }
    out += ']';
    return true;
  }

  // A word up to the next "," or closing bracket. Without a schema it is JSON if it parses.
  bool bare(const Schema& schema, std::string& out) {
    const size_t end = std::min(text_.find_first_of(",}]", pos_), text_.size());
    std::string_view word = text_.substr(pos_, end - pos_);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    pos_ = end;
    if (word.empty()) return false;
    out += schema.node == nullptr || schema.types().none() ? json_or_string(word) : convert_text(word, schema);
    return true;
  }

  std::string_view text_;
  std::string_view delimiter_;
  bool parse_strings_;
  size_t pos_ = 0;
};

// Reads elements whose tags begin with a prefix.
class ElementReader {
 public:
  ElementReader(std::string_view text, std::string_view prefix) : text_(text), prefix_(prefix) {}

  // Reads up to the closing tag of `name`, or to the end, and consumes that tag.
  std::string content(std::string_view name, const Schema& schema, int depth) {
    std::string raw;
    std::vector<std::pair<std::string_view, std::string>> children;
    while (pos_ < text_.size()) {
      const size_t tag = std::min(text_.find(prefix_, pos_), text_.size());
      raw += text_.substr(pos_, tag - pos_);
      pos_ = std::min(tag + prefix_.size(), text_.size());
      if (pos_ >= text_.size() || text_[pos_] != '<') continue;
      const size_t end = text_.find('>', pos_);
      if (end == std::string_view::npos) {
        pos_ = text_.size();
        break;
      }
      const std::string_view inside = text_.substr(pos_ + 1, end - pos_ - 1);
      pos_ = end + 1;
      if (inside.starts_with("/")) {
        if (inside.substr(1) == name) break;
        continue;  // A stray closing tag means nothing.
      }
      if (depth >= kMaxElementDepth) continue;
      const Schema child = inside == "item" && !has_property(schema, "item") ? schema.items() : schema.property(inside);
      children.emplace_back(inside, content(inside, child, depth + 1));
    }
    if (children.empty()) return leaf(raw, schema);
    return join(children, schema);
  }

  std::string root(const Schema& schema) {
    std::string out = content({}, schema, 0);
    return out.starts_with("{") ? out : "{}";
  }

 private:
  static bool has_property(const Schema& schema, std::string_view name) {
    const Schema at = schema.resolved();
    const json::Value* properties = at.node == nullptr ? nullptr : at.node->find("properties");
    return properties != nullptr && properties->find(name) != nullptr;
  }

  static std::string leaf(std::string_view raw, const Schema& schema) {
    const Types types = schema.types();
    if (raw.find_first_not_of(" \t\r\n") == std::string_view::npos && !types.string) {
      if (types.array) return "[]";
      if (types.object) return "{}";
    }
    return convert_text(raw, schema);
  }

  static std::string join(const std::vector<std::pair<std::string_view, std::string>>& children, const Schema& schema) {
    bool list = true;
    for (const auto& [name, value] : children) list = list && name == "item";
    if (list && has_property(schema, "item")) list = false;
    std::string out = list ? "[" : "{";
    for (size_t i = 0; i < children.size(); ++i) {
      if (i > 0) out += ", ";
      if (!list) {
        append_json_string(out, children[i].first);
        out += ": ";
      }
      out += children[i].second;
    }
    out += list ? "]" : "}";
    return out;
  }

  std::string_view text_;
  std::string_view prefix_;
  size_t pos_ = 0;
};

}  // namespace

std::optional<std::string> gemma_value(std::string_view text, std::string_view delimiter, const Schema& schema,
                                       bool parse_strings) {
  GemmaReader reader(text, delimiter, parse_strings);
  std::string out;
  if (!reader.value(schema, 0, out) || !reader.at_end()) return std::nullopt;
  return out;
}

std::string nested_elements(std::string_view text, std::string_view prefix, const Schema& schema) {
  return ElementReader(text, prefix).root(schema);
}

}  // namespace quire::markup
