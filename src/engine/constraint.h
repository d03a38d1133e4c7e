// SPDX-License-Identifier: Apache-2.0
// Constraint: what restricts the tokens of a sequence beyond its sampling settings (a grammar, a thinking budget).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace quire::engine {

// The state of one sequence's constraint. A function of the sequence's output tokens alone. Used by one thread at a
// time, not always the engine's: masks are filled by workers while the model runs.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // Writes one bit per token (bit i % 32 of word i / 32; 1: allowed) and returns true, or returns false if every token
  // is allowed. An error ends this sequence only.
  virtual Result<bool> fill_mask(std::span<uint32_t> mask) = 0;
  // The sequence was extended by this token.
  virtual Status accept(int32_t token) = 0;
  // Takes back the last `count` tokens that were accepted without an error, at most kMaxRollback: the masks along
  // drafts are filled as if the drafts were part of the sequence.
  virtual void rollback(int64_t count) = 0;
  static constexpr int64_t kMaxRollback = 128;
  // Appends at most `most` tokens that probably come next, because the constraint leaves nothing else; they become
  // drafts. Changes nothing.
  virtual void forced(int64_t /*most*/, std::vector<int32_t>& /*tokens*/) {}
};

// The constraint of a request, shared by its n sequences. Any thread.
class ConstraintSource {
 public:
  virtual ~ConstraintSource() = default;
  virtual std::unique_ptr<Constraint> make() const = 0;
};
using ConstraintPtr = std::shared_ptr<const ConstraintSource>;

}  // namespace quire::engine
