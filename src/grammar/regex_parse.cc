// SPDX-License-Identifier: Apache-2.0
// The parser of regular expressions: from the text of a pattern to a RegexTree.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "grammar/regex_tree.h"

namespace quire::grammar {

namespace {

using Kind = RegexTree::Kind;
using Node = RegexTree::Node;

constexpr int kMaxGroupDepth = 200;             // of nested groups
constexpr size_t kMaxPatternBytes = 256 << 10;  // the tree has at most a few nodes per byte
constexpr int64_t kMaxRepeat = 1'000'000;
constexpr size_t kMaxSetRanges = 500'000;  // of all different classes together
constexpr uint32_t kNoNode = 0xffffffff;

// \s of ECMA-262: its white space and line terminators.
const text::CodeSet kSpace = {{0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                              {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const text::CodeSet kDigit = {{'0', '9'}};
const text::CodeSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

Failure wrong(size_t offset, const std::string& what) {
  return invalid_argument({"The pattern is wrong at offset ", offset, ": ", what, "."});
}

Failure refused(size_t offset, const std::string& construct) {
  return invalid_argument({"The pattern has ", construct, " at offset ", offset, ", which is not supported."});
}

std::optional<uint32_t> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const RegexSyntax& syntax)
      : pattern_(pattern), ignore_case_(syntax.ignore_case), dot_all_(syntax.dot_all), ecma_(syntax.search) {}

  Result<RegexTree> parse() {
    if (pattern_.size() > kMaxPatternBytes) return invalid_argument("The pattern is longer than 256 KiB.");
    for (size_t pos = 0; pos < pattern_.size();) {
      const utf8::Decoded c = utf8::decode(pattern_, pos);
      if (!c.valid) return wrong(pos, "it is not valid UTF-8 there");
      pos += c.size;
    }
    QUIRE_ASSIGN(const uint32_t root, choice());
    if (!at_end()) return wrong(pos_, "\")\" closes no group; write \\) for the character");
    if (root + 1 != tree_.nodes.size()) add({.kind = Kind::kSequence, .parts = {root}});
    return std::move(tree_);
  }

 private:
  bool at_end() const { return pos_ == pattern_.size(); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : '\0'; }
  bool looking_at(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }
  bool take(std::string_view text) {
    if (!looking_at(text)) return false;
    pos_ += text.size();
    return true;
  }
  char32_t take_char() {
    const utf8::Decoded c = utf8::decode(pattern_, pos_);
    pos_ += c.size;
    return c.code_point;
  }

  uint32_t add(Node node) {
    for (const uint32_t part : node.parts) {
      node.has_anchor |= tree_.nodes[part].has_anchor;
      node.has_ahead |= tree_.nodes[part].has_ahead;
    }
    node.has_anchor |= node.kind == Kind::kStart || node.kind == Kind::kEnd;
    node.has_ahead |= node.kind == Kind::kAhead || node.kind == Kind::kNotAhead;
    tree_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(tree_.nodes.size() - 1);
  }
  // A node for the characters that the pattern writes between `offset` and the position. What is written the same way
  // is the same set, which `make` makes only once: sets such as \p{L} are large.
  template <typename Make>
  Result<uint32_t> add_chars(size_t offset, const Make& make) {
    std::string key = (ignore_case_ ? "i" : "-") + std::string(pattern_.substr(offset, pos_ - offset));
    const auto [it, added] = set_index_.try_emplace(std::move(key), static_cast<uint32_t>(tree_.sets.size()));
    if (added) {
      tree_.sets.push_back(make());
      set_ranges_ += tree_.sets.back().size();
      if (set_ranges_ > kMaxSetRanges) return wrong(offset, "its classes have too many characters");
    }
    return add({.kind = Kind::kChars, .offset = offset, .set = it->second});
  }
  text::CodeSet with_case(const text::CodeSet& chars) const { return ignore_case_ ? text::case_closed(chars) : chars; }

  // Alternatives up to the end of the pattern or of the group.
  Result<uint32_t> choice() {
    const size_t offset = pos_;
    std::vector<uint32_t> options;
    do {
      QUIRE_ASSIGN(const uint32_t option, sequence());
      options.push_back(option);
    } while (take("|"));
    if (options.size() == 1) return options[0];
    return add({.kind = Kind::kChoice, .offset = offset, .parts = std::move(options)});
  }

  Result<uint32_t> sequence() {
    const size_t offset = pos_;
    std::vector<uint32_t> parts;
    while (!at_end() && peek() != '|' && peek() != ')') {
      QUIRE_ASSIGN(const uint32_t part, quantified());
      if (part != kNoNode) parts.push_back(part);
    }
    if (parts.size() == 1) return parts[0];
    return add({.kind = parts.empty() ? Kind::kEmpty : Kind::kSequence, .offset = offset, .parts = std::move(parts)});
  }

  struct Bounds {
    int64_t min = 0;
    std::optional<int64_t> max;
  };

  Result<uint32_t> quantified() {
    const size_t offset = pos_;
    QUIRE_ASSIGN(const uint32_t part, atom());
    const size_t at = pos_;
    QUIRE_ASSIGN(const std::optional<Bounds> bounds, quantifier());
    if (!bounds) return part;
    if (part == kNoNode) return wrong(at, "there is nothing to repeat");
    const Kind kind = tree_.nodes[part].kind;
    if (kind == Kind::kStart || kind == Kind::kEnd || kind == Kind::kAhead || kind == Kind::kNotAhead) {
      return wrong(at, "an anchor or a look-ahead cannot be repeated");
    }
    if (peek() == '+') return refused(at, "a possessive quantifier");
    (void)take("?");  // A lazy quantifier matches the same texts.
    const size_t second = pos_;
    QUIRE_ASSIGN(const std::optional<Bounds> more, quantifier());
    if (more) return wrong(second, "a quantifier follows another; put the first one in a group");
    return add({.kind = Kind::kRepeat, .offset = offset, .parts = {part}, .min = bounds->min, .max = bounds->max});
  }

  Result<std::optional<Bounds>> quantifier() {
    if (take("*")) return std::optional(Bounds{0, {}});
    if (take("+")) return std::optional(Bounds{1, {}});
    if (take("?")) return std::optional(Bounds{0, 1});
    if (peek() != '{') return std::optional<Bounds>();
    // A brace that begins no quantifier stands for itself.
    const size_t offset = pos_;
    size_t p = pos_ + 1;
    QUIRE_ASSIGN(const std::optional<int64_t> min, number(p));
    const bool comma = p < pattern_.size() && pattern_[p] == ',';
    if (comma) ++p;
    QUIRE_ASSIGN(const std::optional<int64_t> max, comma ? number(p) : Result<std::optional<int64_t>>(min));
    if (p >= pattern_.size() || pattern_[p] != '}' || (!min && !max)) return std::optional<Bounds>();
    if (!min) return refused(offset, "a quantifier without a lower bound (write {0," + std::to_string(*max) + "})");
    if (max && *max < *min) return wrong(offset, "the quantifier's upper bound is less than its lower bound");
    pos_ = p + 1;
    return std::optional(Bounds{*min, max});
  }

  Result<std::optional<int64_t>> number(size_t& p) const {
    const size_t begin = p;
    int64_t value = 0;
    for (; p < pattern_.size() && pattern_[p] >= '0' && pattern_[p] <= '9'; ++p) {
      value = value * 10 + (pattern_[p] - '0');
      if (value > kMaxRepeat) return wrong(begin, "a quantifier may count up to " + std::to_string(kMaxRepeat));
    }
    return p == begin ? std::optional<int64_t>() : std::optional(value);
  }

  // One character, class, anchor or group; kNoNode for what stands for nothing, such as (?i) or a comment.
  Result<uint32_t> atom() {
    const size_t offset = pos_;
    switch (peek()) {
      case '(':
        return group();
      case '[':
        return char_class();
      case '\\':
        return escape();
      case '*':
      case '+':
      case '?':
        return wrong(offset, "there is nothing to repeat");
      case '^':
        ++pos_;
        return add({.kind = Kind::kStart, .offset = offset});
      case '$':
        ++pos_;
        return add({.kind = Kind::kEnd, .offset = offset});
      case '.':
        ++pos_;
        return add({.kind = Kind::kChars, .offset = offset, .set = dot()});
      case '{': {
        QUIRE_ASSIGN(const std::optional<Bounds> bounds, quantifier());
        if (bounds) return wrong(offset, "there is nothing to repeat");
        break;
      }
      default:
        break;
    }
    const char32_t c = take_char();
    return add_chars(offset, [&] { return with_case({{c, c}}); });
  }

  uint32_t dot() {
    const std::string key = dot_all_ ? "all" : "dot";  // keys of add_chars begin with "i" or "-"
    const auto [it, added] = set_index_.try_emplace(key, static_cast<uint32_t>(tree_.sets.size()));
    if (added && dot_all_) tree_.sets.push_back({{0, text::kCodePoints - 1}});
    if (added && !dot_all_) {
      tree_.sets.push_back(ecma_ ? text::complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}})
                                 : text::complement({{'\n', '\n'}}));
    }
    return it->second;
  }

  Result<uint32_t> group() {
    const size_t offset = pos_++;
    if (++depth_ > kMaxGroupDepth) return wrong(offset, "groups are nested too deeply");
    const bool outer_case = ignore_case_;
    const bool outer_dot = dot_all_;
    Kind look = Kind::kEmpty;
    if (peek() == '*') return refused(offset, "a verb (*...)");
    if (take("?")) {
      QUIRE_ASSIGN(const bool done, group_head(offset, look));
      if (done) {
        --depth_;
        return kNoNode;
      }
    }
    QUIRE_ASSIGN(const uint32_t inside, choice());
    if (!take(")")) return wrong(offset, "the group is not closed");
    --depth_;
    ignore_case_ = outer_case;
    dot_all_ = outer_dot;
    if (look == Kind::kEmpty) return inside;
    return add({.kind = look, .offset = offset, .parts = {inside}});
  }

  // What follows "(?", up to the group's content. True: the group has no content.
  Result<bool> group_head(size_t offset, Kind& look) {
    if (take(":")) return false;
    if (take("#")) {
      const size_t end = pattern_.find(')', pos_);
      if (end == std::string_view::npos) return wrong(offset, "the comment is not closed");
      pos_ = end + 1;
      return true;
    }
    if (take("=") || take("!")) {
      look = pattern_[pos_ - 1] == '=' ? Kind::kAhead : Kind::kNotAhead;
      return false;
    }
    if (looking_at("<=") || looking_at("<!")) return refused(offset, "a look-behind");
    if (looking_at("P=") || looking_at("P>") || looking_at("&") || looking_at("R")) {
      return refused(offset, "a reference to a group");
    }
    if (peek() == '>') return refused(offset, "an atomic group");
    if (peek() == '|') return refused(offset, "a branch-reset group");
    if (peek() == '(') return refused(offset, "a conditional group");
    if (take("P<") || take("<")) {
      const size_t begin = pos_;
      while (!at_end() && peek() != '>' && peek() != ')' && peek() != '(') ++pos_;
      if (pos_ == begin || !take(">")) return wrong(offset, "the name of the group is not closed by \">\"");
      return false;
    }
    return flags(offset);
  }

  // (?i), (?s-i) and (?i:...). A flag holds up to the end of the group around it.
  Result<bool> flags(size_t offset) {
    bool on = true;
    for (bool any = false;; any = true) {
      if (at_end()) return wrong(offset, "the group is not closed");
      if (any && take(")")) return true;
      if (any && take(":")) return false;
      if (take("-")) {
        if (!on) return wrong(pos_ - 1, "\"-\" stands twice among the flags");
        on = false;
      } else if (take("i")) {
        ignore_case_ = on;
      } else if (take("s")) {
        dot_all_ = on;
      } else {
        const size_t at = pos_;
        take_char();
        return refused(at, "the flag or group \"" + std::string(pattern_.substr(offset, pos_ - offset)) + "\"");
      }
    }
  }

  Result<uint32_t> escape() {
    const size_t offset = pos_;
    switch (peek(1)) {
      case 'A':
        pos_ += 2;
        return add({.kind = Kind::kStart, .offset = offset});
      case 'z':
      case 'Z':
        pos_ += 2;
        return add({.kind = Kind::kEnd, .offset = offset});
      case 'b':
      case 'B':
        return refused(offset, "a word boundary \\b or \\B");
      case 'k':
      case 'g':
        return refused(offset, "a backreference");
      default:
        break;
    }
    if (peek(1) >= '1' && peek(1) <= '9') return refused(offset, "a backreference");
    QUIRE_ASSIGN(const Escape escape, escape_chars());
    return add_chars(offset, [&] { return with_case(escape.chars); });
  }

  struct Escape {
    text::CodeSet chars;
    bool single = false;  // a character, which may be an end of a range
  };

  // An escape that stands for characters, in a class or outside one.
  Result<Escape> escape_chars() {
    const size_t offset = pos_++;
    if (at_end()) return wrong(offset, "the pattern ends in a backslash");
    const char c = peek();
    switch (c) {
      case 'd':
        ++pos_;
        return Escape{kDigit};
      case 'D':
        ++pos_;
        return Escape{text::complement(kDigit)};
      case 'w':
        ++pos_;
        return Escape{kWord};
      case 'W':
        ++pos_;
        return Escape{text::complement(kWord)};
      case 's':
        ++pos_;
        return Escape{kSpace};
      case 'S':
        ++pos_;
        return Escape{text::complement(kSpace)};
      case 'p':
      case 'P':
        return property(offset);
      default:
        break;
    }
    QUIRE_ASSIGN(const uint32_t point, escaped_char(offset));
    return Escape{{{point, point}}, true};
  }

  Result<uint32_t> escaped_char(size_t offset) {
    const char32_t c = take_char();
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case '0':
        if (peek() >= '0' && peek() <= '9') return refused(offset, "an octal escape (write \\xHH)");
        return 0;
      case 'c': {
        const char letter = peek();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))) {
          return wrong(offset, "\\c needs a letter after it");
        }
        ++pos_;
        return static_cast<uint32_t>(letter % 32);
      }
      case 'x':
        return hex_escape(offset, 2);
      case 'u':
        return hex_escape(offset, 4);
      case 'U':
        return hex_escape(offset, 8);
      default:
        break;
    }
    const bool letter_or_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter_or_digit) return refused(offset, "the escape \\" + std::string(1, static_cast<char>(c)));
    return static_cast<uint32_t>(c);
  }

  // The digits of \xHH, \uHHHH or \UHHHHHHHH, or any number of them in braces.
  Result<uint32_t> hex_escape(size_t offset, size_t digits) {
    const bool braces = take("{");
    uint32_t value = 0;
    size_t count = 0;
    for (; braces ? peek() != '}' : count < digits; ++count, ++pos_) {
      const std::optional<uint32_t> digit = hex_digit(peek());
      if (!digit) return wrong(offset, "the escape needs hexadecimal digits");
      value = value * 16 + *digit;
      if (value >= text::kCodePoints) return wrong(offset, "the escape is beyond U+10FFFF");
    }
    if (braces && !take("}")) return wrong(offset, "the escape is not closed by \"}\"");
    if (count == 0) return wrong(offset, "the escape needs hexadecimal digits");
    if (value < 0xd800 || value > 0xdfff) return value;
    // A pair of surrogates is one character; one alone is none.
    if (value < 0xdc00 && !braces && digits == 4 && looking_at("\\u")) {
      const size_t second = pos_;
      uint32_t low = 0;
      for (size_t i = 2; i < 6; ++i) low = low * 16 + hex_digit(peek(i)).value_or(0x100000);
      if (low >= 0xdc00 && low <= 0xdfff) {
        pos_ = second + 6;
        return 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
      }
    }
    return wrong(offset, "a surrogate alone is not a character");
  }

  // \p{Name}, \p{Script=Name}, \pL, and \P for all others.
  Result<Escape> property(size_t offset) {
    bool negative = pattern_[pos_++] == 'P';
    std::string_view name;
    if (take("{")) {
      const size_t end = pattern_.find('}', pos_);
      if (end == std::string_view::npos) return wrong(offset, "the escape is not closed by \"}\"");
      name = pattern_.substr(pos_, end - pos_);
      pos_ = end + 1;
    } else if (!at_end()) {
      name = pattern_.substr(pos_, utf8::decode(pattern_, pos_).size);
      pos_ += name.size();
    }
    if (name.starts_with('^')) {
      negative = !negative;
      name.remove_prefix(1);
    }
    for (const std::string_view key : {"General_Category=", "gc=", "Script=", "sc=", "Script_Extensions=", "scx="}) {
      if (!name.starts_with(key)) continue;
      if (key.starts_with("Script_E") || key == "scx=") return refused(offset, "a property of script extensions");
      name.remove_prefix(key.size());
      break;
    }
    if (name.size() > 64) return wrong(offset, "the name of the property is too long");
    if (name == "Any")
      return Escape{text::complement(negative ? text::CodeSet{{0, text::kCodePoints - 1}} : text::CodeSet{})};
    const auto [it, added] = properties_.try_emplace(std::string(name));
    if (added) it->second = text::set_of_name(name);
    if (!it->second) return refused(offset, "the Unicode property \"" + std::string(name) + "\"");
    return Escape{negative ? text::complement(*it->second) : *it->second};
  }

  Result<uint32_t> char_class() {
    const size_t offset = pos_++;
    const bool negative = take("^");
    if (peek() == ']' && !at_end()) {
      return refused(pos_, "\"]\" as the first character of a class (dialects disagree on it; write \\])");
    }
    text::CodeSet ranges;
    while (!take("]")) {
      if (at_end()) return wrong(offset, "the class is not closed by \"]\"");
      QUIRE_TRY(class_member(ranges));
    }
    return add_chars(offset, [&] {
      const text::CodeSet chars = with_case(text::united(ranges, {}));
      return negative ? text::complement(chars) : chars;
    });
  }

  Result<Escape> class_char() {
    if (looking_at_posix_class()) return refused(pos_, "a POSIX class [:...:] (write its characters out)");
    if (peek() != '\\') {
      const char32_t c = take_char();
      return Escape{{{c, c}}, true};
    }
    if (take("\\b")) return Escape{{{'\b', '\b'}}, true};
    return escape_chars();
  }

  bool looking_at_posix_class() const {
    if (!looking_at("[:")) return false;
    size_t p = pos_ + 2;
    while (p < pattern_.size() && ((pattern_[p] >= 'a' && pattern_[p] <= 'z') || pattern_[p] == '^')) ++p;
    return p > pos_ + 2 && pattern_.substr(p).starts_with(":]");
  }

  Status class_member(text::CodeSet& ranges) {
    const size_t offset = pos_;
    QUIRE_ASSIGN(const Escape first, class_char());
    if (!first.single || peek() != '-' || peek(1) == ']' || pos_ + 1 >= pattern_.size()) {
      ranges.insert(ranges.end(), first.chars.begin(), first.chars.end());
      return {};
    }
    ++pos_;
    QUIRE_ASSIGN(const Escape last, class_char());
    if (!last.single) return wrong(offset, "a range of a class must end in a character");
    if (last.chars[0].first < first.chars[0].first) return wrong(offset, "the range of the class is out of order");
    ranges.emplace_back(first.chars[0].first, last.chars[0].first);
    return {};
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  int depth_ = 0;
  bool ignore_case_;
  bool dot_all_;
  bool ecma_;
  RegexTree tree_;
  std::unordered_map<std::string, uint32_t> set_index_;
  std::unordered_map<std::string, std::optional<text::CodeSet>> properties_;
  size_t set_ranges_ = 0;
};

}  // namespace

Result<RegexTree> parse_regex_tree(std::string_view pattern, const RegexSyntax& syntax) {
  return RegexParser(pattern, syntax).parse();
}

Result<Regex> parse_regex(RegexStore& store, std::string_view pattern, const RegexSyntax& syntax) {
  QUIRE_ASSIGN(const RegexTree tree, parse_regex_tree(pattern, syntax));
  return lower_regex_tree(store, tree, syntax);
}

}  // namespace quire::grammar
