// SPDX-License-Identifier: Apache-2.0
// The lexer: the text between tags, the tokens of tags, raw blocks and comments.
#include "text/jinja/lexer.h"

#include <algorithm>
#include <cstdlib>

#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace quire::text::jinja {
namespace {

// Makes the source valid UTF-8 with only \n as line breaks, and removes the newline at the very end.
std::string clean_source(std::string_view source, bool keep_trailing_newline) {
  std::string valid;
  utf8::append_valid(valid, source);
  std::string out;
  out.reserve(valid.size());
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] != '\r') {
      out.push_back(valid[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < valid.size() && valid[i + 1] == '\n') ++i;
  }
  if (!keep_trailing_newline && !out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const ParseOptions& options)
      : source_(std::move(source)), text_(source_), options_(options) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void push(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  // Moves to `end` and counts lines; the text in between decides whether a line starts here.
  void advance(size_t end) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    if (end > at_) line_starting_ = text_[end - 1] == '\n';
    at_ = end;
  }

  bool starts(size_t at, std::string_view what) const { return text_.substr(at, what.size()) == what; }

  size_t skip_space(size_t at) const {
    while (at < text_.size()) {
      const utf8::Decoded d = utf8::decode(text_, at);
      if (!is_space(d.code_point)) break;
      at += d.size;
    }
    return at;
  }

  // Where the next tag starts, or npos.
  size_t find_tag(size_t from) const {
    for (size_t i = text_.find('{', from); i != std::string_view::npos; i = text_.find('{', i + 1)) {
      if (i + 1 < text_.size() && (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#')) return i;
    }
    return std::string_view::npos;
  }

  // The text before a tag, without the white space that the tag's sign or lstrip_blocks removes.
  std::string_view strip_before(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip(text, nullptr, false, true);
    if (sign == '+' || !options_.lstrip_blocks || is_variable) return text;
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view tail = text.substr(start);
    return strip(tail, nullptr, true, false).empty() ? text.substr(0, start) : text;
  }

  void root() {
    const size_t tag = find_tag(at_);
    if (tag == std::string_view::npos) {
      push(TokenKind::kData, std::string(text_.substr(at_)));
      advance(text_.size());
      return;
    }
    const char type = text_[tag + 1];
    char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    const size_t inside = tag + (sign != '\0' ? 3 : 2);
    const std::string_view data = strip_before(text_.substr(at_, tag - at_), sign, type == '{');
    if (!data.empty()) push(TokenKind::kData, std::string(data));
    if (type == '%') {
      const size_t raw = raw_begin(inside);
      if (raw != std::string_view::npos) {
        advance(raw);
        raw_block();
        return;
      }
    }
    advance(tag);
    const int tag_line = line_;
    advance(inside);
    if (type == '#') {
      comment(tag_line);
      return;
    }
    push(type == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    tokens_.back().line = tag_line;
    expression(type == '%', tag_line);
  }

  // If "raw" and the end of its tag follow, the position after them.
  size_t raw_begin(size_t at) const {
    at = skip_space(at);
    if (!starts(at, "raw")) return std::string_view::npos;
    at = skip_space(at + 3);
    if (starts(at, "-%}")) return skip_space(at + 3);
    return starts(at, "%}") ? at + 2 : std::string_view::npos;
  }

  // The end of a tag's closing mark at `at` ("%}", "-%}", "+%}"), or npos if there is none.
  size_t closing(size_t at, std::string_view mark, bool block) const {
    if (starts(at, "-") && starts(at + 1, mark)) return skip_space(at + 1 + mark.size());
    if (block && starts(at, "+") && starts(at + 1, mark)) return at + 1 + mark.size();
    if (!starts(at, mark)) return std::string_view::npos;
    at += mark.size();
    return block && options_.trim_blocks && starts(at, "\n") ? at + 1 : at;
  }

  void raw_block() {
    for (size_t i = text_.find("{%", at_); i != std::string_view::npos; i = text_.find("{%", i + 2)) {
      char sign = i + 2 < text_.size() ? text_[i + 2] : '\0';
      if (sign != '-' && sign != '+') sign = '\0';
      size_t at = skip_space(i + (sign != '\0' ? 3 : 2));
      if (!starts(at, "endraw")) continue;
      at = skip_space(at + 6);
      const size_t end = closing(at, "%}", true);
      if (end == std::string_view::npos) continue;
      const std::string_view data = strip_before(text_.substr(at_, i - at_), sign, false);
      if (!data.empty()) push(TokenKind::kData, std::string(data));
      advance(end);
      return;
    }
    fail_at(line_, "the raw block is not closed: endraw is missing");
  }

  void comment(int tag_line) {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) fail_at(tag_line, "the comment is not closed: #} is missing");
    const bool signed_end = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
    advance(closing(signed_end ? end - 1 : end, "#}", true));
  }

  void expression(bool block, int tag_line) {
    std::string brackets;  // the closing brackets that are expected
    const std::string_view mark = block ? "%}" : "}}";
    while (true) {
      if (at_ >= text_.size())
        fail_at(tag_line, block ? "the block tag is not closed" : "the expression is not closed");
      const size_t end = brackets.empty() ? closing(at_, mark, block) : std::string_view::npos;
      if (end != std::string_view::npos) {
        push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        advance(end);
        return;
      }
      const utf8::Decoded d = utf8::decode(text_, at_);
      if (is_space(d.code_point)) {
        advance(skip_space(at_));
      } else if (d.code_point >= '0' && d.code_point <= '9') {
        number();
      } else if (is_identifier_part(d.code_point)) {
        name();
      } else if (d.code_point == '"' || d.code_point == '\'') {
        string(static_cast<char>(d.code_point));
      } else {
        operator_token(&brackets);
      }
    }
  }

  static bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

  // The end of "12_345" at `at`. REQUIRES: `at` is a digit.
  size_t digits_end(size_t at) const {
    while (at < text_.size()) {
      if (is_ascii_digit(text_[at])) {
        ++at;
      } else if (text_[at] == '_' && at + 1 < text_.size() && is_ascii_digit(text_[at + 1])) {
        ++at;
      } else {
        break;
      }
    }
    return at;
  }

  bool digit_at(size_t at) const { return at < text_.size() && is_ascii_digit(text_[at]); }

  // The end of a float that starts here, or npos.
  size_t float_end() const {
    if (at_ > 0 && text_[at_ - 1] == '.') return std::string_view::npos;
    size_t end = digits_end(at_);
    bool is_float = false;
    if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      end = digits_end(end + 1);
      is_float = true;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (digit_at(exponent)) {
        end = digits_end(exponent);
        is_float = true;
      }
    }
    return is_float ? end : std::string_view::npos;
  }

  // The end of an integer that starts here: 0x1F, 0b1, 0o7, 12_3, 0, 00.
  size_t integer_end(int* base) const {
    *base = 10;
    if (text_[at_] != '0') return digits_end(at_);
    const char next = at_ + 1 < text_.size() ? static_cast<char>(text_[at_ + 1] | 0x20) : '\0';
    *base = next == 'x' ? 16 : next == 'o' ? 8 : next == 'b' ? 2 : 10;
    size_t end = at_ + (*base == 10 ? 0 : 2);
    auto digit = [&](size_t at) {
      if (at >= text_.size()) return false;
      const char c = text_[at];
      if (*base == 16) return std::isxdigit(static_cast<unsigned char>(c)) != 0;
      return c >= '0' && c < (*base == 10 ? '1' : '0' + *base);
    };
    while (digit(end) || (end < text_.size() && text_[end] == '_' && digit(end + 1))) ++end;
    if (*base != 10 && end == at_ + 2) {
      *base = 10;
      return at_ + 1;
    }
    return end;
  }

  void number() {
    const size_t as_float = float_end();
    if (as_float != std::string_view::npos) {
      std::string digits(text_.substr(at_, as_float - at_));
      digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
      push(TokenKind::kFloat, "");
      tokens_.back().real = std::strtod(digits.c_str(), nullptr);
      advance(as_float);
      return;
    }
    int base = 10;
    const size_t end = integer_end(&base);
    bool overflow = false;
    const auto value = parse_int(text_.substr(at_, end - at_), base == 10 ? 10 : base, &overflow);
    if (!value) fail_at(line_, "the integer is larger than 64 bits");
    push(TokenKind::kInteger, "");
    tokens_.back().integer = *value;
    advance(end);
  }

  void name() {
    if (!is_identifier_start(utf8::decode(text_, at_).code_point)) fail_at(line_, "Invalid character in identifier");
    size_t end = at_;
    while (end < text_.size()) {
      const utf8::Decoded d = utf8::decode(text_, end);
      if (!is_identifier_part(d.code_point)) break;
      end += d.size;
    }
    push(TokenKind::kName, std::string(text_.substr(at_, end - at_)));
    advance(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail_at(line_, "the string is not closed");
    push(TokenKind::kString, unescape(text_.substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  // Reads `count` hexadecimal digits of an escape.
  uint32_t hex(std::string_view body, size_t at, size_t count) const {
    uint32_t value = 0;
    for (size_t i = at; i < at + count; ++i) {
      const char c = i < body.size() ? body[i] : '\0';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) fail_at(line_, "truncated escape in a string");
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value >= 0x110000) fail_at(line_, "illegal Unicode character in a string's escape");
    return value;
  }

  void append_escaped(std::string& out, std::string_view body, size_t* at, size_t digits) const {
    uint32_t c = hex(body, *at + 2, digits);
    *at += 2 + digits;
    // A surrogate pair is one character; a lone surrogate cannot be written as UTF-8.
    if (c >= 0xD800 && c < 0xDC00 && body.substr(*at, 2) == "\\u") {
      const uint32_t low = hex(body, *at + 2, 4);
      if (low >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        *at += 6;
      }
    }
    utf8::append(out, c >= 0xD800 && c < 0xE000 ? utf8::kReplacement : static_cast<char32_t>(c));
  }

  std::string unescape(std::string_view body) const {
    std::string out;
    out.reserve(body.size());
    for (size_t i = 0; i < body.size();) {
      if (body[i] != '\\') {
        out.push_back(body[i++]);
        continue;
      }
      const char c = i + 1 < body.size() ? body[i + 1] : '\0';
      static constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
      const size_t simple = kFrom.find(c);
      if (c != '\0' && simple != std::string_view::npos) {
        out.push_back(kTo[simple]);
        i += 2;
      } else if (c == '\n') {
        i += 2;
      } else if (c == 'x') {
        append_escaped(out, body, &i, 2);
      } else if (c == 'u') {
        append_escaped(out, body, &i, 4);
      } else if (c == 'U') {
        append_escaped(out, body, &i, 8);
      } else if (c == 'N') {
        fail_at(line_, "\\N{...} escapes are not supported");
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t end = i + 1;
        while (end < body.size() && end < i + 4 && body[end] >= '0' && body[end] <= '7') {
          value = value * 8 + static_cast<uint32_t>(body[end++] - '0');
        }
        utf8::append(out, value);
        i = end;
      } else {
        out.push_back('\\');  // an unknown escape is not changed
        ++i;
      }
    }
    return out;
  }

  void operator_token(std::string* brackets) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!starts(at_, op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        brackets->push_back(op == "(" ? ')' : op == "[" ? ']' : '}');
      } else if (op == ")" || op == "]" || op == "}") {
        if (brackets->empty() || brackets->back() != op[0]) fail_at(line_, {"unexpected '", op, "'"});
        brackets->pop_back();
      }
      push(TokenKind::kOperator, std::string(op));
      advance(at_ + op.size());
      return;
    }
    fail_at(line_, {"unexpected character ", repr_text(text_.substr(at_, utf8::decode(text_, at_).size))});
  }

  std::string source_;
  std::string_view text_;
  const ParseOptions& options_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

std::vector<Token> tokenize(std::string_view source, const ParseOptions& options) {
  return Lexer(clean_source(source, options.keep_trailing_newline), options).run();
}

}  // namespace quire::text::jinja
