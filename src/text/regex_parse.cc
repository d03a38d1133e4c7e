// SPDX-License-Identifier: Apache-2.0
// The parser of Oniguruma patterns.
#include "text/regex_parse.h"

#include <algorithm>
#include <utility>

namespace quire::text {

namespace {

constexpr int kMaxDepth = 60;
constexpr size_t kMaxPattern = 64 * 1024;
constexpr int kMaxRepeat = 1000;

using Kind = RegexNode::Kind;

RegexNode set_node(CodeSet set) {
  RegexNode node;
  node.kind = Kind::kSet;
  node.set = std::move(set);
  return node;
}

RegexNode text_node(Kind kind, std::string text) {
  RegexNode node;
  node.kind = kind;
  node.text = std::move(text);
  return node;
}

RegexNode wrapped(Kind kind, std::string text, RegexNode child) {
  RegexNode node = text_node(kind, std::move(text));
  node.children.push_back(std::move(child));
  return node;
}

RegexNode alternation(std::vector<RegexNode> children) {
  RegexNode node;
  node.kind = Kind::kAlternation;
  node.children = std::move(children);
  return wrapped(Kind::kGroup, "(?:", std::move(node));
}

const CodeSet kNewline = {{'\n', '\n'}};

class Parser {
 public:
  explicit Parser(std::string_view pattern) {
    const char* p = pattern.data();
    const char* end = p + pattern.size();
    while (p < end) chars_.push_back(next_code_point(p));
  }

  Result<ParsedRegex> run() {
    ParsedRegex out;
    QUIRE_ASSIGN(out.root, parse_alternatives(0));
    if (!at_end()) return fail("an unmatched ')'");
    out.has_back_reference = has_back_reference_;
    return out;
  }

 private:
  bool at_end() const { return pos_ >= chars_.size(); }
  char32_t peek(size_t ahead = 0) const { return pos_ + ahead < chars_.size() ? chars_[pos_ + ahead] : 0; }
  bool take(char32_t c) {
    if (at_end() || chars_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  bool take(std::string_view ascii) {
    for (size_t i = 0; i < ascii.size(); ++i) {
      if (pos_ + i >= chars_.size() || chars_[pos_ + i] != static_cast<unsigned char>(ascii[i])) return false;
    }
    pos_ += ascii.size();
    return true;
  }
  Failure fail(std::string what) const {
    return unsupported({"the regular expression has ", std::move(what), " at character ", pos_});
  }

  Result<RegexNode> parse_alternatives(int depth) {
    if (depth > kMaxDepth) return fail("groups nested too deeply");
    const bool saved = caseless_;
    RegexNode node;
    node.kind = Kind::kAlternation;
    do {
      QUIRE_ASSIGN(RegexNode part, parse_sequence(depth));
      node.children.push_back(std::move(part));
    } while (take('|'));
    caseless_ = saved;
    return node;
  }

  Result<RegexNode> parse_sequence(int depth) {
    RegexNode node;
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (take_option_switch()) continue;
      QUIRE_ASSIGN(RegexNode atom, parse_atom(depth));
      QUIRE_ASSIGN(atom, parse_quantifiers(std::move(atom)));
      node.children.push_back(std::move(atom));
    }
    return node;
  }

  // "(?i)" applies until the end of the group.
  bool take_option_switch() {
    if (take("(?i)")) return caseless_ = true, true;
    if (take("(?-i)")) return caseless_ = false, true;
    return false;
  }

  Result<RegexNode> parse_quantifiers(RegexNode atom) {
    while (!at_end()) {
      std::string text;
      if (take('*')) {
        text = "*";
      } else if (take('+')) {
        text = "+";
      } else if (take('?')) {
        text = "?";
      } else if (peek() == '{') {
        QUIRE_ASSIGN(text, parse_counts());
        if (text.empty()) return atom;  // the brace is a literal
      } else {
        return atom;
      }
      const bool counted = text[0] == '{';
      if (take('?')) {
        text += '?';
      } else if (!counted && take('+')) {
        text += '+';  // after {n,m}, Oniguruma reads '+' as a second, nested repeat
      }
      if (++repeats_ > 200) return fail("too many repeats");
      atom = wrapped(Kind::kRepeat, std::move(text), std::move(atom));
    }
    return atom;
  }

  // {n}, {n,}, {n,m} or {,m}; empty if the brace is a literal.
  Result<std::string> parse_counts() {
    const size_t start = pos_;
    ++pos_;
    int low = -1;
    int high = -1;
    const auto number = [&](int& value) {
      while (peek() >= '0' && peek() <= '9' && value < 1'000'000) {
        value = std::max(value, 0) * 10 + static_cast<int>(peek() - '0');
        ++pos_;
      }
    };
    number(low);
    const bool comma = take(',');
    if (comma) number(high);
    if (!take('}') || (low < 0 && high < 0)) {
      pos_ = start;
      return std::string();
    }
    if (low > kMaxRepeat || high > kMaxRepeat) return fail("a repeat count above 1000");
    if (comma && high >= 0 && high < low) return fail("a repeat range that descends");
    std::string text = "{" + std::to_string(std::max(low, 0));
    if (comma) text += high >= 0 ? "," + std::to_string(high) : std::string(",");
    return text + "}";
  }

  Result<RegexNode> parse_atom(int depth) {
    if (peek() == '(') return parse_group(depth);
    if (peek() == '[') {
      ++pos_;
      QUIRE_ASSIGN(CodeSet set, parse_class(depth + 1));
      return set_node(std::move(set));
    }
    if (take('.')) return set_node(complement(kNewline));
    if (take('^')) return line_start();
    if (take('$')) return line_end();
    if (take('\\')) return parse_escape();
    if (peek() == '*' || peek() == '+' || peek() == '?') return fail("a repeat without an operand");
    return literal(chars_[pos_++]);
  }

  RegexNode literal(char32_t c) const { return set_node(folded({{c, c}})); }
  CodeSet folded(CodeSet set) const { return caseless_ ? case_closed(set) : set; }

  static RegexNode line_start() {
    std::vector<RegexNode> ways;
    ways.push_back(text_node(Kind::kAssertion, "\\A"));
    ways.push_back(wrapped(Kind::kGroup, "(?<=", set_node(kNewline)));
    return alternation(std::move(ways));
  }
  static RegexNode line_end() {
    std::vector<RegexNode> ways;
    ways.push_back(text_node(Kind::kAssertion, "\\z"));
    ways.push_back(wrapped(Kind::kGroup, "(?=", set_node(kNewline)));
    return alternation(std::move(ways));
  }
  // Between a word character and another character (or an end of the text); `same` is for \B.
  static RegexNode word_boundary(bool same) {
    const CodeSet word = set_of_property(kOnigWord);
    std::vector<RegexNode> ways;
    for (const bool after : {true, false}) {
      RegexNode both;
      both.children.push_back(wrapped(Kind::kGroup, after ? "(?<=" : "(?<!", set_node(word)));
      both.children.push_back(wrapped(Kind::kGroup, after == same ? "(?=" : "(?!", set_node(word)));
      ways.push_back(std::move(both));
    }
    return alternation(std::move(ways));
  }

  Result<RegexNode> parse_group(int depth) {
    static constexpr std::string_view kPlain[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    const bool saved = caseless_;
    std::string open = "(";
    bool known = false;
    for (const std::string_view prefix : kPlain) {
      if (!known && take(prefix)) {
        open = prefix;
        known = true;
      }
    }
    if (!known && take("(?i:")) {
      open = "(?:";
      caseless_ = true;
      known = true;
    }
    if (!known && take("(?-i:")) {
      open = "(?:";
      caseless_ = false;
      known = true;
    }
    if (!known && take("(?#")) {
      while (!at_end() && !take(')')) ++pos_;
      return RegexNode{};
    }
    if (!known) {
      ++pos_;
      if (peek() == '?' && peek(1) == '<') {
        while (!at_end() && !take('>')) ++pos_;
      } else if (peek() == '?') {
        return fail("a group of a kind that is not supported");
      }
    }
    QUIRE_ASSIGN(RegexNode inner, parse_alternatives(depth + 1));
    caseless_ = saved;
    if (!take(')')) return fail("a group that is not closed");
    return wrapped(Kind::kGroup, std::move(open), std::move(inner));
  }

  Result<RegexNode> parse_escape() {
    if (at_end()) return fail("a lone backslash");
    const char32_t c = peek();
    if (c >= '1' && c <= '9') {
      ++pos_;
      has_back_reference_ = true;
      return text_node(Kind::kAssertion, std::string("\\g{") + static_cast<char>(c) + "}");
    }
    switch (c) {
      case 'A':
      case 'z':
      case 'G':
        ++pos_;
        return text_node(Kind::kAssertion, std::string("\\") + static_cast<char>(c));
      case 'Z': {
        ++pos_;
        RegexNode end;
        end.children.push_back(wrapped(Kind::kRepeat, "?", set_node(kNewline)));
        end.children.push_back(text_node(Kind::kAssertion, "\\z"));
        return wrapped(Kind::kGroup, "(?=", std::move(end));
      }
      case 'b':
        ++pos_;
        return word_boundary(false);
      case 'B':
        ++pos_;
        return word_boundary(true);
      case 'R': {
        ++pos_;
        std::vector<RegexNode> ways(1);
        ways[0].children.push_back(set_node({{'\r', '\r'}}));
        ways[0].children.push_back(set_node(kNewline));
        ways.push_back(set_node({{'\n', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}}));
        return wrapped(Kind::kGroup, "(?>", alternation(std::move(ways)));
      }
      default:
        break;
    }
    QUIRE_ASSIGN(CodeSet set, parse_set_escape());
    return set_node(folded(std::move(set)));
  }

  // The meaning of an escape inside or outside a class: one character, or a set. REQUIRES: the backslash was consumed.
  Result<CodeSet> parse_set_escape() {
    if (at_end()) return fail("a lone backslash");
    const char32_t c = chars_[pos_++];
    const auto one = [](char32_t value) { return CodeSet{{value, value}}; };
    const CodeSet hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    switch (c) {
      case 's':
        return set_of_property(kOnigSpace);
      case 'S':
        return complement(set_of_property(kOnigSpace));
      case 'd':
        return set_of_property(kOnigDigit);
      case 'D':
        return complement(set_of_property(kOnigDigit));
      case 'w':
        return set_of_property(kOnigWord);
      case 'W':
        return complement(set_of_property(kOnigWord));
      case 'h':
        return hex;
      case 'H':
        return complement(hex);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'a':
        return one('\a');
      case 'e':
        return one(0x1b);
      case '0':
        return one(0);
      case 'x':
        return parse_hex(take('{') ? 0 : 2);
      case 'u':
        return parse_hex(4);
      case 'p':
      case 'P':
        return parse_property(c == 'P');
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
      return fail(std::string("the escape \\") + static_cast<char>(c) + ", which is not supported,");
    }
    return one(c);
  }

  // `digits` hexadecimal digits, or, if 0, all digits before '}'.
  Result<CodeSet> parse_hex(size_t digits) {
    uint32_t value = 0;
    size_t count = 0;
    const auto digit = [](char32_t c) -> int {
      if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
      if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
      if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
      return -1;
    };
    while (!at_end() && digit(peek()) >= 0 && (digits == 0 ? count < 6 : count < digits)) {
      value = value * 16 + static_cast<uint32_t>(digit(peek()));
      ++pos_;
      ++count;
    }
    if (count == 0 || (digits == 0 && !take('}')) || value >= kCodePoints) return fail("a bad hexadecimal escape");
    return CodeSet{{value, value}};
  }

  Result<CodeSet> parse_property(bool negated) {
    std::string name;
    if (take('{')) {
      if (take('^')) negated = !negated;
      while (!at_end() && peek() != '}' && name.size() < 64) name += static_cast<char>(chars_[pos_++] & 0x7f);
      if (!take('}')) return fail("a \\p{ that is not closed");
    } else if (!at_end()) {
      name = static_cast<char>(chars_[pos_++] & 0x7f);
    }
    const std::optional<CodeSet> set = set_of_name(name);
    if (!set) return fail("the unknown property \\p{" + name + "}");
    return negated ? complement(*set) : *set;
  }

  // After '[': everything up to its ']'. Nested classes are united and && intersects, as in Oniguruma.
  Result<CodeSet> parse_class(int depth) {
    if (depth > kMaxDepth) return fail("classes nested too deeply");
    const bool negated = take('^');
    CodeSet united_so_far;
    std::optional<CodeSet> left;  // what is before &&
    bool first = true;
    while (true) {
      if (at_end()) return fail("a class that is not closed");
      if (peek() == ']' && !first) break;
      first = false;
      if (take("&&")) {
        left = left ? intersected(*left, united_so_far) : united_so_far;
        united_so_far.clear();
        continue;
      }
      QUIRE_ASSIGN(CodeSet part, parse_class_part(depth));
      united_so_far = united(united_so_far, part);
    }
    ++pos_;
    if (left) united_so_far = intersected(*left, united_so_far);
    united_so_far = folded(std::move(united_so_far));
    return negated ? complement(united_so_far) : united_so_far;
  }

  Result<CodeSet> parse_class_part(int depth) {
    if (peek() == '[' && peek(1) == ':') {
      QUIRE_ASSIGN(CodeSet posix, parse_posix());
      if (!posix.empty()) return posix;
    }
    if (take('[')) return parse_class(depth + 1);
    CodeSet item;
    if (take('\\')) {
      if (take('b')) {
        item = {{8, 8}};
      } else {
        QUIRE_ASSIGN(item, parse_set_escape());
      }
    } else {
      item = {{chars_[pos_], chars_[pos_]}};
      ++pos_;
    }
    const bool single = item.size() == 1 && item[0].first == item[0].second;
    if (!single || peek() != '-' || peek(1) == ']' || pos_ + 1 >= chars_.size()) return item;
    ++pos_;  // '-'
    CodeSet last;
    if (take('\\')) {
      QUIRE_ASSIGN(last, parse_set_escape());
    } else {
      last = {{chars_[pos_], chars_[pos_]}};
      ++pos_;
    }
    if (last.size() != 1 || last[0].first != last[0].second || last[0].first < item[0].first) {
      return fail("a class range that descends");
    }
    return CodeSet{{item[0].first, last[0].first}};
  }

  // [:name:] inside a class; an empty set if it is not one.
  Result<CodeSet> parse_posix() {
    const size_t start = pos_;
    pos_ += 2;
    const bool negated = take('^');
    std::string name;
    while (!at_end() && peek() >= 'a' && peek() <= 'z' && name.size() < 12) name += static_cast<char>(chars_[pos_++]);
    if (!take(":]")) {
      pos_ = start;
      return CodeSet{};
    }
    const CodeSet digit = set_of_property(kOnigDigit);
    std::optional<CodeSet> set;
    if (name == "upper") {
      set = set_of_name("lu");
    } else if (name == "lower") {
      set = set_of_name("ll");
    } else if (name == "alnum" || name == "alpha") {
      return fail("the class [:" + name + ":], which is not supported,");
    } else {
      set = set_of_name(name);
    }
    if (!set) return fail("the unknown class [:" + name + ":]");
    return negated ? complement(*set) : *set;
  }

  std::vector<char32_t> chars_;
  size_t pos_ = 0;
  bool caseless_ = false;
  bool has_back_reference_ = false;
  int repeats_ = 0;
};

}  // namespace

Result<ParsedRegex> parse_regex(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) return unsupported("the regular expression is longer than 64 KiB");
  if (!utf8::is_valid(pattern)) return unsupported("the regular expression is not valid UTF-8");
  return Parser(pattern).run();
}

}  // namespace quire::text
