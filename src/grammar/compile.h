// SPDX-License-Identifier: Apache-2.0
// What a request may ask for as a constraint, and its translation into a Grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/matcher.h"
#include "grammar/special_tokens.h"

namespace quire::grammar {

// One constraint as the API takes it. Exactly one kind.
struct Spec {
  enum class Kind : uint8_t {
    kJson,           // `json`: a JSON Schema (object or boolean)
    kRegex,          // `text`: a pattern that the whole answer matches
    kChoice,         // `choice`: one of these strings
    kGrammar,        // `text`: EBNF or GBNF if a line has "::=", else Lark
    kStructuralTag,  // `json`: {"type": "structural_tag", "format": ...}, a bare format, or the older "structures"
  };
  Kind kind = Kind::kJson;
  json::Value json;
  std::string text;
  std::vector<std::string> choice;
  // Options of JSON.
  bool any_whitespace = true;         // false: compact, no white space between tokens
  bool additional_properties = true;  // false: no properties but those listed, wherever the schema does not say
  bool any_order = true;              // false: the members that a schema lists come in its order
  // A regex for the white space between tokens. Without it: a blank, or line breaks and an indentation, of bounded
  // length.
  std::optional<std::string> whitespace_pattern;
};

// Translates a constraint. Every error is an invalid argument whose message names the keyword or the place, such as
// `the schema's keyword "unevaluatedItems" at /properties/a is not supported`; nothing is ignored that changes what the
// constraint accepts. Bounded in time and memory by the limits of Grammar and by fuel of its own.
Result<Grammar> translate(const Spec& spec, const SpecialTokens& special);

// The front ends, one file each; each adds rules to a grammar and returns the symbol that matches.
struct JsonOptions {
  bool any_whitespace = true;
  bool additional_properties = true;
  std::optional<std::string> whitespace_pattern;
  // How the top-level object is written: as JSON, or as tagged parameters of a tool call (structural_tag.h has the
  // list).
  std::string style = "json";
  bool any_order = true;
};
Result<Symbol> add_json_schema(Grammar& grammar, const json::Value& schema, const JsonOptions& options);
Result<Symbol> add_ebnf(Grammar& grammar, std::string_view text, const SpecialTokens& special);
Result<Symbol> add_lark(Grammar& grammar, std::string_view text, const SpecialTokens& special);
// EBNF or GBNF if a line has "::=" outside a comment, else Lark.
Result<Symbol> add_grammar_text(Grammar& grammar, std::string_view text, const SpecialTokens& special);
// `tag` is {"type": "structural_tag", "format": ...}, a format alone, or the older {"structures": ..., "triggers":
// ...}.
Result<Symbol> add_structural_tag(Grammar& grammar, const json::Value& tag, const JsonOptions& options,
                                  const SpecialTokens& special);

// A marker such as "<|tool_call|>[{" of a structural tag: the model produces the texts of special tokens as those
// tokens and not as bytes, so this is a sequence of tokens and literals. At each place the longest token text is taken.
Symbol add_marked_literal(Grammar& grammar, std::string_view text, const SpecialTokens& special);

// Translated and compiled constraints of one model, by everything that the constraint says. Any thread. The least
// recently used are dropped once they take more than max_bytes. Two requests for the same constraint at the same time
// compile it once: the second waits for the first.
class CompilerCache {
 public:
  CompilerCache(std::shared_ptr<const Vocabulary> vocabulary, SpecialTokens special,
                size_t max_bytes = size_t{64} << 20, const MatcherLimits& limits = {});
  ~CompilerCache();
  Result<std::shared_ptr<const CompiledGrammar>> get(const Spec& spec);

  struct Stats {
    int64_t hits = 0, misses = 0, entries = 0;
    size_t bytes = 0;
  };
  Stats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire::grammar
