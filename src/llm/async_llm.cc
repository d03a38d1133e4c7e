// SPDX-License-Identifier: Apache-2.0
// The engine thread, the output thread, and the two boxes between them and everybody else.
#include "llm/async_llm.h"

#include <algorithm>

#include "base/log.h"
#include "base/trace.h"

namespace quire::llm {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

AsyncLlm::AsyncLlm(std::unique_ptr<Llm> llm, const AsyncOptions& options)
    : llm_(std::move(llm)),
      options_(options),
      stat_logger_(Clock::now(), std::chrono::milliseconds(static_cast<int64_t>(options.log_stats_every_s * 1000))),
      streams_(llm_->tokenizer()),
      stats_(llm_->engine().stats()),
      reported_(stats_) {
  engine_thread_ = std::thread([this] {
    trace::name_thread("engine");
    run_engine();
  });
  output_thread_ = std::thread([this] { run_outputs(); });
}

AsyncLlm::~AsyncLlm() {
  {
    const std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_filled_.notify_one();
  engine_thread_.join();
  output_thread_.join();
}

Status AsyncLlm::check_queue() const {
  const auto refuse = [&](int64_t waiting, int64_t limit, const char* what, const char* reason, const char* flag) {
    if (options_.metrics != nullptr) options_.metrics->on_rejected(reason);
    return exhausted("the queue is full: " + std::to_string(waiting) + " " + what + " wait and " +
                     std::to_string(limit) + " may (" + flag + "); try again later");
  };
  // What the engine has not seen yet waits too, unless nothing does and there are seats left.
  const int64_t unseen = submitted_ - stats_.added;
  const int64_t seats = llm_->engine().options().scheduler.max_num_seqs - stats_.running;
  const int64_t waiting = stats_.waiting > 0 ? stats_.waiting + unseen : std::max<int64_t>(0, unseen - seats);
  if (options_.max_num_queued_reqs && waiting >= *options_.max_num_queued_reqs) {
    return refuse(waiting, *options_.max_num_queued_reqs, "requests", "max_num_queued_reqs", "--max-num-queued-reqs");
  }
  const int64_t tokens = stats_.waiting_tokens + (waiting > 0 ? submitted_tokens_ - stats_.added_tokens : 0);
  if (options_.max_num_queued_tokens && tokens >= *options_.max_num_queued_tokens) {
    return refuse(tokens, *options_.max_num_queued_tokens, "prompt tokens", "max_num_queued_tokens",
                  "--max-num-queued-tokens");
  }
  return {};
}

Result<std::vector<engine::RequestId>> AsyncLlm::submit(std::vector<engine::Request> requests, DeltaSink sink) {
  const auto arrival = Clock::now();
  const auto shared_sink = std::make_shared<const DeltaSink>(std::move(sink));
  int64_t sequences = 0, tokens = 0;
  for (const engine::Request& request : requests) {
    sequences += request.params.n;
    tokens += request.params.n * static_cast<int64_t>(request.prompt.size());
  }
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(tracked_mutex_);
    QUIRE_TRY(check_queue());
    submitted_ += sequences;
    submitted_tokens_ += tokens;
    for (const engine::Request& request : requests) {
      Tracked tracked;
      tracked.sink = shared_sink;
      tracked.arrival = arrival;
      tracked.prompt_tokens = static_cast<int64_t>(request.prompt.size());
      tracked.max_tokens = request.params.max_tokens;
      tracked.open = static_cast<size_t>(request.params.n);
      tracked.children.resize(tracked.open);
      ids.push_back(llm_->engine().reserve_id());
      streams_.open(ids.back(), request);
      tracked_.emplace(ids.back(), std::move(tracked));
    }
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    for (size_t i = 0; i < requests.size(); ++i) inbox_.emplace_back(Add{ids[i], std::move(requests[i])});
  }
  inbox_filled_.notify_one();
  return ids;
}

void AsyncLlm::post(Command command) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(command));
  }
  inbox_filled_.notify_one();
}

void AsyncLlm::abort(engine::RequestId id) {
  {
    const std::lock_guard lock(tracked_mutex_);
    const auto it = tracked_.find(id);
    if (it == tracked_.end()) return;
    Tracked& tracked = it->second;
    const auto now = Clock::now();
    for (size_t child = 0; child < tracked.children.size(); ++child) {
      if (tracked.children[child].finished) continue;
      engine::Output output;
      output.child = static_cast<int32_t>(child);
      output.scheduled = std::max(tracked.children[child].scheduled, tracked.arrival);
      note_finish(tracked, output, engine::FinishReason::kAbort, now, --tracked.open == 0);
    }
    streams_.close(id);
    tracked_.erase(it);
  }
  post(Abort{id, std::nullopt});
}

std::future<bool> AsyncLlm::reset_prefix_cache() {
  Reset promise;
  std::future<bool> done = promise.get_future();
  post(std::move(promise));
  return done;
}

engine::EngineStats AsyncLlm::stats() const {
  const std::lock_guard lock(tracked_mutex_);
  return stats_;
}

std::optional<double> AsyncLlm::stalled_seconds() const {
  const Clock::rep now = Clock::now().time_since_epoch().count();
  std::optional<double> longest;
  for (const auto* busy : {&engine_busy_since_, &output_busy_since_}) {
    const Clock::rep since = busy->load();
    if (since == 0) continue;
    const double waited = seconds(Clock::duration(std::max<Clock::rep>(now - since, 0)));
    longest = std::max(longest.value_or(0), waited);
  }
  return longest;
}

void AsyncLlm::apply(Command& command) {
  engine::Engine& engine = llm_->engine();
  if (auto* add = std::get_if<Add>(&command)) {
    engine.add(add->id, add->request);
  } else if (const auto* abort = std::get_if<Abort>(&command)) {
    if (abort->child) {
      engine.abort(abort->id, *abort->child);
    } else {
      engine.abort(abort->id);
    }
  } else {
    const bool done = engine.reset_prefix_cache();
    reset_ = reset_ || done;
    std::get<Reset>(command).set_value(done);
  }
}

void AsyncLlm::run_engine() {
  engine::Engine& engine = llm_->engine();
  std::vector<Command> commands;
  for (;;) {
    {
      std::unique_lock lock(inbox_mutex_);
      engine_busy_since_ = 0;
      inbox_filled_.wait(lock, [&] { return stopping_ || !inbox_.empty() || engine.has_work(); });
      if (stopping_) break;
      engine_busy_since_ = Clock::now().time_since_epoch().count();
      commands.swap(inbox_);
    }
    for (Command& command : commands) apply(command);
    commands.clear();
    Batch batch;
    batch.stepped = engine.has_work();
    if (batch.stepped) batch.outputs = engine.step();
    batch.reset = std::exchange(reset_, false);
    batch.stats = engine.stats();
    batch.at = Clock::now();
    {
      const std::lock_guard lock(outbox_mutex_);
      outbox_.push_back(std::move(batch));
    }
    outbox_filled_.notify_one();
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    for (Command& command : inbox_) {
      if (auto* reset = std::get_if<Reset>(&command)) reset->set_value(false);
    }
  }
  {
    const std::lock_guard lock(outbox_mutex_);
    engine_done_ = true;
  }
  outbox_filled_.notify_one();
}

void AsyncLlm::run_outputs() {
  std::deque<Batch> batches;
  std::vector<Delta> deltas;
  for (;;) {
    {
      std::unique_lock lock(outbox_mutex_);
      const auto ready = [&] { return engine_done_ || !outbox_.empty(); };
      if (options_.log_stats_every_s > 0) {
        outbox_filled_.wait_for(lock, std::chrono::duration<double>(options_.log_stats_every_s), ready);
      } else {
        outbox_filled_.wait(lock, ready);
      }
      if (engine_done_) return;
      batches.swap(outbox_);
    }
    for (Batch& batch : batches) {
      output_busy_since_ = Clock::now().time_since_epoch().count();
      deltas.clear();
      deliver(batch, deltas);
    }
    output_busy_since_ = 0;
    batches.clear();
    if (const std::optional<std::string> line = stat_logger_.line(Clock::now())) spdlog::info("{}", *line);
  }
}

void AsyncLlm::note_tokens(Tracked& tracked, const engine::Output& output, Clock::time_point at,
                           metrics::StepStats& step) {
  if (output.tokens.empty()) return;
  Child& child = tracked.children[static_cast<size_t>(output.child)];
  step.generation_tokens += static_cast<int64_t>(output.tokens.size());
  if (child.num_tokens == 0) {
    child.first = at;
    step.prompt_tokens += tracked.prompt_tokens;
    step.cached_tokens += output.cached_tokens;
    if (options_.metrics != nullptr) options_.metrics->on_first_token(seconds(at - tracked.arrival));
  } else if (options_.metrics != nullptr) {
    options_.metrics->on_inter_token(seconds(at - child.last));
  }
  child.scheduled = output.scheduled;
  child.last = at;
  child.num_tokens += static_cast<int64_t>(output.tokens.size());
}

void AsyncLlm::note_finish(const Tracked& tracked, const engine::Output& output, engine::FinishReason reason,
                           Clock::time_point at, bool last) {
  if (options_.metrics == nullptr) return;
  const Child& child = tracked.children[static_cast<size_t>(output.child)];
  const bool answered = child.num_tokens > 0;
  metrics::FinishedRequest finished;
  finished.finish_reason = engine::name(reason);
  finished.e2e_s = seconds(at - tracked.arrival);
  finished.queue_s = seconds(output.scheduled - tracked.arrival);
  finished.prefill_s = answered ? seconds(child.first - output.scheduled) : 0;
  finished.decode_s = answered ? seconds(child.last - child.first) : 0;
  finished.inference_s = answered ? seconds(child.last - output.scheduled) : 0;
  finished.prompt_tokens = tracked.prompt_tokens;
  finished.cached_tokens = output.cached_tokens;
  finished.generation_tokens = child.num_tokens;
  finished.max_tokens = tracked.max_tokens;
  if (last) {
    finished.n = static_cast<int64_t>(tracked.children.size());
    int64_t longest = 0;
    for (const Child& one : tracked.children) longest = std::max(longest, one.num_tokens);
    finished.max_num_generation_tokens = longest;
  }
  finished.num_preemptions = output.num_preemptions;
  options_.metrics->on_finished(finished);
}

void AsyncLlm::deliver(Batch& batch, std::vector<Delta>& deltas) {
  metrics::StepStats step;
  std::vector<std::shared_ptr<const DeltaSink>> sinks;
  for (engine::Output& output : batch.outputs) {
    const std::lock_guard lock(tracked_mutex_);
    const auto it = tracked_.find(output.id);
    if (it == tracked_.end()) continue;
    Tracked& tracked = it->second;
    note_tokens(tracked, output, batch.at, step);
    engine::Output times;  // what note_finish needs of an output whose rest moves on
    times.child = output.child;
    times.scheduled = output.scheduled;
    times.cached_tokens = output.cached_tokens;
    times.num_preemptions = output.num_preemptions;
    bool stopped_above = false;
    std::optional<Delta> delta = streams_.translate(std::move(output), stopped_above);
    if (!delta) continue;
    if (stopped_above) post(Abort{delta->id, delta->child});
    sinks.push_back(tracked.sink);
    if (delta->finish != engine::FinishReason::kNone) {
      tracked.children[static_cast<size_t>(times.child)].finished = true;
      const bool last = --tracked.open == 0;
      note_finish(tracked, times, delta->finish, batch.at, last);
      if (last) tracked_.erase(it);
    }
    deltas.push_back(std::move(*delta));
  }
  report(step, batch);
  for (size_t i = 0; i < deltas.size(); ++i) (*sinks[i])(std::move(deltas[i]));
}

void AsyncLlm::report(metrics::StepStats step, const Batch& batch) {
  const engine::EngineStats& stats = batch.stats;
  step.running = stats.running;
  step.waiting = stats.waiting;
  step.kv_usage = stats.kv_usage;
  step.prefix_requests = stats.prefix.requests - reported_.prefix.requests;
  step.prefix_queries = stats.prefix.queried_tokens - reported_.prefix.queried_tokens;
  step.prefix_hits = stats.prefix.hit_tokens - reported_.prefix.hit_tokens;
  step.preemptions = stats.preemptions - reported_.preemptions;
  reported_ = stats;
  step.prefix_reset = pending_reset_ = pending_reset_ || batch.reset;
  if (batch.stepped) {
    pending_reset_ = false;
    if (options_.metrics != nullptr) options_.metrics->on_step(step);
    stat_logger_.on_step(step);
  } else {
    if (options_.metrics != nullptr) options_.metrics->on_queue(step.running, step.waiting, 0, step.kv_usage);
    stat_logger_.on_queue(step.running, step.waiting, 0, step.kv_usage);
  }
  const std::lock_guard lock(tracked_mutex_);
  stats_ = stats;
}

}  // namespace quire::llm
