// SPDX-License-Identifier: Apache-2.0
// Makes the constraints of requests for the engine.
#include "llm/constraint.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"

namespace quire::llm {
namespace {

// What the sequences of a request share.
struct GateRules {
  ReasoningRules rules;
  ReasoningTokens tokens;
  TextConstraintMaker inner;
  size_t longest_marker = 0;
};

class ReasoningGate final : public engine::Constraint {
 public:
  explicit ReasoningGate(std::shared_ptr<const GateRules> shared) : shared_(std::move(shared)) {
    if (shared_->inner) inner_ = shared_->inner();
    begin_forcing_if_due();
  }

  Result<bool> fill_mask(std::span<uint32_t> mask) override {
    if (now_.state == State::kAfter) return inner_ == nullptr ? Result<bool>(false) : inner_->fill_mask(mask);
    if (now_.state == State::kReasoning) return false;
    const auto token = static_cast<uint32_t>(shared_->tokens.forced_end[now_.forced]);
    QUIRE_CHECK(token / 32 < mask.size());
    std::ranges::fill(mask, 0u);
    mask[token / 32] = uint32_t{1} << (token % 32);
    return true;
  }

  Status accept(int32_t token) override {
    Position before = now_;
    QUIRE_TRY(advance(token));
    before_.push_back(std::move(before));
    if (before_.size() > static_cast<size_t>(kMaxRollback)) before_.pop_front();
    return {};
  }

  void rollback(int64_t count) override {
    if (count == 0) return;
    QUIRE_CHECK(count > 0 && count <= static_cast<int64_t>(before_.size()));
    const size_t left = before_.size() - static_cast<size_t>(count);
    const int64_t inner_steps = now_.inner_steps;
    now_ = std::move(before_[left]);
    before_.resize(left);
    if (inner_steps > now_.inner_steps) inner_->rollback(inner_steps - now_.inner_steps);
  }

  void forced(int64_t most, std::vector<int32_t>& tokens) override {
    if (now_.state == State::kAfter && inner_ != nullptr) inner_->forced(most, tokens);
    if (now_.state != State::kForcing) return;
    const auto rest = std::span(shared_->tokens.forced_end).subspan(now_.forced);
    tokens.assign(rest.begin(), rest.begin() + std::min<std::ptrdiff_t>(most, std::ssize(rest)));
  }

 private:
  enum class State : uint8_t { kReasoning, kForcing, kAfter };
  struct Found {
    size_t begin, end;
    bool implicit;
  };

  // Where the gate is.
  struct Position {
    State state = State::kReasoning;
    int64_t num_tokens = 0;   // in the reasoning
    size_t forced = 0;        // tokens of the forced end that were generated
    std::string tail;         // the last bytes of the reasoning, in which a marker may have begun
    int64_t inner_steps = 0;  // that inner_ has taken
  };

  Status advance(int32_t token) {
    switch (now_.state) {
      case State::kAfter:
        if (inner_ == nullptr) return {};
        QUIRE_TRY(inner_->accept(token));
        ++now_.inner_steps;
        return {};
      case State::kForcing:
        if (++now_.forced == shared_->tokens.forced_end.size()) now_.state = State::kAfter;
        return {};
      case State::kReasoning:
        break;
    }
    ++now_.num_tokens;
    look_for_end(token);
    if (now_.state == State::kReasoning) begin_forcing_if_due();
    return {};
  }

  void begin_forcing_if_due() {
    const std::optional<int64_t>& budget = shared_->rules.token_budget;
    if (budget && now_.num_tokens >= *budget) now_.state = State::kForcing;
  }

  // The marker that begins first in the last bytes; of several that begin at the same place, the longest.
  std::optional<Found> find_marker() const {
    std::optional<Found> first;
    const auto look = [&](const std::vector<std::string>& markers, bool implicit) {
      for (const std::string& marker : markers) {
        const size_t at = marker.empty() ? std::string::npos : now_.tail.find(marker);
        if (at == std::string::npos) continue;
        const Found found{at, at + marker.size(), implicit};
        if (!first || found.begin < first->begin || (found.begin == first->begin && found.end > first->end)) {
          first = found;
        }
      }
    };
    look(shared_->rules.ends, false);
    look(shared_->rules.implicit_ends, true);
    return first;
  }

  void look_for_end(int32_t token) {
    const std::string bytes = shared_->tokens.tokenizer->token_bytes(token);
    const size_t token_begin = now_.tail.size();
    now_.tail += bytes;
    const std::optional<Found> found = find_marker();
    if (!found) {
      if (now_.tail.size() >= shared_->longest_marker)
        now_.tail.erase(0, now_.tail.size() - shared_->longest_marker + 1);
      return;
    }
    now_.state = State::kAfter;
    if (inner_ == nullptr) return;
    const size_t begin = found->implicit ? found->begin : found->end;
    // Where the rest is refused, the constraint begins with the next token. A marker that begins with this token is fed
    // as a token: it may be a special one, which no bytes match.
    const bool accepted = begin == token_begin && found->implicit
                              ? inner_->accept(token).ok()
                              : inner_->accept_bytes(std::string_view(now_.tail).substr(begin));
    now_.inner_steps += accepted ? 1 : 0;
  }

  const std::shared_ptr<const GateRules> shared_;
  std::unique_ptr<TextConstraint> inner_;
  Position now_;
  std::deque<Position> before_;  // the last kMaxRollback tokens
};

class ReasoningGateSource final : public engine::ConstraintSource {
 public:
  explicit ReasoningGateSource(GateRules rules) : shared_(std::make_shared<const GateRules>(std::move(rules))) {}
  std::unique_ptr<engine::Constraint> make() const override { return std::make_unique<ReasoningGate>(shared_); }

 private:
  const std::shared_ptr<const GateRules> shared_;
};

class PlainSource final : public engine::ConstraintSource {
 public:
  explicit PlainSource(TextConstraintMaker maker) : maker_(std::move(maker)) {}
  std::unique_ptr<engine::Constraint> make() const override { return maker_(); }

 private:
  const TextConstraintMaker maker_;
};

}  // namespace

engine::ConstraintPtr make_constraint(TextConstraintMaker maker) {
  return std::make_shared<const PlainSource>(std::move(maker));
}

engine::ConstraintPtr make_reasoning_gate(ReasoningRules rules, ReasoningTokens tokens, TextConstraintMaker inner) {
  QUIRE_CHECK(rules.starts_inside && (!rules.token_budget || !tokens.forced_end.empty()));
  GateRules shared{std::move(rules), std::move(tokens), std::move(inner)};
  for (const auto* markers : {&shared.rules.ends, &shared.rules.implicit_ends}) {
    for (const std::string& marker : *markers) shared.longest_marker = std::max(shared.longest_marker, marker.size());
  }
  return std::make_shared<const ReasoningGateSource>(std::move(shared));
}

}  // namespace quire::llm
