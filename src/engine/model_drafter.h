// SPDX-License-Identifier: Apache-2.0
// ModelDrafter: proposes the next tokens of all sequences with a second, smaller model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/row_sampler.h"
#include "engine/step.h"
#include "kv/kv_manager.h"
#include "model/model.h"

namespace quire::engine {

// The draft model has the layers after those of the target in the same pages, so each position of a sequence has room
// for both, a prefix cache hit brings both, and a preempted sequence loses both. Sequence::num_drafted counts the
// positions that the draft model has computed. It may be behind num_computed, since the draft model computes what it
// has missed when it is next needed: for drafts, and before a page is published. It never writes a published page.
//
// Drafts are sampled with the sequence's own settings and the random words of their positions. So a draft model that is
// the target proposes exactly the target's tokens, at any temperature.
//
// Owned by the engine, used on its thread while no step is in flight.
class ModelDrafter {
 public:
  // `pages` are those of the draft model's layers. REQUIRES: the model has no recurrent layers, and is prepared.
  ModelDrafter(Backend& backend, const kv::KvManager& kv, model::Model& model, std::unique_ptr<model::KvCache> pages,
               const model::BatchLimits& limits, int64_t max_length);

  // Sequences as long as this get no drafts.
  int64_t max_length() const { return max_length_; }
  // Replaces the drafts of each share with drafts by as many proposed tokens, or fewer.
  // REQUIRES: the tables have pages for them.
  void propose(std::span<const Share> shares);
  // Computes the pages that are full once the shares are committed. REQUIRES: num_computed counts accepted tokens.
  void follow(std::span<const Share> shares);

 private:
  // Positions that a sequence lacks, up to `end`, and how many more tokens are sampled after the one that follows
  // them; -1: not even that one.
  struct Work {
    Sequence* sequence = nullptr;
    int64_t end = 0;
    int64_t samples = -1;
  };
  bool must_follow(int64_t drafted, int64_t computed) const;
  void run(std::span<const Work> all);
  void begin_batch();
  void add(const Work& work, int64_t count);
  void add_pages();
  void run_batch();

  Backend& backend_;
  const kv::KvManager& kv_;
  model::Model& model_;
  const std::unique_ptr<model::KvCache> pages_;
  const int64_t max_tokens_;
  const int64_t max_length_;
  int64_t page_size_ = 0;               // positions per page, in the group with the smallest pages
  std::vector<size_t> groups_;          // the cache groups with layers of the draft model
  std::vector<int64_t> offsets_ = {0};  // for must_follow(): 0, and of each window the positions before the last one
  std::unique_ptr<RowSampler> sampler_;
  std::vector<Work> work_;
  Step step_;  // the sequences and rows of batch_
  model::StepBatch batch_;
};

}  // namespace quire::engine
