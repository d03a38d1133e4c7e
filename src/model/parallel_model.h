// SPDX-License-Identifier: Apache-2.0
// A model that several ranks compute together: rank 0 has the engine, and tells the others what to repeat.
#pragma once

#include <any>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "distributed/group.h"
#include "kv/offload.h"
#include "model/model.h"

namespace quire::model {

// The adapters of a model, as other ranks get them: an adapter that one engine has made may be used by all engines of
// the model, each with ranks of its own. Any thread.
class AdapterBook {
 public:
  explicit AdapterBook(int64_t engines) : engines_(engines) {}
  void add(const AdapterPtr& adapter, std::vector<std::byte> bytes);
  // For the ranks of an engine, which calls it once. Null if the adapter is in no book.
  std::shared_ptr<const std::vector<std::byte>> take(uint64_t id);
  bool gone(uint64_t id);  // nobody has the adapter any more

 private:
  struct Entry {
    std::weak_ptr<const Adapter> adapter;
    std::shared_ptr<const std::vector<std::byte>> bytes;
    int64_t takers = 0;  // engines that have not taken it
  };
  const int64_t engines_;
  std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;  // by id; guarded by mutex_
};

// The model of rank 0, as the engine sees it. Each call that computes something is told to the other ranks, which make
// the same call on their share (follow()). Owned by the engine and used on its thread; when it is destroyed, the
// followers end.
class ParallelModel final : public Model, public kv::RankTiers {
 public:
  // `own` is the share of rank 0 of `ranks`; `keep` is destroyed after everything else. REQUIRES: the ranks outlive the
  // model.
  ParallelModel(std::unique_ptr<Model> own, const Ranks& ranks, std::shared_ptr<AdapterBook> adapters, std::any keep);
  ~ParallelModel() override;

  // From now on the other ranks follow.
  void start() { started_ = true; }

  const DecoderConfig& config() const override { return own_->config(); }
  size_t weights_bytes() const override { return own_->weights_bytes(); }
  DType main_dtype() const override { return own_->main_dtype(); }
  // The other ranks get the adapter with the first step that uses it.
  Result<AdapterPtr> make_adapter(const weights::AdapterFiles& files) const override;
  size_t scratch_bytes(const BatchLimits& limits) const override { return own_->scratch_bytes(limits); }
  WorkspaceLimits workspace_limits(const BatchLimits& limits) const override { return own_->workspace_limits(limits); }
  Status prepare(const BatchLimits& limits) override { return own_->prepare(limits); }
  void copied_page(int64_t from, int64_t to, size_t group) override;
  void forward(const StepBatch& batch, const KvCache& kv) override;
  std::span<const float> logits(int64_t first_wanted, int64_t count) override;
  Tensor run_head(int64_t first_wanted, int64_t count) override;
  std::span<const float> hidden(int64_t first, int64_t count) override;
  const Pooler& pooler() const override { return own_->pooler(); }
  std::vector<metrics::RankTotals> rank_totals() const override { return ranks_.reports(); }

  kv::RankTiers* rank_tiers() override { return this; }
  void store_page(const kv::PageKey& key, kv::BlockId page) override;
  void overwrite_page(kv::BlockId page) override;
  void load_page(const kv::PageKey& key, kv::BlockId page) override;
  std::vector<bool> settle_pages(std::span<const kv::BlockId> pages) override;

 private:
  void tell_adapters(const StepBatch& batch);

  const std::any keep_;
  const std::unique_ptr<Model> own_;
  bool started_ = false;
  distributed::Group& ranks_;
  GatherTimes* const times_;  // may be null
  const std::shared_ptr<AdapterBook> book_;
  std::set<uint64_t> told_;  // the adapters that the other ranks have
  std::vector<std::byte> message_;
  StepBatch part_;
  std::vector<float> received_;  // from the last stage
};

// Repeats on this rank's share what rank 0 does, until rank 0's model is destroyed. `tiers`: of this rank's pages, or
// null. An Error is a message that does not
// fit: the ranks differ, and none of them can go on.
Status follow(Model& own, Backend& backend, const KvCache& kv, const BatchLimits& limits, const Ranks& group,
              kv::Offload* tiers);

}  // namespace quire::model
