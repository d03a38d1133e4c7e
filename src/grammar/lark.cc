// SPDX-License-Identifier: Apache-2.0
// The reader of Lark grammars, in the dialect that llguidance and xgrammar share.
#include <array>
#include <cctype>
#include <span>
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

// Names that no grammar text can use.
constexpr std::string_view kIgnore = "%ignore";
constexpr std::string_view kStart = "%start";

struct CommonTerminal {
  std::string_view name;
  std::string_view pattern;
};

// The library "common" of Lark.
constexpr std::array<CommonTerminal, 25> kCommon = {{
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"_EXP", "[eE][+-]?[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*[^*]*\\*+([^/*][^*]*\\*+)*/"},
    {"SQL_COMMENT", "--[^\\n]*"},
}};

bool is_terminal_name(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

class LarkReader {
 public:
  LarkReader(Grammar& grammar, std::string_view text, const SpecialTokens& special)
      : grammar_(grammar), scan_(text, special), rules_(grammar) {}

  Result<Symbol> read() {
    QUIRE_TRY(scan_.check());
    ignore_ = rules_.repeat(rules_.reference(kIgnore, 1), 0, std::nullopt);
    for (skip_lines(); !scan_.at_end(); skip_lines()) {
      if (scan_.peek() == '%') {
        QUIRE_TRY(directive());
      } else {
        QUIRE_TRY(definition());
      }
      skip_blanks();
      if (!scan_.at_end() && scan_.peek() != '\n') return unexpected();
    }
    if (!has_start_) return invalid_argument("The grammar has no rule \"start\", where it would begin.");
    rules_.define(kIgnore, rules_.choice(ignored_.empty() ? std::vector{nothing()} : ignored_));
    std::vector<Expr> start = {rules_.reference("start", 1)};
    if (initial_skip_) start.insert(start.begin(), ignore_);
    rules_.define(kStart, rules_.sequence(std::move(start)));
    return rules_.lower(kStart);
  }

 private:
  // Where an expression stands: ignored text may follow the parts of a rule, not those of a terminal.
  struct Place {
    int depth = 0;
    bool in_terminal = false;
  };

  Expr nothing() { return rules_.regex(grammar_.regexes().nothing(), 1); }

  // Blanks and comments up to the end of the line.
  void skip_blanks() {
    while (!scan_.at_end()) {
      const char c = scan_.peek();
      if (c == '#' || scan_.looking_at("//")) {
        while (!scan_.at_end() && scan_.peek() != '\n') scan_.set_pos(scan_.pos() + 1);
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
        scan_.set_pos(scan_.pos() + 1);
      } else {
        return;
      }
    }
  }
  void skip_lines() {
    for (skip_blanks(); scan_.take("\n");) skip_blanks();
  }
  // Inside brackets lines do not matter; outside, an expression goes on if the next line begins with "|".
  void skip_inside(const Place& place) {
    skip_blanks();
    if (scan_.peek() != '\n') return;
    const size_t end_of_line = scan_.pos();
    skip_lines();
    if (place.depth == 0 && scan_.peek() != '|') scan_.set_pos(end_of_line);
  }

  Failure unexpected() {
    const size_t begin = scan_.pos();
    std::string found;
    utf8::append(found, scan_.take_char());
    return scan_.wrong_at(begin, found == "\n" ? "the line ends too early" : "\"" + found + "\" is not expected here");
  }

  Status definition() {
    const size_t begin = scan_.pos();
    while (scan_.take("?") || scan_.take("!")) {
    }  // They shape a parse tree, which there is none of here.
    const std::string name(scan_.take_name(false));
    if (name.empty()) return unexpected();
    const bool terminal = is_terminal_name(name);
    RuleOptions options;
    if (scan_.peek() == '{') return scan_.wrong("templates are not supported");
    if (scan_.peek() == '[') QUIRE_TRY(rule_options(options));
    if (scan_.take(".")) {
      // Priorities order the readings of an ambiguous text; here every reading is allowed.
      scan_.take("-");
      QUIRE_TRY(scan_.number(1'000'000));
    }
    skip_blanks();
    if (!scan_.take(":")) return scan_.wrong("\":\" is missing after the name \"" + name + "\"");
    QUIRE_ASSIGN(const Expr body, choice({.depth = 0, .in_terminal = terminal || options.any()}));
    has_start_ |= name == "start";
    bool added = false;
    if (options.any()) {
      added = rules_.define("%inside " + name, body, options);
      const Expr inside = rules_.reference("%inside " + name, scan_.line_at(begin));
      added = added && rules_.define(name, rules_.sequence({inside, ignore_}));
    } else {
      added = rules_.define(name, body);
    }
    if (!added) return scan_.wrong_at(begin, "\"" + name + "\" is defined a second time");
    return {};
  }

  // name[lazy, suffix="</a>"]
  Status rule_options(RuleOptions& out) {
    do {
      scan_.set_pos(scan_.pos() + 1);
      skip_blanks();
      const size_t begin = scan_.pos();
      const std::string name(scan_.take_name(false));
      const bool has_value = scan_.take("=");
      if (name == "lazy" && !has_value) {
        out.lazy = true;
      } else if (name == "max_chars" && has_value) {
        QUIRE_ASSIGN(out.max_chars, scan_.number(0x7fffffff));
      } else if ((name == "suffix" || name == "stop") && has_value && !out.suffix) {
        if (scan_.looking_at("\"\"")) return scan_.wrong("an empty text as " + name + " is not supported");
        QUIRE_ASSIGN(out.suffix, atom({.depth = 1, .in_terminal = true}));
      } else if (name == "capture" || name == "stop_capture") {
        // It marks a part of the text and changes nothing of what matches.
        if (has_value && scan_.peek() == '"') QUIRE_TRY(scan_.quoted());
      } else {
        return scan_.wrong_at(begin, "the option \"" + name + "\" of a rule is not supported");
      }
      skip_blanks();
    } while (scan_.peek() == ',');
    if (!scan_.take("]")) return scan_.wrong("the options of the rule are not closed by \"]\"");
    return {};
  }

  Status directive() {
    const size_t begin = scan_.pos();
    if (scan_.take("%import")) return import();
    if (scan_.take("%ignore")) {
      QUIRE_ASSIGN(const Expr expr, choice({.depth = 0, .in_terminal = true}));
      ignored_.push_back(expr);
      return {};
    }
    if (scan_.take("%llguidance") || scan_.take("%grammar_options")) return grammar_options(begin);
    scan_.take("%");
    return scan_.wrong_at(begin, "the directive %" + std::string(scan_.take_name(false)) + " is not supported");
  }

  Status grammar_options(size_t begin) {
    skip_blanks();
    if (scan_.peek() != '{') return scan_.wrong_at(begin, "the options of the grammar must be a JSON object");
    QUIRE_ASSIGN(const json::Value options, json_value());
    for (const auto& [name, value] : options.as_object()) {
      if (name != "allow_initial_skip" || !value.is_bool()) {
        return scan_.wrong_at(begin, "the option \"" + name + "\" of the grammar is not supported");
      }
      initial_skip_ = value.as_bool();
    }
    return {};
  }

  // %import common.INT, %import common.INT -> NUMBER, %import common (INT, WS)
  Status import() {
    const size_t begin = scan_.pos();
    skip_blanks();
    if (!scan_.take("common")) return scan_.wrong("only the library \"common\" can be imported");
    if (scan_.take(".")) {
      const std::string name(scan_.take_name(false));
      std::string as = name;
      skip_blanks();
      if (scan_.take("->")) {
        skip_blanks();
        as = scan_.take_name(false);
      }
      return define_common(begin, name, as);
    }
    skip_blanks();
    if (scan_.peek() != '(') return scan_.wrong("an import is written: %import common.NAME");
    do {
      scan_.set_pos(scan_.pos() + 1);
      skip_lines();
      const std::string name(scan_.take_name(false));
      QUIRE_TRY(define_common(begin, name, name));
      skip_lines();
    } while (scan_.peek() == ',');
    if (!scan_.take(")")) return scan_.wrong_at(begin, "the list of imports is not closed by \")\"");
    return {};
  }

  Status define_common(size_t begin, const std::string& name, const std::string& as) {
    std::string_view pattern;
    for (const CommonTerminal& common : kCommon) {
      if (common.name == name) pattern = common.pattern;
    }
    if (pattern.empty()) return scan_.wrong_at(begin, "the library \"common\" has no terminal \"" + name + "\"");
    if (!is_terminal_name(as)) return scan_.wrong_at(begin, "an imported terminal needs a name in capital letters");
    QUIRE_ASSIGN(const Regex regex, parse_regex(grammar_.regexes(), pattern));
    if (!rules_.define(as, rules_.regex(regex, static_cast<int64_t>(pattern.size())))) {
      return scan_.wrong_at(begin, "\"" + as + "\" is defined a second time");
    }
    return {};
  }

  Result<Expr> choice(Place place) {
    if (place.depth > kMaxGrammarDepth) return scan_.wrong("groups are nested too deeply");
    std::vector<Expr> options;
    do {
      QUIRE_ASSIGN(const Expr option, conjunction(place));
      options.push_back(option);
      skip_inside(place);
    } while (scan_.take("|"));
    return rules_.choice(std::move(options));
  }

  Result<Expr> conjunction(const Place& place) {
    std::vector<Expr> parts;
    do {
      QUIRE_ASSIGN(const Expr part, sequence(place));
      parts.push_back(part);
      skip_inside(place);
      if (scan_.peek() == '&' && !place.in_terminal) return scan_.wrong("\"&\" works only between terminals");
    } while (scan_.take("&"));
    if (scan_.take("->")) {  // The name of an alternative, for a parse tree.
      skip_blanks();
      if (scan_.take_name(false).empty()) return scan_.wrong("a name is missing after \"->\"");
    }
    return rules_.both(std::move(parts));
  }

  Result<Expr> sequence(const Place& place) {
    std::vector<Expr> parts;
    for (skip_inside(place); at_atom(); skip_inside(place)) {
      const bool negated = scan_.peek() == '~';
      QUIRE_ASSIGN(Expr part, atom(place));
      skip_blanks();
      QUIRE_ASSIGN(const std::optional<RepeatBounds> bounds, quantifier());
      if (bounds && negated) return scan_.wrong("a repetition of ~ is not clear; put ~ in a group");
      if (bounds) part = rules_.repeat(part, bounds->min, bounds->max);
      QUIRE_ASSIGN(const std::optional<RepeatBounds> more, quantifier());
      if (more) return scan_.wrong("a repetition follows another; put the first one in a group");
      parts.push_back(part);
    }
    if (parts.empty()) return rules_.regex(grammar_.regexes().empty(), 1);
    return rules_.sequence(std::move(parts));
  }

  bool at_atom() const {
    if (scan_.at_end()) return false;
    const char c = scan_.peek();
    return c != '\n' && c != '|' && c != ')' && c != ']' && c != '&' && c != '}' && !scan_.looking_at("->");
  }

  Result<std::optional<RepeatBounds>> quantifier() {
    if (scan_.take("*")) return std::optional(RepeatBounds{0, {}});
    if (scan_.take("+")) return std::optional(RepeatBounds{1, {}});
    if (scan_.take("?")) return std::optional(RepeatBounds{0, 1});
    if (scan_.peek() == '{') {
      QUIRE_ASSIGN(const RepeatBounds bounds, scan_.braces(true));
      return std::optional(bounds);
    }
    const size_t begin = scan_.pos();
    if (!scan_.take("~")) return std::optional<RepeatBounds>();
    skip_blanks();
    if (scan_.peek() < '0' || scan_.peek() > '9') {
      scan_.set_pos(begin);
      return std::optional<RepeatBounds>();
    }
    RepeatBounds bounds;
    QUIRE_ASSIGN(bounds.min, scan_.number(1'000'000));
    bounds.max = bounds.min;
    skip_blanks();
    if (scan_.take("..")) {
      skip_blanks();
      QUIRE_ASSIGN(bounds.max, scan_.number(1'000'000));
    }
    if (*bounds.max < bounds.min) return scan_.wrong_at(begin, "the upper bound is less than the lower bound");
    return std::optional(bounds);
  }

  // In a rule, ignored text may follow whatever is not a rule itself.
  Expr then_ignored(const Place& place, Expr expr) {
    return place.in_terminal ? expr : rules_.sequence({expr, ignore_});
  }

  Result<Expr> atom(const Place& place) {
    const size_t begin = scan_.pos();
    const char c = scan_.peek();
    if (c == '"') return text_or_range(place);
    if (c == '/') return regex(place);
    if (c == '(' || c == '[') return group(place);
    if (c == '<' || c == '%' || c == '@') {
      if (place.in_terminal) return scan_.wrong("tokens and directives cannot stand in a terminal");
      return special(place);
    }
    if (c == '~') {
      if (!place.in_terminal) return scan_.wrong("\"~\" works only on terminals");
      scan_.take("~");
      skip_blanks();
      if (place.depth >= kMaxGrammarDepth) return scan_.wrong("groups are nested too deeply");
      if (!at_atom()) return scan_.wrong("\"~\" needs a terminal after it");
      QUIRE_ASSIGN(const Expr inside, atom({place.depth + 1, true}));
      return rules_.complement(inside);
    }
    const int line = scan_.line();
    const std::string_view name = scan_.take_name(false);
    if (name.empty()) return unexpected();
    if (is_terminal_name(name)) return then_ignored(place, rules_.reference(name, line));
    if (place.in_terminal) {
      return scan_.wrong_at(begin, "a terminal or an option cannot use the rule \"" + std::string(name) + "\"");
    }
    return rules_.reference(name, line);
  }

  Result<Expr> group(const Place& place) {
    const size_t begin = scan_.pos();
    const bool optional = scan_.take("[");
    if (!optional) scan_.take("(");
    QUIRE_ASSIGN(const Expr inside, choice({place.depth + 1, place.in_terminal}));
    if (!scan_.take(optional ? "]" : ")")) return scan_.wrong_at(begin, "the group is not closed");
    return optional ? rules_.repeat(inside, 0, 1) : inside;
  }

  // "text", "text"i or "a".."z"
  Result<Expr> text_or_range(const Place& place) {
    const size_t begin = scan_.pos();
    QUIRE_ASSIGN(const std::string text, scan_.quoted());
    RegexStore& store = grammar_.regexes();
    const bool dots = scan_.looking_at("..");
    if (dots || scan_.looking_at(" ..")) {
      skip_blanks();
      scan_.take("..");
      skip_blanks();
      if (scan_.peek() != '"') return scan_.wrong("a range is written \"a\"..\"z\"");
      QUIRE_ASSIGN(const std::string last, scan_.quoted());
      const bool one_each = !text.empty() && !last.empty() && utf8::decode(text, 0).size == text.size() &&
                            utf8::decode(last, 0).size == last.size();
      if (!one_each) return scan_.wrong_at(begin, "the ends of a range must be one character each");
      const CodePointRange range{utf8::decode(text, 0).code_point, utf8::decode(last, 0).code_point};
      if (range.last < range.first) return scan_.wrong_at(begin, "the range is out of order");
      return then_ignored(place, rules_.regex(store.chars(std::span(&range, 1)), 1));
    }
    if (!scan_.take("i")) {
      if (text.empty()) return rules_.regex(store.empty(), 1);
      return then_ignored(place, rules_.regex(store.literal(text), static_cast<int64_t>(text.size())));
    }
    std::string pattern = "(?i)";
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)) && c != '\n')
        pattern += '\\';
      pattern += c;
    }
    return parsed_regex(place, begin, pattern, {});
  }

  // /pattern/flags
  Result<Expr> regex(const Place& place) {
    const size_t begin = scan_.pos();
    scan_.take("/");
    const size_t from = scan_.pos();
    while (!scan_.at_end() && scan_.peek() != '/' && scan_.peek() != '\n') {
      scan_.set_pos(scan_.pos() + (scan_.peek() == '\\' ? 2 : 1));
    }
    if (scan_.peek() != '/') return scan_.wrong_at(begin, "the regular expression is not closed by \"/\" on its line");
    const std::string_view pattern = scan_.text().substr(from, scan_.pos() - from);
    scan_.take("/");
    RegexSyntax syntax;
    for (;;) {
      if (scan_.take("i")) {
        syntax.ignore_case = true;
      } else if (scan_.take("s")) {
        syntax.dot_all = true;
      } else if (scan_.peek() == 'm' || scan_.peek() == 'x' || scan_.peek() == 'l') {
        return scan_.wrong("the flag " + std::string(1, scan_.peek()) + " of a regular expression is not supported");
      } else if (!scan_.take("u")) {
        break;
      }
    }
    return parsed_regex(place, begin, pattern, syntax);
  }

  Result<Expr> parsed_regex(const Place& place, size_t begin, std::string_view pattern, const RegexSyntax& syntax) {
    const auto regex = parse_regex(grammar_.regexes(), pattern, syntax);
    if (!regex.ok()) {
      const std::string& message = regex.error().message;
      return scan_.wrong_at(begin, message.substr(0, message.size() - 1));
    }
    return then_ignored(place, rules_.regex(*regex, static_cast<int64_t>(pattern.size())));
  }

  // <token>, %json {...}
  Result<Expr> special(const Place& place) {
    const size_t begin = scan_.pos();
    if (scan_.peek() == '<') {
      QUIRE_ASSIGN(TokenSet tokens, scan_.token_set());
      return then_ignored(place, rules_.tokens(std::move(tokens)));
    }
    if (scan_.peek() == '@') return scan_.wrong("named grammars are not supported");
    if (!scan_.take("%json")) {
      scan_.take("%");
      return scan_.wrong_at(begin, "%" + std::string(scan_.take_name(false)) + " is not supported inside a rule");
    }
    skip_lines();
    if (scan_.peek() != '{') return scan_.wrong("%json needs a JSON Schema in braces");
    QUIRE_ASSIGN(const json::Value schema, json_value());
    QUIRE_ASSIGN(const Symbol symbol, add_json_schema(grammar_, schema, {}));
    return then_ignored(place, rules_.symbol(symbol));
  }

  Result<json::Value> json_value() {
    const size_t begin = scan_.pos();
    QUIRE_ASSIGN(const std::string_view text, scan_.json_text());
    auto value = json::parse(text, {.max_depth = 64});
    if (!value.ok()) return scan_.wrong_at(begin, "the JSON value does not parse: " + value.error().message);
    return value;
  }

  Grammar& grammar_;
  TextScanner scan_;
  RuleSet rules_;
  Expr ignore_ = 0;
  std::vector<Expr> ignored_;
  bool initial_skip_ = false;
  bool has_start_ = false;
};

}  // namespace

Result<Symbol> add_lark(Grammar& grammar, std::string_view text, const SpecialTokens& special) {
  return LarkReader(grammar, text, special).read();
}

}  // namespace quire::grammar
