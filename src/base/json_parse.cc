// SPDX-License-Identifier: Apache-2.0
// The JSON reader: one pass, with limits on depth and size.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "base/json_object.h"
#include "base/utf8.h"

namespace quire::json {
namespace {

// Reads one text. The recursion follows the nesting, which `limits.max_depth` bounds.
class Parser {
 public:
  Parser(std::string_view text, const Limits& limits) : text_(text), limits_(limits) {}

  Result<Value> run() {
    if (text_.size() > limits_.max_bytes) return fail("the text is larger than the limit");
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") pos_ = 3;
    Value value;
    if (!read_value(value, 0)) return fail(what_);
    skip_space();
    if (pos_ != text_.size()) return fail("there is text after the end of the value");
    return value;
  }

 private:
  bool error(const char* what) {
    what_ = what;
    return false;
  }

  Failure fail(const char* what) const {
    const std::string_view before = text_.substr(0, std::min(pos_, text_.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t start = before.rfind('\n');
    const size_t column = start == std::string_view::npos ? before.size() + 1 : before.size() - start;
    return corrupt({"not valid JSON: ", what, " (line ", line, ", column ", column, ")"});
  }

  void skip_space() {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
      ++pos_;
    }
  }

  bool take(char c) {
    if (pos_ < text_.size() && text_[pos_] == c) {
      ++pos_;
      return true;
    }
    return false;
  }

  bool read_word(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return error("a value was expected here");
    pos_ += word.size();
    return true;
  }

  bool read_value(Value& out, size_t depth) {
    if (depth > limits_.max_depth) return error("it is nested too deeply");
    if (++values_ > limits_.max_values) return error("it holds too many values");
    skip_space();
    if (pos_ >= text_.size()) return error("the text ends in the middle of a value");
    switch (text_[pos_]) {
      case '{':
        return read_object(out, depth);
      case '[':
        return read_array(out, depth);
      case '"': {
        std::string s;
        if (!read_string(s)) return false;
        out = Value(std::move(s));
        return true;
      }
      case 't':
        out = Value(true);
        return read_word("true");
      case 'f':
        out = Value(false);
        return read_word("false");
      case 'n':
        out = Value();
        return read_word("null");
      case 'N':
        out = Value(std::numeric_limits<double>::quiet_NaN());
        return read_word("NaN");
      case 'I':
        out = Value(std::numeric_limits<double>::infinity());
        return read_word("Infinity");
      default:
        return read_number(out);
    }
  }

  bool read_object(Value& out, size_t depth) {
    ++pos_;
    Object members;
    skip_space();
    if (take('}')) {
      out = Value(std::move(members));
      return true;
    }
    for (;;) {
      skip_space();
      if (pos_ >= text_.size() || text_[pos_] != '"') return error("a member's name in quotes was expected here");
      std::string name;
      if (!read_string(name)) return false;
      skip_space();
      if (!take(':')) return error("':' was expected here");
      Value value;
      if (!read_value(value, depth + 1)) return false;
      members.emplace_back(std::move(name), std::move(value));
      skip_space();
      if (take(',')) continue;
      if (take('}')) break;
      return error("',' or '}' was expected here");
    }
    const size_t written = members.size();
    remove_repeats(members);
    if (limits_.refuse_repeats && members.size() != written) return error("an object has the same member name twice");
    out = Value(std::move(members));
    return true;
  }

  bool read_array(Value& out, size_t depth) {
    ++pos_;
    Array array;
    skip_space();
    if (!take(']')) {
      for (;;) {
        Value value;
        if (!read_value(value, depth + 1)) return false;
        array.push_back(std::move(value));
        skip_space();
        if (take(',')) continue;
        if (take(']')) break;
        return error("',' or ']' was expected here");
      }
    }
    out = Value(std::move(array));
    return true;
  }

  bool read_string(std::string& out) {
    ++pos_;
    for (;;) {
      size_t end = pos_;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
             static_cast<unsigned char>(text_[end]) >= 0x20) {
        ++end;
      }
      utf8::append_valid(out, text_.substr(pos_, end - pos_));
      pos_ = end;
      if (pos_ >= text_.size()) return error("the text ends inside a string");
      const char c = text_[pos_++];
      if (c == '"') return true;
      if (c != '\\') return error("a string has an unescaped control character");
      if (!read_escape(out)) return false;
    }
  }

  bool read_hex4(uint32_t& out) {
    if (text_.size() - pos_ < 4) return error("the text ends inside a string");
    const char* begin = text_.data() + pos_;
    const auto [end, status] = std::from_chars(begin, begin + 4, out, 16);
    if (status != std::errc() || end != begin + 4) return error("four hexadecimal digits were expected after \\u");
    pos_ += 4;
    return true;
  }

  bool read_escape(std::string& out) {
    if (pos_ >= text_.size()) return error("the text ends inside a string");
    switch (text_[pos_++]) {
      case '"':
        out += '"';
        return true;
      case '\\':
        out += '\\';
        return true;
      case '/':
        out += '/';
        return true;
      case 'b':
        out += '\b';
        return true;
      case 'f':
        out += '\f';
        return true;
      case 'n':
        out += '\n';
        return true;
      case 'r':
        out += '\r';
        return true;
      case 't':
        out += '\t';
        return true;
      case 'u':
        break;
      default:
        return error("a string has an unknown escape sequence");
    }
    uint32_t c = 0;
    if (!read_hex4(c)) return false;
    if (c >= 0xD800 && c < 0xDC00 && text_.substr(pos_, 2) == "\\u") {
      const size_t back = pos_;
      pos_ += 2;
      uint32_t low = 0;
      if (!read_hex4(low)) return false;
      if (low >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
      } else {
        pos_ = back;
      }
    }
    if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
    utf8::append(out, static_cast<char32_t>(c));
    return true;
  }

  bool read_number(Value& out) {
    const size_t start = pos_;
    if (take('-') && text_.substr(pos_, 8) == "Infinity") {
      pos_ += 8;
      out = Value(-std::numeric_limits<double>::infinity());
      return true;
    }
    const size_t digits = pos_;
    while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') ++pos_;
    if (pos_ == digits) return error("a value was expected here");
    if (text_[digits] == '0' && pos_ - digits > 1) return error("a number starts with a zero");
    bool integer = true;
    if (take('.')) {
      integer = false;
      const size_t fraction = pos_;
      while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') ++pos_;
      if (pos_ == fraction) return error("digits were expected after the decimal point");
    }
    if (pos_ < text_.size() && (text_[pos_] == 'e' || text_[pos_] == 'E')) {
      integer = false;
      ++pos_;
      if (pos_ < text_.size() && (text_[pos_] == '+' || text_[pos_] == '-')) ++pos_;
      const size_t exponent = pos_;
      while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') ++pos_;
      if (pos_ == exponent) return error("digits were expected in the exponent");
    }
    const char* begin = text_.data() + start;
    const char* end = text_.data() + pos_;
    int64_t whole = 0;
    if (integer && std::from_chars(begin, end, whole).ec == std::errc()) {
      out = Value(whole);
      return true;
    }
    double real = 0;
    if (std::from_chars(begin, end, real).ec == std::errc::result_out_of_range) {
      // Numbers that are too large become infinity and too small ones zero, as with strtod.
      const std::string copy(begin, end);
      real = std::strtod(copy.c_str(), nullptr);
    }
    out = integer ? Value::long_integer({begin, end}, real) : Value(real);
    return true;
  }

  std::string_view text_;
  const Limits& limits_;
  size_t pos_ = 0;
  size_t values_ = 0;
  const char* what_ = "";
};

}  // namespace

Result<Value> parse(std::string_view text, const Limits& limits) {
  return Parser(text, limits).run();
}

}  // namespace quire::json
