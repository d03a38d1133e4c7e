// SPDX-License-Identifier: Apache-2.0
// The step loop: schedule, build the StepBatch, run the model, sample, hand out.
#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/trace.h"
#include "kv/cache_groups.h"

namespace quire::engine {

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

Result<std::unique_ptr<Engine>> Engine::make(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model,
                                             const EngineOptions& options) {
  kv::CacheLayout layout = options.cache;
  if (layout.groups.empty()) {
    const auto page_bytes = [&](const KvPageShape& shape) {
      return static_cast<int64_t>(backend->kv_page_bytes(shape));
    };
    QUIRE_ASSIGN(layout, kv::group_layers(model::cache_layers(model->config()), options.kv_dtype, options.block_size,
                                          page_bytes));
  }
  layout.num_pages = options.num_blocks;
  QUIRE_ASSIGN(auto pages, model::KvCache::make(*backend, std::move(layout)));
  QUIRE_TRY(model->prepare({options.scheduler.max_num_batched_tokens, options.max_logit_rows}));
  if (backend->samples()) {
    QUIRE_TRY(backend->prepare_sampling(options.scheduler.max_num_batched_tokens, options.max_logit_rows,
                                        model->config().vocab_size));
  }
  return std::unique_ptr<Engine>(new Engine(std::move(backend), std::move(model), std::move(pages), options));
}

Engine::Engine(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model,
               std::unique_ptr<model::KvCache> pages, const EngineOptions& options)
    : options_(options),
      backend_(std::move(backend)),
      model_(std::move(model)),
      pages_(std::move(pages)),
      kv_({.num_blocks = options.num_blocks,
           .enable_prefix_caching = options.prefix_caching,
           .groups = pages_->layout().groups,
           .max_step_tokens = options.scheduler.max_num_batched_tokens}),
      scheduler_(options.scheduler, kv_, [this](PendingRequest& pending) { return make_sequence(pending); }) {}

Engine::~Engine() {
  for (auto& [id, pending] : pending_) scheduler_.remove(&pending);
  for (auto& [key, sequence] : sequences_) scheduler_.remove(sequence.get());
}

Status Engine::check(sampling::SamplingParams& params) const {
  return params.validate({model_->config().vocab_size, options_.max_logprobs});
}

Status Engine::check(const Request& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t max_len = options_.scheduler.max_model_len;
  if (prompt == 0) return invalid_argument("the prompt is empty; it needs at least one token");
  if (prompt >= max_len) {
    return invalid_argument("the prompt has " + std::to_string(prompt) + " tokens, but the model's context holds " +
                            std::to_string(max_len) +
                            " with at least one for the answer; shorten it or raise --max-model-len");
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= model_->config().vocab_size) {
      return invalid_argument("token id " + std::to_string(token) + " is out of the vocabulary (0 to " +
                              std::to_string(model_->config().vocab_size - 1) + ")");
    }
  }
  const int64_t longest = std::min(max_len, prompt + request.params.max_tokens.value_or(max_len));
  if (const int64_t pages = kv_.pages_for(longest); pages > kv_.pool().num_usable()) {
    const size_t groups = kv_.groups().size();
    const std::string what = groups == 1 ? "pages of " + std::to_string(kv_.groups().front().block_size) + " tokens"
                                         : "pages in " + std::to_string(groups) + " cache groups";
    return invalid_argument("the request may need " + std::to_string(pages) + " " + what + ", but there are " +
                            std::to_string(kv_.pool().num_usable()) +
                            "; lower max_tokens, or give the KV cache more memory");
  }
  return {};
}

Result<RequestId> Engine::add(Request request) {
  QUIRE_TRY(check(request.params));
  QUIRE_TRY(check(std::as_const(request)));
  const RequestId id = reserve_id();
  add(id, std::make_shared<const Request>(std::move(request)));
  return id;
}

void Engine::add(RequestId id, RequestPtr request, std::shared_ptr<Submission> submission) {
  const int64_t n = request->params.n;
  PendingRequest pending;
  pending.id = id;
  pending.submission = submission != nullptr ? std::move(submission) : std::make_shared<Submission>(n);
  pending.seed = request->params.seed ? static_cast<uint64_t>(*request->params.seed) : sampling::draw_seed();
  pending.arrival = next_arrival_;
  next_arrival_ += static_cast<uint64_t>(n);
  added_tokens_ += n * static_cast<int64_t>(request->prompt.size());
  num_wanting_logits_ += wants_logits(request->params) ? n : 0;
  pending.request = std::move(request);
  scheduler_.add(&pending_.emplace(id, std::move(pending)).first->second);
}

// The request's next sequence; schedule() forgets a request after its last one.
Sequence* Engine::make_sequence(PendingRequest& pending) {
  const int32_t child = pending.next_child++;
  auto sequence =
      std::make_unique<Sequence>(pending.id, child, *pending.request, sampling::child_seed(pending.seed, child),
                                 pending.arrival + static_cast<uint64_t>(child), pending.submission);
  Sequence* made = sequence.get();
  sequences_.emplace(std::pair(pending.id, child), std::move(sequence));
  if (pending.left() == 0) all_made_.push_back(pending.id);
  return made;
}

// The shares of the next step.
const std::vector<Share>& Engine::schedule() {
  const std::vector<Share>& shares = scheduler_.schedule();
  for (const RequestId id : all_made_) pending_.erase(id);
  all_made_.clear();
  return shares;
}

void Engine::drop(Sequence* sequence) {
  scheduler_.remove(sequence);
  current_.forget(sequence);
  next_.forget(sequence);
  num_wanting_logits_ -= wants_logits(sequence->params) ? 1 : 0;
  sequences_.erase({sequence->id, sequence->child});
}

void Engine::abort(RequestId id, int32_t child) {
  const auto it = sequences_.find({id, child});
  if (it != sequences_.end()) drop(it->second.get());
}

void Engine::abort(RequestId id) {
  if (const auto it = pending_.find(id); it != pending_.end()) {
    scheduler_.remove(&it->second);
    num_wanting_logits_ -= wants_logits(it->second.request->params) ? it->second.left() : 0;
    pending_.erase(it);
  }
  for (auto it = sequences_.lower_bound({id, 0}); it != sequences_.end() && it->first.first == id;) {
    Sequence* sequence = (it++)->second.get();
    drop(sequence);
  }
}

// Each cache group's slots and tables, or its states.
void Engine::build_groups(const std::vector<Share>& shares) {
  batch_.groups.resize(kv_.groups().size());
  int64_t tokens = 0;
  for (const Share& share : shares) tokens += share.count;
  for (size_t g = 0; g < batch_.groups.size(); ++g) {
    model::GroupBatch& group = batch_.groups[g];
    if (kv_.groups()[g].kind == kv::CacheKind::kState) {
      for (const Share& share : shares) {
        group.state_source.push_back(share.sequence->table.state_source(g));
        group.state_destination.push_back(share.sequence->table.state_destination(g));
      }
      continue;
    }
    for (const Share& share : shares) {
      group.max_blocks = std::max(group.max_blocks, static_cast<int32_t>(share.sequence->table.blocks(g).size()));
    }
    group.max_blocks = static_cast<int32_t>(backend_->table_width(group.max_blocks));
    group.slot_mapping.resize(static_cast<size_t>(tokens));
    auto slots = std::span(group.slot_mapping);
    for (size_t s = 0; s < shares.size(); ++s) {
      const Sequence& sequence = *shares[s].sequence;
      const auto count = static_cast<size_t>(shares[s].count);
      kv_.slot_mapping(sequence.table, g, sequence.num_computed, slots.first(count));
      slots = slots.subspan(count);
      const auto blocks = sequence.table.blocks(g);
      group.block_tables.insert(group.block_tables.end(), blocks.begin(), blocks.end());
      group.block_tables.resize((s + 1) * static_cast<size_t>(group.max_blocks), 0);
    }
  }
}

void Engine::build(const std::vector<Share>& shares, std::vector<Row>& rows) {
  batch_.clear();
  rows.clear();
  batch_.cu_seqlens_q.push_back(0);
  build_groups(shares);
  for (size_t s = 0; s < shares.size(); ++s) {
    Sequence& sequence = *shares[s].sequence;
    const int64_t begin = sequence.num_computed;
    const int64_t end = begin + shares[s].count;
    const int64_t first_row = batch_.num_tokens();
    if (begin < sequence.num_tokens()) {
      const auto tokens = sequence.tokens.begin();
      batch_.tokens.insert(batch_.tokens.end(), tokens + begin, tokens + end);
    } else {  // the token that the step before is sampling
      QUIRE_CHECK(sequence.in_flight() && end == begin + 1);
      batch_.sampled_from_row.resize(batch_.tokens.size(), -1);
      batch_.sampled_from_row.push_back(sequence.row_in_flight);
      batch_.tokens.push_back(0);
    }
    for (int64_t p = begin; p < end; ++p) batch_.positions.push_back(static_cast<int32_t>(p));
    batch_.cu_seqlens_q.push_back(static_cast<int32_t>(batch_.num_tokens()));
    batch_.context_lens.push_back(static_cast<int32_t>(end));

    for (int64_t p = begin; p < end; ++p) {
      Row row{&sequence, s, p, p + 1 == sequence.num_to_compute(), false};
      row.prompt_logprob =
          sequence.owes_prompt_logprobs() && p + 1 < sequence.prompt_size && p >= sequence.prompt_logprobs_sent;
      if (!row.sample && !row.prompt_logprob) continue;
      batch_.wanted.push_back(static_cast<int32_t>(first_row + p - begin));
      rows.push_back(row);
    }
  }
  if (!batch_.sampled_from_row.empty()) batch_.sampled_from_row.resize(batch_.tokens.size(), -1);
}

void Engine::fail(Sequence& sequence, const Error& error, Output& output) const {
  output.finish = FinishReason::kError;
  output.error = Error{error.code, "request " + std::to_string(sequence.id) + ": " + error.message};
}

// The new token's consequences: EOS, stop tokens, lengths.
void Engine::accept(Sequence& sequence, int32_t token, Output& output) const {
  sequence.tokens.push_back(token);
  sequence.history.push_output(token);
  output.tokens.push_back(token);
  const sampling::SamplingParams& params = sequence.params;
  const auto contains = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (!params.ignore_eos && contains(params.eos_token_ids)) {
    output.finish = FinishReason::kStop;
    if (token != params.eos_token_ids.front()) output.stop_token = token;
  } else if (contains(params.stop_token_ids)) {
    output.finish = FinishReason::kStop;
    output.stop_token = token;
  } else if (sequence.num_tokens() >= options_.scheduler.max_model_len ||
             (params.max_tokens && sequence.num_output() >= *params.max_tokens)) {
    output.finish = FinishReason::kLength;
  }
}

bool Engine::read_prompt_logprob(const Row& row, std::span<const float> logits, Output& output) {
  Sequence& sequence = *row.sequence;
  const int32_t next = sequence.tokens[static_cast<size_t>(row.position + 1)];
  auto logprobs = sampling::row_logprobs(logits, next, *sequence.params.prompt_logprobs, scratch_);
  if (!logprobs.ok()) {
    fail(sequence, logprobs.error(), output);
    return false;
  }
  output.prompt_logprobs.push_back(std::move(*logprobs));
  sequence.prompt_logprobs_sent = row.position + 1;
  return true;
}

void Engine::read_row(const Row& row, std::span<const float> logits, Output& output) {
  Sequence& sequence = *row.sequence;
  if (output.finish != FinishReason::kNone) return;
  if (tap_) tap_(sequence.id, sequence.child, row.position, logits);
  if (row.prompt_logprob && !read_prompt_logprob(row, logits, output)) return;
  if (!row.sample) return;
  auto sampled =
      sampling::sample_row(logits, sequence.params, sequence.history, sequence.seed, row.position + 1, scratch_);
  if (!sampled.ok()) return fail(sequence, sampled.error(), output);
  if (sequence.params.logprobs) output.logprobs.push_back(std::move(sampled->logprobs));
  accept(sequence, sampled->token, output);
}

void Engine::read_rows(std::vector<Output>& outputs) {
  const trace::Span span("logits and sampling %zu rows", rows_.size());
  const int64_t total = static_cast<int64_t>(rows_.size());
  const size_t vocab = static_cast<size_t>(model_->config().vocab_size);
  for (int64_t begin = 0; begin < total; begin += options_.max_logit_rows) {
    const int64_t count = std::min(options_.max_logit_rows, total - begin);
    const std::span<const float> logits = model_->logits(begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const Row& row = rows_[static_cast<size_t>(begin + i)];
      read_row(row, logits.subspan(static_cast<size_t>(i) * vocab, vocab), outputs[row.share]);
    }
  }
}

std::vector<Output> Engine::step() {
  const trace::Span step_span("step %lld", static_cast<long long>(steps_));
  return backend_->samples() ? step_on_device() : step_on_host();
}

std::vector<Output> Engine::step_on_host() {
  const std::vector<Share>& shares = schedule();
  if (shares.empty()) return {};
  build(shares, rows_);
  {
    const trace::Span span("forward %lld tokens %zu seqs", static_cast<long long>(batch_.num_tokens()), shares.size());
    model_->forward(batch_, *pages_);
  }
  ++steps_;
  tokens_computed_ += batch_.num_tokens();
  for (const Share& share : shares) {
    share.sequence->num_computed += share.count;
    kv_.commit(share.sequence->table, share.sequence->tokens, share.sequence->num_computed);
  }
  // This and the tokens in each output are what a step allocates: they are the caller's.
  std::vector<Output> outputs(shares.size());
  read_rows(outputs);
  hand_out(shares, rows_, outputs);
  return outputs;
}

// Outputs of shares to outputs of sequences: a share whose rows nobody asked for has nothing to say. What ended goes.
void Engine::hand_out(const std::vector<Share>& shares, const std::vector<Row>& rows, std::vector<Output>& outputs) {
  size_t kept = 0;
  size_t row = 0;
  for (size_t s = 0; s < shares.size(); ++s) {
    if (row == rows.size() || rows[row].share != s) continue;
    while (row < rows.size() && rows[row].share == s) ++row;
    if (shares[s].sequence == nullptr) continue;
    Sequence& sequence = *shares[s].sequence;
    if (kept != s) outputs[kept] = std::move(outputs[s]);
    Output& output = outputs[kept++];
    output.id = sequence.id;
    output.child = sequence.child;
    output.cached_tokens = sequence.cached_tokens;
    output.num_preemptions = sequence.num_preemptions;
    output.scheduled = sequence.scheduled;
    if (output.finish != FinishReason::kNone) drop(&sequence);
  }
  outputs.resize(kept);
}

EngineStats Engine::stats() const {
  EngineStats stats;
  stats.steps = steps_;
  stats.tokens_computed = tokens_computed_;
  stats.preemptions = scheduler_.num_preemptions();
  stats.running = scheduler_.num_running();
  stats.waiting = scheduler_.num_waiting();
  stats.waiting_tokens = scheduler_.num_waiting_tokens();
  stats.added = static_cast<int64_t>(next_arrival_);
  stats.added_tokens = added_tokens_;
  stats.kv_usage = kv_.usage();
  stats.prefix = kv_.prefix_stats();
  return stats;
}

}  // namespace quire::engine
