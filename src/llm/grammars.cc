// SPDX-License-Identifier: Apache-2.0
// A vocabulary made from the tokenizer, and matchers as constraints.
#include "llm/grammars.h"

#include <algorithm>
#include <utility>

namespace quire::llm {
namespace {

using grammar::CompiledGrammar;
using grammar::Vocabulary;

// What the sequences of a request share.
struct Shared {
  std::shared_ptr<const CompiledGrammar> grammar;
  std::vector<int32_t> end_tokens;
  std::string field;
};

Error named(Error error, const std::string& field) {
  if (field.empty()) return error;
  error.message = field + ": " + error.message;
  error.field = field;
  return error;
}

class GrammarConstraint final : public TextConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const Shared> shared)
      : shared_(std::move(shared)), matcher_(shared_->grammar) {}

  Result<bool> fill_mask(std::span<uint32_t> mask) override {
    const Status filled = matcher_.fill_mask(mask, shared_->end_tokens);
    if (!filled.ok()) return named(filled.error(), shared_->field);
    return true;
  }
  Status accept(int32_t token) override {
    const Status accepted = matcher_.accept(token, shared_->end_tokens);
    return accepted.ok() ? accepted : Status(named(accepted.error(), shared_->field));
  }
  bool accept_bytes(std::string_view bytes) override { return matcher_.accept_bytes(bytes); }
  void rollback(int64_t count) override { matcher_.rollback(count); }
  void forced(int64_t most, std::vector<int32_t>& tokens) override {
    matcher_.forced_tokens(static_cast<size_t>(most), tokens);
  }

 private:
  const std::shared_ptr<const Shared> shared_;
  grammar::Matcher matcher_;
};

}  // namespace

grammar::CompilerCache& Grammars::cache() {
  std::call_once(made_, [this] {
    std::vector<Vocabulary::Token> tokens;
    std::vector<std::pair<std::string, int32_t>> special;
    const int64_t count = std::min<int64_t>(tokenizer_->vocab_size(), vocab_size_);
    tokens.reserve(static_cast<size_t>(count));
    for (int32_t id = 0; id < count; ++id) {
      tokens.push_back({tokenizer_->token_bytes(id), tokenizer_->is_special(id)});
      if (tokens.back().special) special.emplace_back(tokens.back().bytes, id);
    }
    cache_ = std::make_unique<grammar::CompilerCache>(Vocabulary::make(std::move(tokens), vocab_size_),
                                                      grammar::SpecialTokens(std::move(special)));
  });
  return *cache_;
}

Result<TextConstraintMaker> Grammars::make(const grammar::Spec& spec, const sampling::SamplingParams& params,
                                           const std::string& field) {
  auto shared = std::make_shared<Shared>();
  shared->field = field;
  for (const auto* ids : {&params.eos_token_ids, &params.stop_token_ids}) {
    for (const int32_t id : *ids) {
      if (id >= 0 && id < vocab_size_) shared->end_tokens.push_back(id);
    }
  }
  if (shared->end_tokens.empty()) {
    return named({ErrorCode::kUnsupported,
                  "this model has no EOS token, so a constrained answer could not end; give stop_token_ids"},
                 field);
  }
  auto compiled = cache().get(spec);
  if (!compiled.ok()) return named(compiled.error(), field);
  shared->grammar = std::move(*compiled);
  return TextConstraintMaker([shared = std::shared_ptr<const Shared>(std::move(shared))] {
    return std::make_unique<GrammarConstraint>(shared);
  });
}

}  // namespace quire::llm
