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
// On a backend that samples, the host waits for none of this:
// - start() queues the first pass behind the target's step, before its tokens are known. The pass has a row for each
//   token that the step may have accepted, and the backend finds the last one that was: the row whose logits the first
//   draft is sampled from (StepBatch::drafts).
// - The pass for the next drafts is queued with the tokens that the last pass is sampling. (Settings that look at the
//   sequence's tokens let the sampling, but not the pass, wait for the tokens before it.)
// - The target's next step is queued with the tokens that the last pass is sampling; read_last() reads them later.
//
// Owned by the engine, used on its thread.
class ModelDrafter {
 public:
  struct Parts {
    Backend& backend;
    kv::KvManager& kv;
    model::Model& model;                    // prepared; without recurrent layers
    std::unique_ptr<model::KvCache> pages;  // of the model's layers
    model::BatchLimits limits;
    int64_t max_length = 0;
  };
  virtual ~ModelDrafter() = default;

  // Longer sequences get no drafts.
  int64_t max_length() const { return max_length_; }
  // Queues the first pass after a step whose sampling is queued. Either it is called for every step, or never.
  virtual void start(const Step& step) = 0;
  // Replaces the drafts of each share whose drafts are place holders (-1) by as many proposed tokens, or fewer. With
  // `unread`, the last draft of a sequence may stay a place holder: then Sequence::draft_row is the row that samples
  // it. REQUIRES: the tables have pages for them.
  virtual void propose(std::span<const Share> shares, bool unread) = 0;
  // Whether propose() has left drafts to be read, and reads them into Sequence::drafts; -1: none could be sampled.
  bool has_unread() const { return unread_; }
  void read_last();
  // Computes what the model lacks of the pages of shares without drafts, before these are committed. If start() is
  // called, this is called as well, before the step is read. REQUIRES: the tokens in these pages are known.
  virtual void catch_up(std::span<const Share> /*shares*/) {}
  // Called after each step is read, before its pages are committed. REQUIRES: num_computed counts accepted tokens.
  virtual void follow(const Step& step) = 0;
  // The sequence ends.
  void forget(const Sequence* sequence) {
    step_.forget(sequence);
    last_.forget(sequence);
  }
  void set_tap(RowSampler::LogitsTap tap) { sampler_->set_tap(std::move(tap)); }

 protected:
  explicit ModelDrafter(Parts parts);

  void begin_batch();
  // Adds a row of a sequence, which follows the last one if that was of the same sequence.
  void add_row(Sequence& sequence, int64_t position, int32_t token);
  // The token at `position` of the sequence is to be sampled from the last row.
  void want(Sequence& sequence, int64_t position);
  // The rows of a share that sample tokens, as far as their drafts count: indices into step.rows from `first` on.
  static size_t num_sampled(const Step& step, size_t share, size_t& first);
  // Adds rows with the tokens that `count` rows of `step` from `first` on are sampling, the first of them at
  // `position`. The token at `wanted` is to be sampled from the first row, or from a later one if the step accepts
  // drafts.
  void add_sampled(const Step& step, size_t first, size_t count, int64_t position, int64_t wanted);
  // Once the step is read: finds the rows of its last tokens among those that start() has added for it. False: start()
  // was not called for it.
  bool settle_start(const Step& step);
  void run_batch();
  // Samples what was wanted of the last batch; adds each token to the drafts and the history of its sequence. Sequences
  // whose rows cannot be sampled get no more.
  void sample();
  // The same, and then as many further passes as it takes to sample left[i] tokens from the wanted row i on. With
  // `unread`, the tokens of the last pass are not read.
  void sample_on(std::vector<int64_t> left, bool unread);
  // The number of drafts that each wanted row of the last batch is to begin; false if a share that wants drafts has no
  // such row.
  bool left_of_shares(std::span<const Share> shares, std::vector<int64_t>& left) const;
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
  uint64_t started_ = 0;  // the number of the step that start() was called for last
  kv::KvManager& kv_;

 private:
  void add_pages();
  void enqueue_samples();
  void read_samples(Step& step);
  bool pass_on(std::vector<int64_t>& left, bool queued, bool unread);

  Step last_;                         // whose tokens the batch in step_ begins with
  std::vector<int32_t> last_wanted_;  // StepBatch::wanted of its batch
  bool unread_ = false;               // the tokens of last_ are still to be read
  Backend& backend_;
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
  void start(const Step& step) override;
  void propose(std::span<const Share> shares, bool unread) override;
  void catch_up(std::span<const Share> shares) override;
  void follow(const Step& step) override;

 private:
  // Positions that a sequence lacks, up to `end`, and how many tokens are still to be sampled after them.
  struct Work {
    Sequence* sequence = nullptr;
    int64_t end = 0;
    int64_t samples = 0;
  };
  bool must_follow(int64_t drafted, int64_t computed) const;
  void add_work(Sequence& sequence);
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
  void start(const Step& step) override;
  void propose(std::span<const Share> shares, bool unread) override;
  void follow(const Step& step) override;

 private:
  void add_draft(const LogitRow& row, int32_t at, int32_t token) override;
};

}  // namespace quire::engine
