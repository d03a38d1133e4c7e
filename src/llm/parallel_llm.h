// SPDX-License-Identifier: Apache-2.0
// ParallelLlm: the engines of one model behind one submit(), for data parallelism.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "llm/async_llm.h"
#include "llm/engine_router.h"

namespace quire::llm {

// Owns the engines of a model, each an AsyncLlm with its own threads and pages, and chooses one for each request
// (EngineRouter). The answer does not depend on the choice. All public methods may be called on any thread. With one
// engine it adds nothing.
class ParallelLlm {
 public:
  // One engine for each of llm's, with its options: their metrics and sinks differ. The memory for requests is shared.
  ParallelLlm(std::shared_ptr<Llm> llm, std::vector<AsyncOptions> options);
  explicit ParallelLlm(std::unique_ptr<AsyncLlm> engine);  // a single one
  ~ParallelLlm();
  ParallelLlm(const ParallelLlm&) = delete;
  ParallelLlm& operator=(const ParallelLlm&) = delete;

  const Llm& llm() const { return engines_[0]->llm(); }
  size_t num_engines() const { return engines_.size(); }
  AsyncLlm& engine(size_t number) { return *engines_[number]; }

  // As AsyncLlm::submit(). All requests go to one engine: SubmitOptions::engine, or the best one that has room.
  Result<std::vector<engine::RequestId>> submit(std::vector<engine::Request> requests, DeltaSink sink,
                                                const SubmitOptions& options = {});
  void abort(engine::RequestId id);
  // The id under which submit() returned a request of an engine.
  static engine::RequestId id_of(size_t engines, size_t engine, engine::RequestId own) {
    return own * engines + engine;
  }
  // Of all engines. False if one of them uses a page; the others are reset all the same.
  bool reset_prefix_cache();
  // The sums, and the mean of kv_usage. No adapters.
  engine::EngineStats stats() const;
  // Adds counts; kv_usage and adapters stay.
  static void add(engine::EngineStats& sum, const engine::EngineStats& one);
  // The longest of all engines.
  std::optional<double> stalled_seconds() const;
  // Tells the metrics of all engines that they are loaded.
  void note_loaded(const metrics::ServerMetrics::CacheConfig& cache_config);

 private:
  std::vector<int64_t> loads() const;
  Status check_engine(int64_t number) const;
  size_t choose(const std::vector<engine::Request>& requests, const SubmitOptions& options,
                std::span<const EngineRouter::Chain> prompts);

  std::vector<std::unique_ptr<AsyncLlm>> engines_;
  std::mutex mutex_;  // of the rest; held from the choice of an engine until the request is in its inbox
  EngineRouter router_;
  sampling::SeedGenerator seeds_;  // with --seed: requests without one get theirs in the order of submit()
};

}  // namespace quire::llm
