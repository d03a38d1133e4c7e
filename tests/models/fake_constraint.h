// SPDX-License-Identifier: Apache-2.0
// Constraints for tests of the engine: each mask is a function of the tokens so far, and every token is checked.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/constraint.h"

namespace quire::testing {

// Whether `token` may follow these output tokens.
using Allows = std::function<bool(std::span<const int32_t> output, int32_t token)>;
// Whether anything may follow.
using AllowsAll = std::function<bool(std::span<const int32_t> output)>;

class FakeConstraint final : public engine::Constraint {
 public:
  FakeConstraint(Allows allows, AllowsAll all) : allows_(std::move(allows)), all_(std::move(all)) {}

  Result<bool> fill_mask(std::span<uint32_t> mask) override {
    if (all_ && all_(output_)) return false;
    std::ranges::fill(mask, 0u);
    for (size_t token = 0; token < mask.size() * 32; ++token) {
      if (allows_(output_, static_cast<int32_t>(token))) mask[token / 32] |= uint32_t{1} << (token % 32);
    }
    return true;
  }
  Status accept(int32_t token) override {
    if (!(all_ && all_(output_)) && !allows_(output_, token)) {
      return Error{ErrorCode::kInternal,
                   "token " + std::to_string(token) + " was not allowed as number " + std::to_string(output_.size())};
    }
    output_.push_back(token);
    return {};
  }
  void rollback(int64_t count) override { output_.resize(output_.size() - static_cast<size_t>(count)); }

 private:
  const Allows allows_;
  const AllowsAll all_;
  std::vector<int32_t> output_;
};

class FakeSource final : public engine::ConstraintSource {
 public:
  explicit FakeSource(Allows allows, AllowsAll all = {}) : allows_(std::move(allows)), all_(std::move(all)) {}
  std::unique_ptr<engine::Constraint> make() const override { return std::make_unique<FakeConstraint>(allows_, all_); }

 private:
  const Allows allows_;
  const AllowsAll all_;
};

inline engine::ConstraintPtr fake_constraint(Allows allows, AllowsAll all = {}) {
  return std::make_shared<const FakeSource>(std::move(allows), std::move(all));
}

// About a seventh of the vocabulary, which depends on all tokens so far; every fourth token is free.
inline engine::ConstraintPtr hashed_constraint(uint32_t seed) {
  return fake_constraint(
      [seed](std::span<const int32_t> output, int32_t token) {
        uint32_t hash = seed * 2654435761u + 97;
        for (const int32_t t : output) hash = (hash ^ static_cast<uint32_t>(t)) * 2654435761u;
        return ((hash >> 7) + static_cast<uint32_t>(token) * 40503u) % 7 == 0;
      },
      [](std::span<const int32_t> output) { return output.size() % 4 == 3; });
}

}  // namespace quire::testing
