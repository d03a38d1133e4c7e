// SPDX-License-Identifier: Apache-2.0
// Reads Python literals and writes them as JSON.
#include <cctype>
#include <utility>

#include "base/utf8.h"
#include "markup/convert.h"

namespace quire::markup {
namespace {

constexpr int kMaxLiteralDepth = 64;

class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  bool value(int depth, std::string& out) {
    skip_blanks();
    if (depth > kMaxLiteralDepth || pos_ >= text_.size()) return false;
    const char c = text_[pos_];
    if (c == '[') return sequence('[', ']', depth, out);
    if (c == '(') return tuple(depth, out);
    if (c == '{') return braces(depth, out);
    if (c == '-' || c == '+' || c == '.' || std::isdigit(static_cast<unsigned char>(c)) != 0) return number(out);
    if (string_ahead()) {
      std::string text;
      if (!strings(text)) return false;
      append_json_string(out, text);
      return true;
    }
    return word(out);
  }

  bool at_end() {
    skip_blanks();
    return pos_ == text_.size();
  }

 private:
  void skip_blanks() {
    while (pos_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[pos_])) != 0) ++pos_;
  }
  bool take(char c) {
    skip_blanks();
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  bool word(std::string& out) {
    static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"None", "null"}, {"null", "null"}, {"True", "true"}, {"true", "true"}, {"False", "false"}, {"false", "false"},
    };
    size_t end = pos_;
    while (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 || text_[end] == '_'))
      ++end;
    const std::string_view name = text_.substr(pos_, end - pos_);
    for (const auto& [python, json] : kWords) {
      if (name == python) {
        pos_ = end;
        out += json;
        return true;
      }
    }
    return false;
  }

  bool number(std::string& out) {
    size_t end = pos_;
    std::string digits;
    while (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 || text_[end] == '.' ||
                                  text_[end] == '+' || text_[end] == '-' || text_[end] == '_')) {
      if (text_[end] != '_') digits += text_[end];
      ++end;
    }
    static const json::Value kNumber = json::Value(json::Object{{"type", json::Value("number")}});
    std::string converted = convert_text(digits, {&kNumber, &kNumber});
    if (converted.empty() || converted.front() == '"') return false;
    // convert_text() writes 3.0 as 3; a Python float stays a float.
    const bool exact = digits.find_first_of(".eE") != std::string::npos && converted.find('.') == std::string::npos &&
                       converted.find('e') == std::string::npos;
    pos_ = end;
    out += exact ? converted + ".0" : converted;
    return true;
  }

  bool sequence(char open, char close, int depth, std::string& out) {
    take(open);
    out += '[';
    for (bool first = true; !take(close); first = false) {
      if (!first) {
        if (!take(',')) return false;
        if (take(close)) break;
        out += ", ";
      }
      if (!value(depth + 1, out)) return false;
    }
    out += ']';
    return true;
  }

  // A tuple, or a value in parentheses.
  bool tuple(int depth, std::string& out) {
    take('(');
    std::string items;
    int count = 0;
    bool comma = false;
    while (!take(')')) {
      if (count > 0 && !comma) return false;
      if (count > 0) items += ", ";
      if (!value(depth + 1, items)) return false;
      ++count;
      comma = take(',');
      if (!comma && count == 1 && take(')')) {
        out += items;
        return true;
      }
    }
    out += "[" + items + "]";
    return true;
  }

  // A dict or a set.
  bool braces(int depth, std::string& out) {
    take('{');
    std::string items;
    bool dict = true;
    for (bool first = true; !take('}'); first = false) {
      if (!first) {
        if (!take(',')) return false;
        if (take('}')) break;
        items += ", ";
      }
      std::string key;
      if (!value(depth + 1, key)) return false;
      if (first) dict = ahead(':');
      if (dict) {
        if (!take(':')) return false;
        if (key.front() == '[' || key.front() == '{') return false;
        if (key.front() == '"') {
          items += key;
        } else {
          append_json_string(items, key);
        }
        items += ": ";
        if (!value(depth + 1, items)) return false;
      } else {
        items += key;
      }
    }
    out += (dict ? "{" : "[") + items + (dict ? "}" : "]");
    return true;
  }

  bool ahead(char c) {
    skip_blanks();
    return pos_ < text_.size() && text_[pos_] == c;
  }

  // Whether a string begins here, perhaps with a prefix such as r or f.
  bool string_ahead() {
    skip_blanks();
    size_t at = pos_;
    while (at < text_.size() && at < pos_ + 2 && std::string_view("rRuUfF").find(text_[at]) != std::string_view::npos) {
      ++at;
    }
    return at < text_.size() && (text_[at] == '"' || text_[at] == '\'');
  }

  // Strings that stand side by side are one string.
  bool strings(std::string& out) {
    while (string_ahead()) {
      if (!one_string(out)) return false;
    }
    return true;
  }

  bool one_string(std::string& out) {
    bool raw = false, format = false;
    while (text_[pos_] != '"' && text_[pos_] != '\'') {
      raw = raw || text_[pos_] == 'r' || text_[pos_] == 'R';
      format = format || text_[pos_] == 'f' || text_[pos_] == 'F';
      ++pos_;
    }
    const char quote = text_[pos_];
    const std::string triple(3, quote);
    const bool long_form = text_.substr(pos_).starts_with(triple);
    const std::string_view end = long_form ? std::string_view(triple) : std::string_view(triple).substr(0, 1);
    pos_ += end.size();
    while (pos_ < text_.size()) {
      if (text_.substr(pos_).starts_with(end)) {
        pos_ += end.size();
        return true;
      }
      if (format && (text_[pos_] == '{' || text_[pos_] == '}')) return false;
      if (text_[pos_] == '\\' && !raw) {
        if (!escape(out)) return false;
      } else {
        out += text_[pos_++];
      }
    }
    return false;
  }

  bool escape(std::string& out) {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    if (++pos_ >= text_.size()) return false;
    const char c = text_[pos_++];
    if (c == '\n') return true;
    if (const size_t at = kFrom.find(c); at != std::string_view::npos) {
      out += kTo[at];
      return true;
    }
    if (c == 'x') return code_point(2, out);
    if (c == 'u') return code_point(4, out);
    if (c == 'U') return code_point(8, out);
    if (c >= '0' && c <= '7') {
      uint32_t value = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '7'; ++i) {
        value = value * 8 + static_cast<uint32_t>(text_[pos_++] - '0');
      }
      utf8::append(out, value);
      return true;
    }
    out += '\\';  // As Python does with an escape that it does not know.
    out += c;
    return true;
  }

  bool code_point(size_t digits, std::string& out) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++pos_) {
      if (pos_ >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[pos_])) == 0) return false;
      const char c = text_[pos_];
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    const bool surrogate = value >= 0xD800 && value < 0xE000;
    utf8::append(out, surrogate || value > 0x10FFFF ? utf8::kReplacement : static_cast<char32_t>(value));
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

std::optional<std::string> python_literal(std::string_view text) {
  LiteralReader reader(text);
  std::string out;
  if (!reader.value(0, out) || !reader.at_end()) return std::nullopt;
  return out;
}

}  // namespace quire::markup
