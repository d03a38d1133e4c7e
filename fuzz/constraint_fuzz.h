// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets of constraints share: translate, compile, then follow the masks for a few tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grammar/compile.h"

namespace quire::fuzz {

inline const std::vector<std::string>& special_texts() {
  static const std::vector<std::string> texts = {"<|end|>", "<|call|>", "<think>", "</think>"};
  return texts;
}

// All bytes, some longer tokens, and four special tokens.
inline std::shared_ptr<const grammar::Vocabulary> small_vocabulary() {
  std::vector<grammar::Vocabulary::Token> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte))});
  for (const char* text : {"ab", "abc", " a", "\": ", "{\"", "\"}", "true", "12", "\n\n", "</", "\xc3\xa9"}) {
    tokens.push_back({text});
  }
  for (const std::string& text : special_texts()) tokens.push_back({text, true});
  const auto size = static_cast<int64_t>(tokens.size());
  return grammar::Vocabulary::make(std::move(tokens), size);
}

// Translates the constraint and takes up to eight tokens that its masks allow: each must be accepted, and must lead to
// a place where the text may end or go on.
inline void try_constraint(const grammar::Spec& spec) {
  static const auto vocabulary = small_vocabulary();
  static const grammar::SpecialTokens special = [] {
    std::vector<std::pair<std::string, int32_t>> tokens;
    const auto first = static_cast<int32_t>(vocabulary->size() - static_cast<int64_t>(special_texts().size()));
    for (size_t i = 0; i < special_texts().size(); ++i) {
      tokens.emplace_back(special_texts()[i], first + static_cast<int32_t>(i));
    }
    return grammar::SpecialTokens(std::move(tokens));
  }();
  auto translated = grammar::translate(spec, special);
  if (!translated.ok()) {
    QUIRE_CHECK(!translated.error().message.empty(), "an error has a message");
    return;
  }
  grammar::MatcherLimits limits;
  limits.fuel_per_mask = 200'000;
  limits.fuel_to_build = 2'000'000;
  auto compiled = grammar::CompiledGrammar::make(std::move(translated).value(), vocabulary, limits);
  if (!compiled.ok()) return;
  grammar::Matcher matcher(*compiled);
  std::vector<uint32_t> mask(vocabulary->mask_words());
  uint64_t random = 88172645463325252u;
  for (int step = 0; step < 8; ++step) {
    if (!matcher.fill_mask(mask, {}).ok()) return;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    QUIRE_CHECK(!allowed.empty() || matcher.may_end(), "the text can end or go on");
    if (allowed.empty()) return;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const int32_t token = allowed[random % allowed.size()];
    const Status accepted = matcher.accept(token, {});
    if (!accepted.ok()) {
      // Only fuel may stop a token that the mask allows.
      QUIRE_CHECK(accepted.error().code != ErrorCode::kInvalidArgument, accepted.error().message.c_str());
      return;
    }
  }
}

}  // namespace quire::fuzz
