// SPDX-License-Identifier: Apache-2.0
// The reader of EBNF grammars: xgrammar's notation, of which llama.cpp's GBNF is a part.
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/compile.h"
#include "grammar/rule_set.h"
#include "grammar/text_scanner.h"

namespace quire::grammar {

namespace {

using Expr = RuleSet::Expr;

class EbnfReader {
 public:
  EbnfReader(Grammar& grammar, std::string_view text, const SpecialTokens& special)
      : grammar_(grammar), scan_(text, special), rules_(grammar) {}

  Result<Symbol> read() {
    QUIRE_TRY(scan_.check());
    for (skip_space(); !scan_.at_end(); skip_space()) QUIRE_TRY(rule());
    return rules_.lower("root");
  }

 private:
  void skip_space() {
    while (!scan_.at_end()) {
      const char c = scan_.peek();
      if (c == '#') {
        while (!scan_.at_end() && scan_.peek() != '\n') (void)scan_.take_char();
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        scan_.set_pos(scan_.pos() + 1);
      } else {
        return;
      }
    }
  }

  // Whether "name ::=" or "name[options] ::=" begins here.
  bool at_rule() {
    const size_t begin = scan_.pos();
    bool found = false;
    if (!scan_.take_name(true).empty()) {
      if (scan_.peek() == '[') {
        const size_t end = scan_.rest().find_first_of("]\n");
        if (end != std::string_view::npos) scan_.set_pos(scan_.pos() + end + 1);
      }
      while (scan_.peek() == ' ' || scan_.peek() == '\t') scan_.set_pos(scan_.pos() + 1);
      found = scan_.looking_at("::=");
    }
    scan_.set_pos(begin);
    return found;
  }

  Status rule() {
    if (!at_rule()) return scan_.wrong("a rule is written: name ::= expression");
    const size_t begin = scan_.pos();
    if (!scan_.first_on_line()) return scan_.wrong("a rule must begin on a line of its own");
    const std::string name(scan_.take_name(true));
    RuleOptions options;
    if (scan_.peek() == '[') QUIRE_TRY(rule_options(options));
    skip_space();
    scan_.take("::=");
    QUIRE_ASSIGN(const Expr body, choice(0));
    if (scan_.peek() == ')') return scan_.wrong("\")\" closes no group");
    if (!rules_.define(name, body, options)) {
      return scan_.wrong_at(begin, "the rule \"" + name + "\" is defined a second time");
    }
    return {};
  }

  // name[lazy, max_chars=10]
  Status rule_options(RuleOptions& out) {
    do {
      scan_.set_pos(scan_.pos() + 1);
      skip_space();
      const size_t begin = scan_.pos();
      const std::string name(scan_.take_name(false));
      const bool has_value = scan_.take("=");
      if (name == "lazy" && !has_value) {
        out.lazy = true;
      } else if (name == "max_chars" && has_value) {
        QUIRE_ASSIGN(out.max_chars, scan_.number(0x7fffffff));
      } else if (name == "capture") {
        // It marks a part of the text and changes nothing of what matches.
        if (has_value && scan_.peek() == '"') QUIRE_TRY(scan_.quoted());
      } else {
        return scan_.wrong_at(begin, "the option \"" + name + "\" of a rule is not supported");
      }
      skip_space();
    } while (scan_.peek() == ',');
    if (!scan_.take("]")) return scan_.wrong("the options of the rule are not closed by \"]\"");
    return {};
  }

  Result<Expr> choice(int depth) {
    if (depth > kMaxGrammarDepth) return scan_.wrong("groups are nested too deeply");
    std::vector<Expr> options;
    do {
      QUIRE_ASSIGN(const Expr option, sequence(depth));
      options.push_back(option);
    } while (scan_.take("|"));
    return rules_.choice(std::move(options));
  }

  Result<Expr> sequence(int depth) {
    std::vector<Expr> parts;
    for (skip_space(); !scan_.at_end() && scan_.peek() != '|' && scan_.peek() != ')'; skip_space()) {
      if (at_rule()) break;
      QUIRE_ASSIGN(Expr part, element(depth));
      // A quantifier follows at once, or after blanks.
      skip_space();
      QUIRE_ASSIGN(const std::optional<RepeatBounds> bounds, quantifier());
      if (bounds) {
        part = rules_.repeat(part, bounds->min, bounds->max);
        QUIRE_ASSIGN(const std::optional<RepeatBounds> more, quantifier());
        if (more) return scan_.wrong("a repetition follows another; put the first one in a group");
      }
      parts.push_back(part);
    }
    if (parts.empty()) return empty();
    return rules_.sequence(std::move(parts));
  }

  Expr empty() { return rules_.regex(grammar_.regexes().empty(), 1); }

  Result<std::optional<RepeatBounds>> quantifier() {
    if (scan_.take("*")) return std::optional(RepeatBounds{0, {}});
    if (scan_.take("+")) return std::optional(RepeatBounds{1, {}});
    if (scan_.take("?")) return std::optional(RepeatBounds{0, 1});
    if (scan_.peek() != '{') return std::optional<RepeatBounds>();
    QUIRE_ASSIGN(const RepeatBounds bounds, scan_.braces(false));
    return std::optional(bounds);
  }

  Result<Expr> element(int depth) {
    RegexStore& store = grammar_.regexes();
    const char c = scan_.peek();
    if (c == '"') {
      QUIRE_ASSIGN(const std::string text, scan_.quoted());
      return rules_.regex(store.literal(text), static_cast<int64_t>(text.size()));
    }
    if (c == '[') return char_class();
    if (scan_.take(".")) return rules_.regex(store.any_char(), 1);
    if (c == '(') return group(depth);
    if (c == '<' || scan_.looking_at("!<")) {
      const bool inverted = scan_.take("!");
      QUIRE_ASSIGN(TokenSet tokens, scan_.token_set());
      tokens.inverted ^= inverted;
      return rules_.tokens(std::move(tokens));
    }
    const int line = scan_.line();
    const size_t begin = scan_.pos();
    const std::string_view name = scan_.take_name(true);
    if (name.empty()) {
      std::string found;
      utf8::append(found, scan_.take_char());
      return scan_.wrong_at(begin, "\"" + found + "\" is not expected here");
    }
    if (scan_.peek() == '(') {
      if (name == "Regex") return regex_macro();
      if (name == "Token" || name == "ExcludeToken") return token_macro(name == "ExcludeToken");
      if (name == "TagDispatch" || name == "TokenTagDispatch" || name == "Substring") {
        return scan_.wrong_at(begin, "the macro " + std::string(name) +
                                         " is not supported (a structural tag can do what the dispatching ones do)");
      }
    }
    return rules_.reference(name, line);
  }

  Result<Expr> group(int depth) {
    const size_t begin = scan_.pos();
    scan_.take("(");
    if (scan_.peek() == '=') return scan_.wrong("a look-ahead (= ...) is not supported");
    QUIRE_ASSIGN(const Expr inside, choice(depth + 1));
    if (!scan_.take(")")) return scan_.wrong_at(begin, "the group is not closed by \")\"");
    return inside;
  }

  Result<char32_t> class_char(size_t begin) {
    if (scan_.at_end() || scan_.peek() == '\n') return scan_.wrong_at(begin, "the class is not closed by \"]\"");
    return scan_.take("\\") ? scan_.escape() : Result<char32_t>(scan_.take_char());
  }

  Result<Expr> char_class() {
    const size_t begin = scan_.pos();
    scan_.take("[");
    const bool negative = scan_.take("^");
    if (scan_.peek() == ']' && !negative) return scan_.wrong("a class without characters matches nothing; write \\]");
    std::vector<CodePointRange> ranges;
    while (!scan_.take("]")) {
      QUIRE_ASSIGN(const char32_t first, class_char(begin));
      char32_t last = first;
      if (scan_.peek() == '-' && scan_.peek(1) != ']') {
        scan_.take("-");
        QUIRE_ASSIGN(last, class_char(begin));
      }
      if (last < first) return scan_.wrong_at(begin, "a range of the class is out of order");
      ranges.push_back({first, last});
    }
    RegexStore& store = grammar_.regexes();
    return rules_.regex(negative ? store.chars_except(ranges) : store.chars(ranges), 1);
  }

  // Regex("pattern") or Regex("pattern", flags="is"). Without flags a dot matches every character.
  Result<Expr> regex_macro() {
    const size_t begin = scan_.pos();
    scan_.take("(");
    skip_space();
    if (scan_.peek() != '"') return scan_.wrong("Regex needs a pattern in quotes");
    QUIRE_ASSIGN(const std::string pattern, scan_.quoted());
    RegexSyntax syntax{.dot_all = true};
    skip_space();
    while (scan_.take(",")) {
      skip_space();
      if (scan_.take("flags=") && scan_.peek() == '"') {
        QUIRE_ASSIGN(const std::string flags, scan_.quoted());
        syntax.dot_all = flags.find('s') != std::string::npos;
        syntax.ignore_case = flags.find('i') != std::string::npos;
        if (flags.find_first_not_of("isu") != std::string::npos) {
          return scan_.wrong_at(begin, "a flag of Regex other than i, s and u is not supported");
        }
      } else if (!scan_.take("json_string=false")) {
        return scan_.wrong("this argument of Regex is not supported");
      }
      skip_space();
    }
    if (!scan_.take(")")) return scan_.wrong_at(begin, "the arguments of Regex are not closed by \")\"");
    const auto regex = parse_regex(grammar_.regexes(), pattern, syntax);
    if (!regex.ok())
      return scan_.wrong_at(begin, "in Regex: " + regex.error().message.substr(0, regex.error().message.size() - 1));
    return rules_.regex(*regex, static_cast<int64_t>(pattern.size()));
  }

  // Token(1, 2): one of these tokens; ExcludeToken(1, 2): any other.
  Result<Expr> token_macro(bool inverted) {
    const size_t begin = scan_.pos();
    TokenSet tokens{.ranges = {}, .inverted = inverted};
    do {
      scan_.set_pos(scan_.pos() + 1);
      skip_space();
      QUIRE_ASSIGN(const int64_t id, scan_.number(0x7fffffff));
      tokens.ranges.emplace_back(static_cast<int32_t>(id), static_cast<int32_t>(id));
      skip_space();
    } while (scan_.peek() == ',');
    if (!scan_.take(")")) return scan_.wrong_at(begin, "the list of tokens is not closed by \")\"");
    return rules_.tokens(std::move(tokens));
  }

  Grammar& grammar_;
  TextScanner scan_;
  RuleSet rules_;
};

}  // namespace

Result<Symbol> add_ebnf(Grammar& grammar, std::string_view text, const SpecialTokens& special) {
  return EbnfReader(grammar, text, special).read();
}

}  // namespace quire::grammar
