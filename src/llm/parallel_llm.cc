// SPDX-License-Identifier: Apache-2.0
// Hands requests to engines, and gives the engines' ids a place among those of all.
#include "llm/parallel_llm.h"

#include <algorithm>
#include <utility>

namespace quire::llm {
namespace {

EngineRouter router_for(const Llm& llm, size_t engines) {
  const engine::EngineOptions& options = llm.engine().options();
  const bool remembers = options.prefix_caching && engines > 1;
  return {engines, options.block_size, remembers ? static_cast<size_t>(options.num_blocks) : 0};
}

std::vector<std::unique_ptr<AsyncLlm>> start_engines(const std::shared_ptr<Llm>& llm,
                                                     std::vector<AsyncOptions> options) {
  QUIRE_CHECK(options.size() == llm->num_engines());
  const auto held_bytes = std::make_shared<std::atomic<int64_t>>(0);
  std::vector<std::unique_ptr<AsyncLlm>> out;
  for (size_t i = 0; i < options.size(); ++i) {
    options[i].engine = i;
    options[i].held_bytes = held_bytes;
    out.push_back(std::make_unique<AsyncLlm>(llm, options[i]));
  }
  return out;
}

std::vector<std::unique_ptr<AsyncLlm>> only(std::unique_ptr<AsyncLlm> engine) {
  std::vector<std::unique_ptr<AsyncLlm>> out;
  out.push_back(std::move(engine));
  return out;
}

}  // namespace

ParallelLlm::ParallelLlm(std::shared_ptr<Llm> llm, std::vector<AsyncOptions> options)
    : engines_(start_engines(llm, std::move(options))),
      router_(router_for(*llm, engines_.size())),
      seeds_(llm->engine().options().seed) {}

ParallelLlm::ParallelLlm(std::unique_ptr<AsyncLlm> engine)
    : engines_(only(std::move(engine))), router_(router_for(llm(), 1)), seeds_(llm().engine().options().seed) {}

// All engines end their step at the same time.
ParallelLlm::~ParallelLlm() {
  for (const auto& engine : engines_) engine->begin_stop();
}

std::vector<int64_t> ParallelLlm::loads() const {
  std::vector<int64_t> out;
  for (const auto& engine : engines_) out.push_back(engine->load());
  return out;
}

Status ParallelLlm::check_engine(int64_t number) const {
  const auto count = static_cast<int64_t>(engines_.size());
  if (number >= 0 && number < count) return {};
  return invalid_field("X-data-parallel-rank",
                       {"is ", number, ", but this model has ",
                        (count > 1 ? std::to_string(count) + " engines: 0 to " + std::to_string(count - 1) + "."
                                   : "one engine, which is 0.")});
}

// The best engine that has room; if none has, the best one, which will say so.
size_t ParallelLlm::choose(const std::vector<engine::Request>& requests, const SubmitOptions& options,
                           std::span<const EngineRouter::Chain> prompts) {
  if (options.engine) return static_cast<size_t>(*options.engine);
  const std::vector<size_t> order = router_.rank(prompts, loads());
  const auto has_room = [&](size_t e) { return engines_[e]->has_room(requests, options); };
  const auto found = std::ranges::find_if(order, has_room);
  return found == order.end() ? order[0] : *found;
}

Result<std::vector<engine::RequestId>> ParallelLlm::submit(std::vector<engine::Request> requests, DeltaSink sink,
                                                           const SubmitOptions& options) {
  if (options.engine) QUIRE_TRY(check_engine(*options.engine));
  if (engines_.size() == 1) return engines_[0]->submit(std::move(requests), std::move(sink), options);
  std::vector<EngineRouter::Chain> prompts;
  for (const engine::Request& request : requests) {
    prompts.push_back(router_.hashes(request.prompt, request.cache_key()));
  }
  const std::lock_guard lock(mutex_);
  for (engine::Request& request : requests) {
    if (!request.params.seed && llm().engine().options().seed)
      request.params.seed = static_cast<int64_t>(seeds_.next());
  }
  const size_t chosen = choose(requests, options, prompts);
  const auto computed = std::make_shared<std::atomic<bool>>(false);
  const auto renamed = [engines = engines_.size(), chosen, computed, sink = std::move(sink)](Delta delta) {
    if (!delta.tokens.empty() || !delta.pooled.empty()) computed->store(true, std::memory_order_relaxed);
    delta.id = id_of(engines, chosen, delta.id);
    sink(std::move(delta));
  };
  QUIRE_ASSIGN(std::vector<engine::RequestId> ids, engines_[chosen]->submit(std::move(requests), renamed, options));
  const bool copies = llm().engine().options().offload.peers != nullptr;
  router_.record(chosen, prompts, copies ? computed : nullptr);
  for (engine::RequestId& id : ids) id = id_of(engines_.size(), chosen, id);
  return ids;
}

void ParallelLlm::abort(engine::RequestId id) {
  engines_[id % engines_.size()]->abort(id / engines_.size());
}

bool ParallelLlm::reset_prefix_cache() {
  std::vector<std::future<bool>> done;
  for (const auto& engine : engines_) done.push_back(engine->reset_prefix_cache());
  bool all = true;
  for (std::future<bool>& one : done) all = one.get() && all;
  const std::lock_guard lock(mutex_);
  if (all) router_.forget();
  return all;
}

void ParallelLlm::add(engine::EngineStats& sum, const engine::EngineStats& one) {
  using Stats = engine::EngineStats;
  for (const auto field : {&Stats::steps, &Stats::tokens_computed, &Stats::preemptions, &Stats::running,
                           &Stats::waiting, &Stats::waiting_tokens, &Stats::added, &Stats::added_tokens}) {
    sum.*field += one.*field;
  }
  sum.prefix.requests += one.prefix.requests;
  sum.prefix.queried_tokens += one.prefix.queried_tokens;
  sum.prefix.hit_tokens += one.prefix.hit_tokens;
  engine::SpeculationStats& drafts = sum.speculation;
  drafts.drafts += one.speculation.drafts;
  drafts.draft_tokens += one.speculation.draft_tokens;
  drafts.accepted_tokens += one.speculation.accepted_tokens;
  const std::vector<int64_t>& accepted = one.speculation.accepted_per_position;
  drafts.accepted_per_position.resize(std::max(drafts.accepted_per_position.size(), accepted.size()));
  for (size_t i = 0; i < accepted.size(); ++i) drafts.accepted_per_position[i] += accepted[i];
}

engine::EngineStats ParallelLlm::stats() const {
  engine::EngineStats sum;
  for (const auto& engine : engines_) {
    const engine::EngineStats one = engine->stats();
    add(sum, one);
    sum.kv_usage += one.kv_usage / static_cast<double>(engines_.size());
  }
  return sum;
}

std::optional<double> ParallelLlm::stalled_seconds() const {
  std::optional<double> longest;
  for (const auto& engine : engines_) longest = std::max(longest, engine->stalled_seconds());
  return longest;
}

void ParallelLlm::note_loaded(const metrics::ServerMetrics::CacheConfig& cache_config) {
  for (const auto& engine : engines_) {
    if (metrics::ServerMetrics* metrics = engine->metrics()) metrics->on_loaded(cache_config);
  }
}

}  // namespace quire::llm
