// SPDX-License-Identifier: Apache-2.0
// The engine thread, the output thread, and the inbox and outbox between them.
#include "llm/async_llm.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "base/memory.h"
#include "base/trace.h"
#include "kv/offload.h"

namespace quire::llm {
namespace {

// Approximate memory of a request, of a sequence and of a token of an answer.
constexpr int64_t kRequestBytes = 2048;
constexpr int64_t kSequenceBytes = 512;
constexpr int64_t kTokenBytes = 16;
constexpr int64_t kReceiptBytes = 64;

constexpr double kTrimIdleSeconds = 1;
constexpr double kTrimEverySeconds = 30;

// The logprobs of one token; the whole vocabulary (-1) counts as 256k tokens.
int64_t row_bytes(int64_t logprobs) {
  return 32 + static_cast<int64_t>(sizeof(sampling::TokenLogprob)) * (logprobs < 0 ? 262144 : logprobs + 1);
}

// A token of an answer, without logprobs; with a receipt it is kept until the end and written as text.
int64_t token_bytes(const sampling::SamplingParams& params) {
  return kTokenBytes + (params.row_digests != sampling::RowDigests::kNone ? kReceiptBytes : 0);
}

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// The folder is one for all engines: the first one's figures have it.
metrics::OffloadTotals totals_of(const kv::OffloadStats& stats, bool first) {
  const kv::DiskStoreStats disk = first ? stats.disk : kv::DiskStoreStats{};
  return {.disk_written_pages = stats.stored_pages,
          .disk_written_bytes = stats.stored_bytes,
          .disk_read_pages = stats.loaded_pages,
          .disk_read_bytes = stats.loaded_bytes,
          .disk_write_seconds = stats.store_seconds,
          .disk_read_seconds = stats.load_seconds,
          .host_written_pages = stats.host_stored_pages,
          .host_read_pages = stats.host_loaded_pages,
          .dropped_pages = stats.dropped_pages,
          .evicted_files = disk.evicted,
          .refused_files = disk.refused,
          .files = disk.files,
          .file_bytes = disk.bytes,
          .host_pages = stats.host_pages};
}

}  // namespace

AsyncLlm::AsyncLlm(std::shared_ptr<Llm> llm, const AsyncOptions& options)
    : llm_(std::move(llm)),
      options_(options),
      engine_(llm_->engine(options.engine)),
      stat_logger_(Clock::now(), std::chrono::milliseconds(static_cast<int64_t>(options.log_stats_every_s * 1000)),
                   engine_.backend().host_memory() ? "CPU" : "GPU", options.engine),
      streams_(llm_->tokenizer()),
      held_bytes_(options.held_bytes != nullptr ? options.held_bytes : std::make_shared<std::atomic<int64_t>>(0)),
      stats_(engine_.stats()),
      reported_(stats_) {
  if (options_.on_cache_events) engine_.record_cache_events();
  if (const kv::Offload* offload = engine_.offload(); offload != nullptr && options.metrics != nullptr) {
    options.metrics->set_offload_source(
        [offload, first = options.engine == 0] { return totals_of(offload->stats(), first); });
  }
  if (options.metrics != nullptr && !engine_.model().rank_totals().empty()) {
    options.metrics->set_rank_source([&model = engine_.model()] { return model.rank_totals(); });
  }
  engine_thread_ = std::thread([this] {
    trace::name_thread("engine");
    run_engine();
  });
  output_thread_ = std::thread([this] { run_outputs(); });
}

void AsyncLlm::begin_stop() {
  {
    const std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_filled_.notify_one();
}

AsyncLlm::~AsyncLlm() {
  begin_stop();
  engine_thread_.join();
  output_thread_.join();
  for (const auto& [id, tracked] : tracked_) *held_bytes_ -= tracked.bytes;
  if (options_.metrics == nullptr) return;
  if (engine_.offload() != nullptr) options_.metrics->set_offload_source({});
  if (!engine_.model().rank_totals().empty()) options_.metrics->set_rank_source({});
  options_.metrics->on_unloaded();
}

AsyncLlm::Cost AsyncLlm::cost_of(const std::vector<engine::Request>& requests, const SubmitOptions& options) {
  Cost cost;
  for (const engine::Request& request : requests) {
    const sampling::SamplingParams& params = request.params;
    const int64_t prompt = static_cast<int64_t>(request.prompt.size());
    cost.sequences += params.n;
    cost.tokens += params.n * prompt;
    cost.bytes += kRequestBytes + 2 * prompt * static_cast<int64_t>(sizeof(int32_t));
    cost.answer_bytes += request.pooled_floats * static_cast<int64_t>(sizeof(float));
    if (params.prompt_logprobs) cost.answer_bytes += prompt * row_bytes(*params.prompt_logprobs);
    if (!options.keeps_answer) continue;
    const int64_t row = token_bytes(params) + (params.logprobs ? row_bytes(*params.logprobs) : 0);
    cost.answer_bytes += params.n * (kSequenceBytes + params.max_tokens.value_or(0) * row);
  }
  if (!requests.empty()) cost.bytes += requests[0].params.list_bytes();  // shared by the prompts of a request
  return cost;
}

// Refuses what even an idle server could not accept.
Status AsyncLlm::check_ever(const Cost& cost) const {
  if (cost.sequences > sampling::kMaxSequences) {
    return invalid_field(
        "n", {"must be smaller: the request asks for ", cost.sequences, " sequences (prompts times n), and at most ",
              sampling::kMaxSequences, " are accepted."});
  }
  if (cost.bytes + cost.answer_bytes > options_.max_request_bytes) {
    return invalid_argument({"the request is too large: with ", cost.sequences, " sequences it may hold ",
                             cost.bytes + cost.answer_bytes, " bytes, and all requests together may hold ",
                             options_.max_request_bytes,
                             " (--max-request-bytes); lower n, max_tokens or logprobs, or stream the answer."});
  }
  const int64_t seats = engine_.options().scheduler.max_num_seqs;
  if (options_.max_num_queued_reqs && cost.sequences > 1 && cost.sequences - seats > *options_.max_num_queued_reqs) {
    return invalid_field(
        "n", {"must be smaller: the request asks for ", cost.sequences, " sequences (prompts times n), but ", seats,
              " can run and ", *options_.max_num_queued_reqs, " can wait (--max-num-queued-reqs)."});
  }
  return {};
}

std::optional<AsyncLlm::Full> AsyncLlm::find_full(const Cost& cost) const {
  const auto full = [](int64_t waiting, int64_t limit, const char* what, const char* flag) {
    return "the queue is full: " + std::to_string(waiting) + " " + what + " wait and " + std::to_string(limit) +
           " may (" + flag + ")";
  };
  const int64_t held = *held_bytes_;
  if (held + cost.bytes > options_.max_request_bytes) {
    return Full{"the requests under way hold " + std::to_string(held) + " bytes of the " +
                    std::to_string(options_.max_request_bytes) + " that they may hold together (--max-request-bytes)",
                "max_request_bytes"};
  }
  // Sequences that the engine has not seen yet count as waiting, unless none waits and there are seats for them.
  const int64_t unseen = submitted_ - stats_.added;
  const int64_t seats = engine_.options().scheduler.max_num_seqs - stats_.running;
  const int64_t waiting = stats_.waiting > 0 ? stats_.waiting + unseen : std::max<int64_t>(0, unseen - seats);
  const int64_t free = stats_.waiting > 0 ? 0 : std::max<int64_t>(0, seats - unseen);
  const int64_t would_wait = std::max<int64_t>(0, cost.sequences - free);
  if (options_.max_num_queued_reqs && waiting + would_wait > *options_.max_num_queued_reqs) {
    return Full{full(waiting, *options_.max_num_queued_reqs, "requests", "--max-num-queued-reqs"),
                "max_num_queued_reqs"};
  }
  const int64_t tokens = stats_.waiting_tokens + (waiting > 0 ? submitted_tokens_ - stats_.added_tokens : 0);
  const int64_t new_tokens = cost.sequences > 1 ? cost.tokens / cost.sequences * would_wait : 0;
  if (options_.max_num_queued_tokens &&
      (tokens >= *options_.max_num_queued_tokens || tokens + new_tokens > *options_.max_num_queued_tokens)) {
    return Full{full(tokens, *options_.max_num_queued_tokens, "prompt tokens", "--max-num-queued-tokens"),
                "max_num_queued_tokens"};
  }
  return std::nullopt;
}

Status AsyncLlm::check_queue(const Cost& cost) const {
  const std::optional<Full> full = find_full(cost);
  if (!full) return {};
  if (options_.metrics != nullptr) options_.metrics->on_rejected(full->limit);
  return exhausted({full->state, "; try again later"});
}

bool AsyncLlm::has_room(const std::vector<engine::Request>& requests, const SubmitOptions& options) const {
  const std::lock_guard lock(tracked_mutex_);
  return !find_full(cost_of(requests, options));
}

Result<std::vector<engine::RequestId>> AsyncLlm::submit(std::vector<engine::Request> requests, DeltaSink sink,
                                                        const SubmitOptions& options) {
  const auto arrival = Clock::now();
  const Cost cost = cost_of(requests, options);
  QUIRE_TRY(check_ever(cost));
  const auto shared_sink = std::make_shared<const DeltaSink>(std::move(sink));
  const auto submission = std::make_shared<engine::Submission>(cost.sequences, options.caller, options.label);
  std::vector<engine::RequestId> ids;
  std::vector<Command> adds;
  {
    const std::lock_guard lock(tracked_mutex_);
    QUIRE_TRY(check_queue(cost));
    submitted_ += cost.sequences;
    submitted_tokens_ += cost.tokens;
    *held_bytes_ += cost.bytes;
    load_ += cost.sequences;
    for (engine::Request& request : requests) {
      Tracked tracked;
      tracked.sink = shared_sink;
      tracked.arrival = arrival;
      tracked.open = request.params.n;
      tracked.bytes = cost.bytes / static_cast<int64_t>(requests.size());
      if (options_.on_trace) {
        tracked.label = options.label;
        tracked.trace = options.trace;
      }
      tracked.request = std::make_shared<const engine::Request>(std::move(request));
      ids.push_back(engine_.reserve_id());
      streams_.open(ids.back(), tracked.request, options.kept_special);
      adds.emplace_back(Add{ids.back(), tracked.request, submission});
      tracked_.emplace(ids.back(), std::move(tracked));
    }
    *held_bytes_ -= cost.bytes % static_cast<int64_t>(std::max<size_t>(requests.size(), 1));
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    std::move(adds.begin(), adds.end(), std::back_inserter(inbox_));
  }
  inbox_filled_.notify_one();
  return ids;
}

void AsyncLlm::forget(std::unordered_map<engine::RequestId, Tracked>::iterator it) {
  *held_bytes_ -= it->second.bytes;
  load_ -= it->second.request->params.n;
  tracked_.erase(it);
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
    const auto abort_one = [&](Child& child) {
      child.reason = engine::FinishReason::kAbort;
      engine::Output output;
      output.scheduled = std::max(child.scheduled, tracked.arrival);
      tracked.longest = std::max(tracked.longest, child.num_tokens);
      --tracked.open;
      note_finish(tracked, child, output, engine::FinishReason::kAbort, now);
    };
    for (auto& [number, child] : tracked.children) {
      if (!child.finished) abort_one(child);
    }
    if (tracked.open > 0) {  // sequences that never began count as one: there may be thousands of them
      tracked.open = 1;
      Child none;
      abort_one(none);
    }
    note_trace(tracked, now);
    streams_.close(id);
    forget(it);
  }
  post(Abort{id, std::nullopt});
}

std::future<bool> AsyncLlm::reset_prefix_cache() {
  Reset promise;
  std::future<bool> done = promise.get_future();
  post(std::move(promise));
  return done;
}

std::future<bool> AsyncLlm::look(LookFn look) {
  Look command{std::move(look), {}};
  std::future<bool> done = command.done.get_future();
  post(std::move(command));
  return done;
}

metrics::RecentTimes AsyncLlm::recent() const {
  const std::lock_guard lock(tracked_mutex_);
  return recent_;
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
  engine::Engine& engine = engine_;
  if (auto* add = std::get_if<Add>(&command)) {
    engine.add(add->id, std::move(add->request), std::move(add->submission));
  } else if (const auto* abort = std::get_if<Abort>(&command)) {
    if (abort->child) {
      engine.abort(abort->id, *abort->child);
    } else {
      engine.abort(abort->id);
    }
  } else if (auto* look = std::get_if<Look>(&command)) {
    look->look(engine);
    look->done.set_value(true);
  } else {
    const bool done = engine.reset_prefix_cache();
    reset_ = reset_ || done;
    std::get<Reset>(command).set_value(done);
  }
}

void AsyncLlm::run_engine() {
  engine::Engine& engine = engine_;
  std::vector<Command> commands;
  int64_t steps = 0;
  for (;;) {
    {
      std::unique_lock lock(inbox_mutex_);
      engine_busy_since_ = 0;
      inbox_filled_.wait(lock, [&] { return stopping_ || !inbox_.empty() || engine.has_work(); });
      if (stopping_) break;
      engine_busy_since_ = Clock::now().time_since_epoch().count();
      commands.swap(inbox_);
    }
    bool only_looks = true;
    for (Command& command : commands) {
      only_looks = only_looks && std::holds_alternative<Look>(command);
      apply(command);
    }
    commands.clear();
    Batch batch;
    batch.stepped = engine.has_work();
    if (only_looks && !batch.stepped) continue;  // nothing has changed
    if (batch.stepped) batch.outputs = engine.step();
    batch.reset = std::exchange(reset_, false);
    batch.stats = engine.stats();
    // A call that only waited for pages from a tier was no step.
    batch.stepped = batch.stepped && (!batch.outputs.empty() || batch.stats.steps != steps);
    steps = batch.stats.steps;
    batch.at = Clock::now();
    if (options_.on_cache_events) {
      auto events = engine.take_cache_events();
      if (!events.empty()) options_.on_cache_events(std::move(events));
    }
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
      if (auto* look = std::get_if<Look>(&command)) look->done.set_value(false);
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
      if (untrimmed_ || options_.log_stats_every_s > 0) {
        const double wait = untrimmed_ ? kTrimIdleSeconds : options_.log_stats_every_s;
        outbox_filled_.wait_for(lock, std::chrono::duration<double>(wait), ready);
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
    trim_memory(Clock::now(), batches.empty());
    output_busy_since_ = 0;
    batches.clear();
    if (const std::optional<std::string> line = stat_logger_.line(Clock::now())) {
      log_info("{}{}{}", options_.name, options_.name.empty() ? "" : ": ", *line);
    }
  }
}

// Returns free memory to the system after a burst of requests: once the server is idle, and every 30 seconds before
// that.
void AsyncLlm::trim_memory(Clock::time_point now, bool idle) {
  if (!idle) untrimmed_ = true;
  if (!untrimmed_ || (!idle && seconds(now - trimmed_) < kTrimEverySeconds)) return;
  trim_malloc();
  trimmed_ = now;
  untrimmed_ = !idle;
}

void AsyncLlm::note_tokens(Tracked& tracked, const engine::Output& output, Clock::time_point at,
                           metrics::StepStats& step) {
  if (!output.pooled.empty()) {
    step.prompt_tokens += tracked.prompt_tokens();
    step.cached_tokens += output.cached_tokens;
    tracked.children[output.child].scheduled = output.scheduled;
  }
  if (output.tokens.empty()) return;
  Child& child = tracked.children[output.child];
  int64_t bytes = token_bytes(tracked.request->params) * static_cast<int64_t>(output.tokens.size());
  for (const auto* rows : {&output.logprobs, &output.prompt_logprobs}) {
    for (const auto& row : *rows) bytes += row_bytes(static_cast<int64_t>(row.size()));
  }
  tracked.bytes += bytes;
  *held_bytes_ += bytes;
  step.generation_tokens += static_cast<int64_t>(output.tokens.size());
  if (child.num_tokens == 0) {
    child.first = at;
    step.prompt_tokens += tracked.prompt_tokens();
    step.cached_tokens += output.cached_tokens;
    (output.restored_from_disk ? step.disk_tokens : step.host_tokens) += output.restored_tokens;
    recent_.on_first_token(seconds(at - tracked.arrival), tracked.prompt_tokens());
    if (options_.metrics != nullptr) options_.metrics->on_first_token(seconds(at - tracked.arrival));
  } else {
    recent_.on_inter_token(seconds(at - child.last));
    if (options_.metrics != nullptr) options_.metrics->on_inter_token(seconds(at - child.last));
  }
  recent_.generated += static_cast<int64_t>(output.tokens.size());
  child.scheduled = output.scheduled;
  child.last = at;
  child.num_tokens += static_cast<int64_t>(output.tokens.size());
}

void AsyncLlm::note_finish(const Tracked& tracked, const Child& child, const engine::Output& output,
                           engine::FinishReason reason, Clock::time_point at) {
  if (options_.metrics == nullptr) return;
  const bool answered = child.num_tokens > 0;
  metrics::FinishedRequest finished;
  finished.finish_reason = engine::name(reason);
  finished.e2e_s = seconds(at - tracked.arrival);
  finished.queue_s = seconds(output.scheduled - tracked.arrival);
  finished.prefill_s = answered ? seconds(child.first - output.scheduled) : 0;
  finished.decode_s = answered ? seconds(child.last - child.first) : 0;
  finished.inference_s = answered ? seconds(child.last - output.scheduled) : 0;
  finished.prompt_tokens = tracked.prompt_tokens();
  finished.cached_tokens = output.cached_tokens;
  finished.generation_tokens = child.num_tokens;
  finished.max_tokens = tracked.request->params.max_tokens;
  if (tracked.open == 0) {
    finished.n = tracked.request->params.n;
    finished.max_num_generation_tokens = tracked.longest;
  }
  finished.num_preemptions = output.num_preemptions;
  options_.metrics->on_finished(finished);
}

void AsyncLlm::note_trace(const Tracked& tracked, Clock::time_point at) const {
  if (!options_.on_trace) return;
  const sampling::SamplingParams& params = tracked.request->params;
  RequestTrace trace;
  trace.context = tracked.trace;
  trace.id = tracked.label;
  trace.end = std::chrono::system_clock::now();
  trace.arrival = trace.end - std::chrono::duration_cast<std::chrono::system_clock::duration>(at - tracked.arrival);
  trace.e2e_s = seconds(at - tracked.arrival);
  trace.prompt_tokens = tracked.prompt_tokens();
  trace.n = params.n;
  trace.max_tokens = params.max_tokens;
  trace.temperature = params.temperature;
  trace.top_p = params.top_p;
  auto scheduled = Clock::time_point::max(), first = scheduled, last = Clock::time_point::min();
  for (int32_t number = 0; number < params.n; ++number) {
    const auto found = tracked.children.find(number);
    if (found == tracked.children.end()) continue;  // it never began
    const Child& child = found->second;
    trace.completion_tokens += child.num_tokens;
    trace.finish_reasons.emplace_back(engine::name(child.reason));
    trace.failed = trace.failed || child.reason == engine::FinishReason::kError;
    if (child.num_tokens == 0) continue;
    scheduled = std::min(scheduled, child.scheduled);
    first = std::min(first, child.first);
    last = std::max(last, child.last);
  }
  if (trace.completion_tokens > 0) {
    trace.queue_s = seconds(scheduled - tracked.arrival);
    trace.ttft_s = seconds(first - tracked.arrival);
    trace.prefill_s = seconds(first - scheduled);
    trace.decode_s = seconds(last - first);
    trace.inference_s = seconds(last - scheduled);
  }
  options_.on_trace(std::move(trace));
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
    engine::Output times;  // the part of the output that note_finish() needs after the rest was moved
    times.child = output.child;
    times.scheduled = output.scheduled;
    times.cached_tokens = output.cached_tokens;
    times.num_preemptions = output.num_preemptions;
    const auto sampled = static_cast<int64_t>(output.tokens.size());
    bool stopped_above = false;
    std::optional<Delta> delta = streams_.translate(std::move(output), stopped_above);
    if (!delta) continue;
    if (const int64_t cut = sampled - static_cast<int64_t>(delta->tokens.size()); cut > 0) {
      tracked.children[times.child].num_tokens -= cut;  // drafts that were accepted after a stop string
      step.generation_tokens -= cut;
      recent_.generated -= cut;
    }
    if (stopped_above) post(Abort{delta->id, delta->child});
    sinks.push_back(tracked.sink);
    if (delta->finish != engine::FinishReason::kNone) {
      Child& child = tracked.children[times.child];
      child.finished = true;
      child.reason = delta->finish;
      tracked.longest = std::max(tracked.longest, child.num_tokens);
      --tracked.open;
      note_finish(tracked, child, times, delta->finish, batch.at);
      if (tracked.open == 0) {
        note_trace(tracked, batch.at);
        forget(it);
      }
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
  step.offload_queries = stats.prefix.offload_queried_tokens - reported_.prefix.offload_queried_tokens;
  step.offload_hits = stats.prefix.offload_hit_tokens - reported_.prefix.offload_hit_tokens;
  step.preemptions = stats.preemptions - reported_.preemptions;
  step.drafts = stats.speculation.drafts - reported_.speculation.drafts;
  step.draft_tokens = stats.speculation.draft_tokens - reported_.speculation.draft_tokens;
  step.accepted_tokens = stats.speculation.accepted_tokens - reported_.speculation.accepted_tokens;
  step.accepted_per_position = stats.speculation.accepted_per_position;
  for (size_t i = 0; i < reported_.speculation.accepted_per_position.size(); ++i) {
    step.accepted_per_position[i] -= reported_.speculation.accepted_per_position[i];
  }
  if (options_.metrics != nullptr &&
      (stats.running_adapters != reported_.running_adapters || stats.waiting_adapters != reported_.waiting_adapters)) {
    const auto names = [&](const std::vector<uint64_t>& ids) {
      std::vector<std::string> out;
      for (const uint64_t id : ids) out.push_back(llm_->adapters().name_of(id));
      return out;
    };
    options_.metrics->on_adapters(names(stats.running_adapters), names(stats.waiting_adapters));
  }
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
