// SPDX-License-Identifier: Apache-2.0
// ModelDrafter: proposes the next tokens of all sequences with a second model, or with a layer ahead of the model.
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

// The drafter's model has the layers after those of the target in the same pages, so each position of a sequence has
// room for both, a prefix cache hit brings both, and a preempted sequence loses both. It never writes a published page.
//
// Drafts are sampled with the sequence's own settings and the random words of their positions. So a model that gives
// the target's logits proposes exactly the target's tokens, at any temperature.
//
// On a backend that samples, the pass for the next drafts is queued with the tokens that the last pass is sampling, so
// that the host waits for the last of them alone. (Settings that look at the sequence's tokens let the sampling, but
// not the pass, wait for the tokens before it.)
//
// Owned by the engine, used on its thread while no step is in flight.
class ModelDrafter {
 public:
  struct Parts {
    Backend& backend;
    const kv::KvManager& kv;
    model::Model& model;                    // prepared; without recurrent layers
    std::unique_ptr<model::KvCache> pages;  // of the model's layers
    model::BatchLimits limits;
    int64_t max_length = 0;
  };
  virtual ~ModelDrafter() = default;

  // Longer sequences get no drafts.
  int64_t max_length() const { return max_length_; }
  // Replaces the drafts of each share whose drafts are place holders (-1) by as many proposed tokens, or fewer.
  // REQUIRES: the tables have pages for them.
  virtual void propose(std::span<const Share> shares) = 0;
  // Called after each step, before its pages are committed. REQUIRES: num_computed counts accepted tokens.
  virtual void follow(std::span<const Share> shares) = 0;
  // The sequence ends.
  void forget(const Sequence* sequence) { step_.forget(sequence); }
  void set_tap(RowSampler::LogitsTap tap) { sampler_->set_tap(std::move(tap)); }

 protected:
  explicit ModelDrafter(Parts parts);

  void begin_batch();
  // Adds a row of a sequence, which follows the last one if that was of the same sequence.
  void add_row(Sequence& sequence, int64_t position, int32_t token);
  // The token at `position` of the sequence is to be sampled from the last row.
  void want(Sequence& sequence, int64_t position);
  void run_batch();
  // Samples what was wanted of the last batch; adds each token to the drafts and the history of its sequence. Sequences
  // whose rows cannot be sampled get no more.
  void sample();
  // The same, and then as many further passes as it takes to sample left[i] tokens from the wanted row i on.
  void sample_on(std::vector<int64_t> left);
  // Adds the row that has the draft which `row` of the last batch samples; `at` is that row's index in that batch.
  virtual void add_draft(const LogitRow& row, int32_t at, int32_t token) = 0;
  // Whether the share has place holders for drafts.
  static bool wants_drafts(const Share& share);
  // Takes the drafts out of the history again.
  static void end_drafts(Sequence& sequence);

  const int64_t max_tokens_;
  const int64_t max_length_;
  int64_t page_size_;                   // positions per page, in the group with the smallest pages
  std::vector<int64_t> offsets_ = {0};  // 0, and of each window of the model the positions before the last one
  Step step_;                           // the sequences (shares) and the wanted rows of the batch
  model::StepBatch batch_;

 private:
  void add_pages();
  void enqueue_samples();
  void read_samples(Step& step);
  bool pass_on(std::vector<int64_t>& left, bool queued);

  Step last_;                         // whose tokens the batch in step_ begins with
  std::vector<int32_t> last_wanted_;  // StepBatch::wanted of its batch
  Backend& backend_;
  const kv::KvManager& kv_;
  model::Model& model_;
  const std::unique_ptr<model::KvCache> pages_;
  std::vector<size_t> groups_;  // the cache groups with layers of the model
  std::unique_ptr<RowSampler> sampler_;
};

// A draft model of its own. Sequence::num_drafted counts the positions that it has computed. It may be behind
// num_computed, since the draft model computes what it has missed when it is next needed: for drafts, before a page is
// published, and before a page that a window still needs is freed.
class DraftModelDrafter final : public ModelDrafter {
 public:
  explicit DraftModelDrafter(Parts parts) : ModelDrafter(std::move(parts)) {}
  void propose(std::span<const Share> shares) override;
  void follow(std::span<const Share> shares) override;

 private:
  // Positions that a sequence lacks, up to `end`, and how many tokens are still to be sampled after them.
  struct Work {
    Sequence* sequence = nullptr;
    int64_t end = 0;
    int64_t samples = 0;
  };
  bool must_follow(int64_t drafted, int64_t computed) const;
  // True: all rows that are wanted are in the last batch, which is still to be sampled.
  bool run(std::span<const Work> all);
  void add_draft(const LogitRow& row, int32_t at, int32_t token) override;

  std::vector<Work> work_;
};

// A layer ahead of the target (model::AheadConfig). It computes each row of the target right after the step, together
// with the token that follows: its hidden state is gone after that. The first draft of a sequence comes from its last
// row; each further draft comes from a row with the draft before it and the layer's own hidden state. A row that was
// computed so is computed again, with the target's hidden state, once its token is accepted.
//
// The K and V at the end of a cached prefix belong to the token that followed it in the sequence that published it. If
// another token follows, drafts may be a little worse.
class AheadDrafter final : public ModelDrafter {
 public:
  explicit AheadDrafter(Parts parts) : ModelDrafter(std::move(parts)) {}
  void propose(std::span<const Share> shares) override;
  void follow(std::span<const Share> shares) override;

 private:
  void add_draft(const LogitRow& row, int32_t at, int32_t token) override;
};

}  // namespace quire::engine
