// SPDX-License-Identifier: Apache-2.0
// From a constraint of a request to a Grammar.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/compile.h"
#include "grammar/text_scanner.h"

namespace quire::grammar {

namespace {

constexpr int kMaxSchemaDepth = 64;
constexpr int kMaxTagDepth = 80;

bool deeper_than(const json::Value& value, int depth) {
  if (!value.is_array() && !value.is_object()) return false;
  if (depth == 0) return true;
  if (value.is_array()) {
    for (const json::Value& each : value.as_array()) {
      if (deeper_than(each, depth - 1)) return true;
    }
    return false;
  }
  for (const auto& [name, each] : value.as_object()) {
    if (deeper_than(each, depth - 1)) return true;
  }
  return false;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

JsonOptions json_options(const Spec& spec) {
  JsonOptions options;
  options.any_whitespace = spec.any_whitespace;
  options.additional_properties = spec.additional_properties;
  options.any_order = spec.any_order;
  options.whitespace_pattern = spec.whitespace_pattern;
  return options;
}

Result<Symbol> add_schema(Grammar& grammar, const Spec& spec) {
  if (!spec.json.is_object() && !spec.json.is_bool()) {
    return invalid_argument(
        {"The JSON Schema must be an object, not ", std::string(json::describe(spec.json.kind())), "."});
  }
  if (deeper_than(spec.json, kMaxSchemaDepth)) {
    return invalid_argument(
        "The JSON Schema is nested too deeply: at most 64 levels of objects and lists are allowed.");
  }
  return add_json_schema(grammar, spec.json, json_options(spec));
}

Result<Symbol> add_regex(Grammar& grammar, const Spec& spec) {
  if (spec.text.find('\0') != std::string::npos) {
    return invalid_argument("The regex must not contain the character NUL; write \\x00.");
  }
  QUIRE_ASSIGN(const Regex regex, parse_regex(grammar.regexes(), spec.text));
  return grammar.terminal(regex);
}

Result<Symbol> add_choice(Grammar& grammar, const Spec& spec) {
  if (spec.choice.empty()) return invalid_argument("The list of choices must have at least one string.");
  std::vector<Regex> options;
  options.reserve(spec.choice.size());
  for (const std::string& text : spec.choice) {
    if (!utf8::is_valid(text)) return invalid_argument("A choice is not valid UTF-8.");
    options.push_back(grammar.regexes().literal(text));
  }
  return grammar.terminal(grammar.regexes().either(options));
}

Result<Symbol> add_tag(Grammar& grammar, const Spec& spec, const SpecialTokens& special) {
  if (deeper_than(spec.json, kMaxTagDepth)) {
    return invalid_argument(
        "The structural tag is nested too deeply: at most 80 levels of objects and lists are allowed.");
  }
  return add_structural_tag(grammar, spec.json, json_options(spec), special);
}

Result<Symbol> add_spec(Grammar& grammar, const Spec& spec, const SpecialTokens& special) {
  switch (spec.kind) {
    case Spec::Kind::kJson:
      return add_schema(grammar, spec);
    case Spec::Kind::kRegex:
      return add_regex(grammar, spec);
    case Spec::Kind::kChoice:
      return add_choice(grammar, spec);
    case Spec::Kind::kGrammar:
      return add_grammar_text(grammar, spec.text, special);
    case Spec::Kind::kStructuralTag:
      return add_tag(grammar, spec, special);
  }
  return invalid_argument("The constraint has an unknown kind.");
}

// Whether some line begins with "name ::=" or "name[options] ::=". A comment does not, and neither does a line of Lark
// that has ::= in a string.
bool is_ebnf(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t sign = line.find("::=");
    if (sign == std::string_view::npos) continue;
    std::string_view left = line.substr(0, sign);
    while (!left.empty() && (left.back() == ' ' || left.back() == '\t')) left.remove_suffix(1);
    const size_t bracket = left.find('[');
    if (bracket != std::string_view::npos && left.ends_with(']')) left = left.substr(0, bracket);
    const size_t from = left.find_first_not_of(" \t");
    if (from == std::string_view::npos) return true;
    if (left.substr(from).find_first_of(" \t\"'/#:") == std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

Result<Symbol> add_grammar_text(Grammar& grammar, std::string_view text, const SpecialTokens& special) {
  if (is_blank(text)) return invalid_argument("The grammar is empty.");
  return is_ebnf(text) ? add_ebnf(grammar, text, special) : add_lark(grammar, text, special);
}

Result<Grammar> translate(const Spec& spec, const SpecialTokens& special) {
  Grammar grammar;
  QUIRE_ASSIGN(const Symbol start, add_spec(grammar, spec, special));
  grammar.set_start(start);
  QUIRE_TRY(grammar.status());
  return grammar;
}

}  // namespace quire::grammar
