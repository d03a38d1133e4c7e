// SPDX-License-Identifier: Apache-2.0
// What constrains an answer: a grammar, which holds after the reasoning, and a budget of reasoning tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/constraint.h"
#include "grammar/compile.h"
#include "text/tokenizer.h"

namespace quire::llm {

// How an answer's reasoning ends. Markers are looked for in the bytes of the generated tokens, special tokens spelt
// out, so that the reasoning ends where the parser of the answer (markup::Parser) sees its end.
struct ReasoningRules {
  bool starts_inside = false;              // generation begins inside the reasoning; if not, nothing else here counts
  std::vector<std::string> ends;           // "</think>": the grammar begins after it
  std::vector<std::string> implicit_ends;  // "<tool_call>": ends the reasoning, and the grammar begins with it
  // How many tokens the reasoning may have; then forced_end is generated. None: any number.
  std::optional<int64_t> token_budget;
  std::string forced_end;  // a text with one of `ends`; "": the first of them
};

// The constraint of one request.
struct ConstraintSpec {
  std::optional<grammar::Spec> grammar;
  std::string field;  // the field of the request that the grammar is from, for errors
  ReasoningRules reasoning;
};

// A constraint on the text of an answer, which may also begin inside a token.
class TextConstraint : public engine::Constraint {
 public:
  // Advances by bytes; false: they are refused, and nothing has changed. rollback() counts it like a token.
  virtual bool accept_bytes(std::string_view bytes) = 0;
};
using TextConstraintMaker = std::function<std::unique_ptr<TextConstraint>()>;

// The constraint of a request without reasoning.
engine::ConstraintPtr make_constraint(TextConstraintMaker maker);

// What the reasoning rules need to know of the model.
struct ReasoningTokens {
  text::TokenizerPtr tokenizer;
  std::vector<int32_t> forced_end;  // the ids of ReasoningRules::forced_end
};

// The constraint of a request whose reasoning has rules: all tokens are allowed until the reasoning ends, then `inner`
// (null: no constraint) decides. The rest of the token in which an end marker ends goes to `inner`, and so does an
// implicit end; where `inner` refuses it, it begins with the next token.
// REQUIRES: rules.starts_inside; if there is a budget, tokens.forced_end is not empty.
engine::ConstraintPtr make_reasoning_gate(ReasoningRules rules, ReasoningTokens tokens, TextConstraintMaker inner);

}  // namespace quire::llm
