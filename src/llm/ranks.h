// SPDX-License-Identifier: Apache-2.0
// The ranks that compute one model together (--tensor-parallel-size, --pipeline-parallel-size): which share each has,
// how they agree while they load, and ranks that are threads of this process.
//
// Rank r of stage s is rank s * tensor_parallel_size + r of the group. Rank 0 has the engine; the others follow it
// (model/parallel_model.h). A process that is one of several ranks calls load_engine() with its group on rank 0, and
// run_follower() on the others.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "backend/exchange.h"
#include "distributed/group.h"
#include "engine/engine.h"
#include "llm/options.h"
#include "model/model.h"

namespace quire::llm {

// Refuses sizes and combinations that are not computed on several ranks.
Status check_ranks(const Options& options, const Backend& backend);
model::Share share_of_rank(const Options& options, int rank);

// Whether a single rank makes the calls of several ranks, so that their cost can be measured (QUIRE_GATHER_ALONE=1).
bool gathers_alone();

// A rank's groups, the exchanges of its backend over them, and the times of its gathers. Without a group: the only
// rank.
struct RankGroups {
  // Every rank calls it; on all of them it succeeds or none. The backend must outlive it.
  static Result<RankGroups> make(const Options& options, distributed::Group& all, Backend& backend);

  model::Share share;
  distributed::Group* all = nullptr;
  std::shared_ptr<void> watch;  // of the backend's steps; it ends after the exchanges
  std::unique_ptr<distributed::Group> stage;
  std::unique_ptr<Exchange> of_all, of_stage;  // of_all: between stages
  std::shared_ptr<model::GatherTimes> times;

  model::Ranks ranks() const {
    return {of_stage.get(), of_all != nullptr ? of_all.get() : of_stage.get(), all, times.get()};
  }
  // Lets rank 0 see what this rank does. `pages`: of its part of the KV cache.
  void report(int64_t pages) const;
};

// Which part of something that the ranks of a host share belongs to one of them.
struct HostShare {
  int rank = 0;
  int ranks = 1;
};
// `rank` is that of a thread, or as much more for each engine as there are ranks; a process knows its own.
HostShare cpu_share(const Options& options, int rank);

// What one rank could not do, none of them does: every rank calls it, and gets the Error of the first that has one.
Status agree(distributed::Group* all, const Status& own);
// The smallest number of all ranks.
int64_t smallest(distributed::Group* all, int64_t own);
// The sizes of a step, which may follow from the memory of a rank's GPU: one that must be the same everywhere and is
// not is an Error.
Status agree_on_sizes(distributed::Group* all, engine::EngineOptions& sizes);
// Refuses ranks whose devices give other bits than rank 0's. Every rank calls it.
Status check_same_device(distributed::Group& all, const Backend& backend);

struct Follower;

// Where a follower shows its loaded share to the same rank of other engines, which have the same weights.
class FollowerShow {
 public:
  ~FollowerShow() { set(nullptr); }
  void set(const Follower* follower) {
    if (!std::exchange(set_, true)) promise_.set_value(follower);
  }
  // Waits; null if it could not be loaded. Any thread.
  const Follower* wait() const { return future_.get(); }

 private:
  bool set_ = false;
  std::promise<const Follower*> promise_;
  std::shared_future<const Follower*> future_ = promise_.get_future().share();
};

// Loads this rank's share and follows rank 0 until its engine ends. An Error before `loaded` becomes true is rank 0's,
// too; one after that means that the ranks do not fit together, and the process should end.
Status run_follower(const Options& options, distributed::Group& all, const std::atomic<bool>* cancelled = nullptr,
                    bool* loaded = nullptr, FollowerShow* show = nullptr);
// The same for another engine (--data-parallel-size), with the weights that the rank shows in the first one.
Status run_twin_follower(const Options& options, int engine, distributed::Group& all, const FollowerShow& source,
                         bool* loaded);

// The same rank of the other engines, where ranks are processes: each engine has a thread and a group of its own. They
// end when rank 0's engines do.
class TwinFollowers {
 public:
  explicit TwinFollowers(const Options& options);
  ~TwinFollowers();  // waits for them
  TwinFollowers(const TwinFollowers&) = delete;
  TwinFollowers& operator=(const TwinFollowers&) = delete;
  // Whose weights they have; must outlive them.
  void show(const Follower& follower) { show_.set(&follower); }

 private:
  FollowerShow show_;
  std::vector<std::thread> threads_;
};

// The other ranks as threads of this process; they end when rank 0's model does, or could not be loaded.
class RankThreads {
 public:
  RankThreads(const Options& options, const std::atomic<bool>* cancelled);
  // Of another engine, which shares the weights of the first one's ranks. `first` must live until they are loaded.
  RankThreads(const Options& options, int engine, const RankThreads& first);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  distributed::Group& first() { return *groups_.front(); }

 private:
  void start(const std::function<Status(int rank, bool* loaded)>& run);

  std::vector<std::unique_ptr<distributed::Group>> groups_;
  std::vector<FollowerShow> shows_;  // by rank; none of another engine
  std::vector<std::thread> threads_;
};

}  // namespace quire::llm
