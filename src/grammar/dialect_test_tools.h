// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of grammar texts and structural tags: does a constraint accept a text with tokens in it?
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "grammar/test_grammars.h"

namespace quire::grammar {

// The special tokens of the tests; their ids follow the 256 bytes.
inline const std::vector<std::string>& special_texts() {
  static const std::vector<std::string> texts = {"<|end|>", "<|call|>", "<|call|>x", "<think>", "</think>"};
  return texts;
}

inline SpecialTokens special_tokens() {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (size_t i = 0; i < special_texts().size(); ++i)
    tokens.emplace_back(special_texts()[i], static_cast<int32_t>(256 + i));
  return SpecialTokens(std::move(tokens));
}

inline Spec grammar_spec(std::string text) {
  Spec spec;
  spec.kind = Spec::Kind::kGrammar;
  spec.text = std::move(text);
  return spec;
}

inline Spec tag_spec(std::string_view json) {
  Spec spec;
  spec.kind = Spec::Kind::kStructuralTag;
  auto value = json::parse(json);
  EXPECT_TRUE(value.ok()) << json;
  if (value.ok()) spec.json = std::move(value).value();
  return spec;
}

inline Result<std::shared_ptr<const CompiledGrammar>> compile_spec(const Spec& spec) {
  static const auto vocabulary = byte_vocabulary({}, special_texts());
  QUIRE_ASSIGN(Grammar grammar, translate(spec, special_tokens()));
  return CompiledGrammar::make(std::move(grammar), vocabulary);
}

// Whether the whole text is accepted. "\x01" followed by a digit stands for a special token: "\x01" "0" is <|end|>.
inline bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x01') {
      if (!matcher.accept_bytes(text.substr(i, 1))) return false;
      continue;
    }
    ++i;
    if (!matcher.accept(256 + (text[i] - '0'), {}).ok()) return false;
  }
  return matcher.may_end();
}

inline void check_spec(const Spec& spec, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
  const auto grammar = compile_spec(spec);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (const std::string& text : yes) EXPECT_TRUE(accepts(*grammar, text)) << "should accept: " << text;
  for (const std::string& text : no) EXPECT_FALSE(accepts(*grammar, text)) << "should refuse: " << text;
}

inline std::string spec_error(const Spec& spec) {
  const auto grammar = translate(spec, special_tokens());
  return grammar.ok() ? "" : grammar.error().message;
}

}  // namespace quire::grammar
