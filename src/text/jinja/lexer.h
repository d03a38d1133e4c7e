// SPDX-License-Identifier: Apache-2.0
// Splits the source of a template into tokens, with Jinja2's rules for white space.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/template.h"

namespace quire::text::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, the string unescaped, or the operator
  int64_t integer = 0;
  double real = 0;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_op(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

// The name of a token in messages.
std::string describe(const Token& token);

// The tokens of the source; the last one is kEnd. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source, const ParseOptions& options);

}  // namespace quire::text::jinja
