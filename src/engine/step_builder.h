// SPDX-License-Identifier: Apache-2.0
// StepBuilder: makes the model's batch from what the scheduler chose.
#pragma once

#include <span>

#include "backend/backend.h"
#include "engine/step.h"
#include "kv/kv_manager.h"
#include "model/step_batch.h"

namespace quire::engine {

// Owned by the engine, used on its thread. The batch keeps its memory from step to step.
class StepBuilder {
 public:
  StepBuilder(const Backend& backend, const kv::KvManager& kv) : backend_(backend), kv_(kv) {}

  // Fills step.rows. The batch is valid until the next call.
  // REQUIRES: each sequence of step.shares has pages for its share.
  const model::StepBatch& build(Step& step);

 private:
  void add_tokens(const Share& share);
  void add_rows(const Share& share, size_t index, int64_t first_token, std::vector<LogitRow>& rows);
  void add_adapters(std::span<const Share> shares);
  void add_pooled_rows(const Share& share, size_t index, int64_t first_token, Step& step);
  void add_pages(std::span<const Share> shares, size_t index);
  void add_states(std::span<const Share> shares, size_t index);

  const Backend& backend_;
  const kv::KvManager& kv_;
  model::StepBatch batch_;
  std::vector<int32_t> pooled_;  // the tokens whose hidden states are pooled
};

}  // namespace quire::engine
