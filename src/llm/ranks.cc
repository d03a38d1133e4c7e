// SPDX-License-Identifier: Apache-2.0
// Shares, agreement, and ranks in threads.
#include "llm/ranks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/env.h"
#include "base/trace.h"
#include "distributed/mpi_group.h"
#include "metrics/process_stats.h"

namespace quire::llm {
namespace {

constexpr int64_t kMostRanks = 1024;

// A Status as bytes of a fixed size.
struct Outcome {
  int32_t failed = 0;
  int32_t code = 0;
  std::array<char, 2040> message{};
};

}  // namespace

Status check_ranks(const Options& options, const Backend& backend) {
  const std::pair<const char*, int64_t> sizes[] = {{"--tensor-parallel-size", options.tensor_parallel_size},
                                                   {"--pipeline-parallel-size", options.pipeline_parallel_size}};
  for (const auto& [flag, size] : sizes) {
    if (size >= 1 && size <= kMostRanks) continue;
    return invalid_argument({flag, " is ", size, "; it must be 1 to ", kMostRanks});
  }
  if (options.ranks() == 1) return {};
  const std::string several = "a model on " + std::to_string(options.ranks()) + " ranks ";
  if (backend.describe().starts_with("metal")) {
    return unsupported({several, "runs on CPUs and on NVIDIA GPUs; use --device cpu, or leave out ",
                        "--tensor-parallel-size and --pipeline-parallel-size"});
  }
  return {};
}

model::Share share_of_rank(const Options& options, int rank) {
  model::Share out;
  out.ranks = options.tensor_parallel_size;
  out.stages = options.pipeline_parallel_size;
  out.rank = rank % out.ranks;
  out.stage = rank / out.ranks;
  out.gathers_alone = gathers_alone();
  return out;
}

bool gathers_alone() {
  return env("QUIRE_GATHER_ALONE").value_or("0") == "1";
}

HostShare cpu_share(const Options& options, int rank) {
  const Processes& processes = options.processes;
  if (processes.group == nullptr)
    return {rank, static_cast<int>(options.engines * std::max<int64_t>(options.ranks(), 1))};
  const int engine = rank / static_cast<int>(options.ranks()), engines = static_cast<int>(options.engines);
  if (processes.own_cpus) return {engine, engines};
  return {engine * processes.host_ranks + processes.host_rank, engines * processes.host_ranks};
}

Result<RankGroups> RankGroups::make(const Options& options, distributed::Group& group, Backend& backend) {
  QUIRE_CHECK(group.size() == options.ranks());
  RankGroups out;
  out.share = share_of_rank(options, group.rank());
  out.all = &group;
  out.times = std::make_shared<model::GatherTimes>();
  const auto ranks = static_cast<int>(out.share.ranks);
  if (group.size() > 1) {
    backend.watch_steps(&group);
    out.watch = std::shared_ptr<void>(nullptr, [&backend](void*) { backend.watch_steps(nullptr); });
  }
  if (out.share.split()) {
    out.stage = group.split(static_cast<int>(out.share.stage) * ranks, ranks);
    auto joined = backend.join(*out.stage, true);
    QUIRE_TRY(agree(&group, joined.ok() ? Status() : Status(joined.error())));
    out.of_stage = std::move(*joined);
  }
  if (out.share.stages > 1) {
    auto joined = backend.join(group, false);
    QUIRE_TRY(agree(&group, joined.ok() ? Status() : Status(joined.error())));
    out.of_all = std::move(*joined);
  }
  return out;
}

Status agree_on_sizes(distributed::Group* all, engine::EngineOptions& sizes) {
  if (all == nullptr) return {};
  sizes.max_logit_rows = smallest(all, sizes.max_logit_rows);
  const std::pair<const char*, int64_t> flags[] = {
      {"--max-num-seqs", sizes.scheduler.max_num_seqs},
      {"--max-num-batched-tokens", sizes.scheduler.max_num_batched_tokens}};
  Status mine;
  for (const auto& [flag, own] : flags) {
    const int64_t least = smallest(all, own);
    if (own == least || !mine.ok()) continue;
    mine = invalid_argument({flag, " follows from the memory that is free, and would be ", own, " here, but ", least,
                             " on another rank: set it"});
  }
  return agree(all, mine);
}

Status check_same_device(distributed::Group& all, const Backend& backend) {
  std::array<char, 256> first{};
  const std::string own = backend.isa().substr(0, first.size() - 1);
  std::ranges::copy(own, first.begin());
  all.broadcast(std::as_writable_bytes(std::span(first)), 0);
  Status mine;
  if (own != first.data()) {
    mine =
        invalid_argument({"its device is ", own, ", but rank 0 has ", first.data(),
                          "; bits depend on the kind of device, so choose equal ones (--device cuda:0,2 names them)"});
  }
  return agree(&all, mine);
}

void RankGroups::report(int64_t pages) const {
  if (all == nullptr) return;
  all->set_report([times = times, pages] {
    metrics::RankTotals out;
    out.steps = times->steps;
    out.compute_nanoseconds = times->compute_nanoseconds;
    out.wait_nanoseconds = times->nanoseconds;
    out.sent_bytes = times->sent_bytes;
    out.pages = pages;
    out.resident_bytes = static_cast<int64_t>(metrics::read_process_stats().resident_bytes.value_or(0));
    return out;
  });
}

Status agree(distributed::Group* all, const Status& own) {
  if (all == nullptr) return own;
  Outcome mine;
  if (!own.ok()) {
    mine.failed = 1;
    mine.code = static_cast<int32_t>(own.error().code);
    const std::string& message = own.error().message;
    std::copy_n(message.begin(), std::min(message.size(), mine.message.size() - 1), mine.message.begin());
  }
  // One rank may read its weights from a slow disk while the others wait: broadcasts have no time limit.
  std::vector<Outcome> outcomes(static_cast<size_t>(all->size()));
  outcomes[static_cast<size_t>(all->rank())] = mine;
  for (int r = 0; r < all->size(); ++r) {
    all->broadcast(std::as_writable_bytes(std::span(&outcomes[static_cast<size_t>(r)], 1)), r);
  }
  for (size_t r = 0; r < outcomes.size(); ++r) {
    const Outcome& theirs = outcomes[r];
    if (theirs.failed == 0) continue;
    const std::string rank = r == 0 ? "" : "rank " + std::to_string(r) + ": ";
    return Error{static_cast<ErrorCode>(theirs.code), rank + std::string(theirs.message.data())};
  }
  return {};
}

int64_t smallest(distributed::Group* all, int64_t own) {
  if (all == nullptr) return own;
  std::vector<int64_t> numbers(static_cast<size_t>(all->size()));
  all->all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(numbers)));
  return *std::ranges::min_element(numbers);
}

TwinFollowers::TwinFollowers(const Options& options) {
  if (options.processes.group == nullptr) return;
  for (int engine = 1; engine < options.engines; ++engine) {
    threads_.emplace_back(
        [this, options, engine,
         group = std::shared_ptr<distributed::Group>(distributed::make_twin_group(*options.processes.group, engine))] {
          if (show_.wait() == nullptr) return;  // rank 0 has no other engine either
          bool loaded = false;
          const Status status = run_twin_follower(options, engine, *group, show_, &loaded);
          QUIRE_CHECK(status.ok() || !loaded, status.error().message.c_str());
        });
  }
}

TwinFollowers::~TwinFollowers() {
  show_.set(nullptr);
  for (std::thread& thread : threads_) thread.join();
}

RankThreads::RankThreads(const Options& options, const std::atomic<bool>* cancelled)
    : groups_(distributed::make_thread_group(static_cast<int>(options.ranks()), options.distributed_timeout_s)),
      shows_(groups_.size()) {
  start([this, options, cancelled](int rank, bool* loaded) {
    const auto at = static_cast<size_t>(rank);
    return run_follower(options, *groups_[at], cancelled, loaded, &shows_[at]);
  });
}

RankThreads::RankThreads(const Options& options, int engine, const RankThreads& first)
    : groups_(distributed::make_thread_group(static_cast<int>(options.ranks()), options.distributed_timeout_s)) {
  start([this, options, engine, &first](int rank, bool* loaded) {
    const auto at = static_cast<size_t>(rank);
    return run_twin_follower(options, engine, *groups_[at], first.shows_[at], loaded);
  });
}

void RankThreads::start(const std::function<Status(int rank, bool* loaded)>& run) {
  for (size_t r = 1; r < groups_.size(); ++r) {
    threads_.emplace_back([run, rank = static_cast<int>(r)] {
      trace::name_thread("rank " + std::to_string(rank));
      bool loaded = false;
      const Status status = run(rank, &loaded);
      // Rank 0 reports what fails while loading.
      QUIRE_CHECK(status.ok() || !loaded, status.error().message.c_str());
    });
  }
}

RankThreads::~RankThreads() {
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace quire::llm
