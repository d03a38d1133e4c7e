// SPDX-License-Identifier: Apache-2.0
// The step loop: schedule, build the batch, run the model, sample, return outputs.
//
// If the backend samples, step N + 1 is scheduled, built and queued while step N runs:
// - N + 1 takes the tokens that N is sampling from the backend's memory (StepBatch::sampled_from_row).
// - Then N is read: its tokens are appended, and sequences that end are dropped, with their rows in N + 1.
// - Only then is N + 1 committed, so that the prefix cache sees accepted tokens only.
// - If settings look at the sequence's tokens (penalties, bad words), the sampling of N + 1 is queued after N was read;
//   its forward pass is already under way. The same holds for constraints (grammars): once N's tokens are known,
//   workers fill the masks of N + 1 while its forward pass runs.
// - While the host needs logits (prompt logprobs, more logprobs than the backend makes, digests of receipts of
//   version 1, a tap), no step runs ahead.
// On the host, one step is in flight at a time, and masks are filled during its forward pass.
//
// With speculation, no step runs ahead of one whose sequences may have drafts next, because those follow from its
// tokens; only while all of them pause or have no drafts that are worth it (DraftPace) do steps overlap as above. The
// next step is then launched once the tokens are read, before the caller gets them. The rows of drafts are ordinary
// rows: each samples the token of its position from its own logits, with the random words of that position, and with
// the drafts before it as history. The first row whose token is not the next draft ends the step for its sequence; the
// rows after it are not read. So a sequence gets the tokens that it would get one by one. Its pages are committed once
// that is known, and only up to there.
//
// A draft model or a layer ahead (ModelDrafter) runs between the steps: before a step it makes the drafts of all
// sequences, and after it it computes its own K and V of the pages that are full now, before these are committed. If
// the backend samples, it never waits for the host in between, unless the host is slower than one pass of the drafter:
// - The drafter's first pass is queued right behind the step (ModelDrafter::start); how many drafts the step has
//   accepted is found in the backend's memory. The host reads the tokens of the step while that pass runs.
// - The step is queued with the last drafts in the backend's memory; the host reads them while the step runs, and only
//   then queues the sampling, which may look at them. A draft that turns out to be an end token is dropped then.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/trace.h"
#include "kv/cache_groups.h"
#include "kv/offload.h"
#include "sampling/device_rows.h"

namespace quire::engine {
namespace {

// Whether the answer ends with this token.
bool ends_answer(const sampling::SamplingParams& params, int32_t token) {
  const auto contains = [&](const auto& ids) { return std::find(ids.begin(), ids.end(), token) != ids.end(); };
  return (!params.ignore_eos && contains(params.eos_token_ids)) || contains(params.stop_token_ids);
}

// Shows the constraint the tokens that it has not seen.
Status show_tokens(Sequence& sequence) {
  if (sequence.constraint == nullptr) sequence.constraint = sequence.constraint_source->make();
  for (; sequence.num_accepted < sequence.num_output(); ++sequence.num_accepted) {
    const int64_t position = sequence.prompt_size + sequence.num_accepted;
    QUIRE_TRY(sequence.constraint->accept(sequence.tokens[static_cast<size_t>(position)]));
  }
  return {};
}

// Fills the mask for the next token.
Result<bool> fill_mask(Sequence& sequence, std::span<uint32_t> mask) {
  QUIRE_TRY(show_tokens(sequence));
  return sequence.constraint->fill_mask(mask);
}

bool allows(const RowMask& mask, int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  return !*mask.filled || (mask.bits[id / 32] >> (id % 32) & 1) != 0;
}

// Fills the masks of a sequence's rows: the first for its next token, the others along its drafts, as far as the
// constraint allows these. A mask that is not filled is never used.
void fill_masks(std::span<RowMask> masks, std::span<const LogitRow> rows) {
  Sequence& sequence = *rows[masks.front().row].sequence;
  masks.front().filled = fill_mask(sequence, masks.front().bits);
  int64_t ahead = 0;
  for (size_t m = 1; m < masks.size(); ++m) {
    const int32_t draft = rows[masks[m].row].draft;
    if (!masks[m - 1].filled.ok() || !allows(masks[m - 1], draft)) break;
    if (const Status accepted = sequence.constraint->accept(draft); !accepted.ok()) {
      masks[m].filled = accepted.error();
      break;
    }
    ++ahead;
    masks[m].filled = sequence.constraint->fill_mask(masks[m].bits);
  }
  if (ahead > 0) sequence.constraint->rollback(ahead);
}

// Whether the host reads rows of such a request, so that no step may run ahead of them.
bool needs_host(const sampling::SamplingParams& params, model::PoolRows pool) {
  return needs_host_logits(params) || pool != model::PoolRows::kNone;
}

}  // namespace

const char* name(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "stop", "length", "abort", "error"};
  return kNames[static_cast<size_t>(reason)];
}

Result<std::unique_ptr<Engine>> Engine::make(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model,
                                             const EngineOptions& options, std::unique_ptr<model::Model> draft) {
  const SpeculationOptions& speculation = options.speculation;
  if (speculation.num_tokens < 0 || speculation.num_tokens > SpeculationOptions::kMaxTokens ||
      speculation.prompt_lookup_min < 1 || speculation.prompt_lookup_max < speculation.prompt_lookup_min) {
    return invalid_argument("the speculation options are out of range");
  }
  QUIRE_CHECK((draft != nullptr) == speculation.with_model());
  kv::CacheLayout layout = options.cache;
  const bool encoder = model->config().encoder.on;
  if (encoder) {
    layout = kv::layout_without_pages(model->config().per_layer.size());
    if (options.prefix_caching || options.scheduler.chunked_prefill) {
      return invalid_argument("an encoder has no prefix cache and computes a sequence in one step");
    }
  } else if (layout.groups.empty()) {
    const auto page_bytes = [&](const KvPageShape& shape) {
      return static_cast<int64_t>(backend->kv_page_bytes(shape));
    };
    std::vector<kv::LayerCache> layers = model::cache_layers(model->config());
    if (draft != nullptr) std::ranges::copy(model::cache_layers(draft->config()), std::back_inserter(layers));
    QUIRE_ASSIGN(layout, kv::group_layers(layers, options.kv_dtype, options.block_size, page_bytes));
  }
  layout.num_pages = options.num_blocks;
  QUIRE_ASSIGN(auto pages, model::KvCache::make(*backend, std::move(layout)));
  for (model::Model* prepared : {model.get(), draft.get()}) {
    if (prepared == nullptr) continue;
    QUIRE_TRY(prepared->prepare({options.scheduler.max_num_batched_tokens, options.max_logit_rows,
                                 options.scheduler.max_num_seqs, options.pools && prepared == model.get()}));
  }
  if (backend->samples()) {
    QUIRE_TRY(backend->prepare_sampling(options.scheduler.max_num_batched_tokens, options.max_logit_rows,
                                        model->config().vocab_size));
  }
  return std::unique_ptr<Engine>(
      new Engine(std::move(backend), std::move(model), std::move(pages), options, std::move(draft)));
}

Engine::Engine(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model,
               std::unique_ptr<model::KvCache> pages, const EngineOptions& options, std::unique_ptr<model::Model> draft)
    : options_(options),
      backend_(std::move(backend)),
      model_(std::move(model)),
      draft_model_(std::move(draft)),
      pages_(std::move(pages)),
      kv_({.num_blocks = options.num_blocks,
           .enable_prefix_caching = options.prefix_caching,
           .groups = pages_->layout().groups,
           .keeps_nothing = model_->config().encoder.on,
           .max_step_tokens = options.scheduler.max_num_batched_tokens,
           .checkpoint_interval = options.checkpoint_interval}),
      scheduler_(options.scheduler, kv_, [this](PendingRequest& pending) { return make_sequence(pending); }),
      seeds_(options.seed),
      builder_(*backend_, kv_),
      sampler_(make_row_sampler(*backend_, *model_, options.max_logit_rows)),
      answers_(options.speculation.suffix.max_cached_requests),
      drafting_(options.speculation.on()),
      clock_(
          [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }) {
  kv_.set_copy([this](kv::BlockId from, kv::BlockId to, size_t group) {
    pages_->copy_page(*backend_, from, to, group);
    model_->copied_page(from, to, group);
  });
  if (options.offload.on() && options.prefix_caching) {
    offload_ = std::make_unique<kv::Offload>(options.offload, pages_->memory(*backend_));
    if (kv::RankTiers* ranks = model_->rank_tiers()) offload_->set_ranks(ranks);
    kv_.set_offload(offload_.get());
  }
  if (!options.speculation.on()) return;
  speculation_.accepted_per_position.resize(static_cast<size_t>(options.speculation.num_tokens));
  make_proposer_ = [this](const Sequence& sequence) -> std::unique_ptr<Proposer> {
    const SpeculationOptions& speculation = options_.speculation;
    if (speculation.method == SpeculationOptions::Method::kNgram) return std::make_unique<NgramProposer>(speculation);
    return std::make_unique<SuffixProposer>(speculation.suffix, sequence.table.salt(), answers_);
  };
  scheduler_.set_drafter([this](Sequence& sequence, int64_t most) { this->draft(sequence, most); });
  if (draft_model_ == nullptr) return;
  ModelDrafter::Parts parts{*backend_,
                            kv_,
                            *draft_model_,
                            pages_->from_layer(model_->config().layers),
                            {options.scheduler.max_num_batched_tokens, options.max_logit_rows},
                            options.speculation.max_length};
  if (options.speculation.method == SpeculationOptions::Method::kDraftModel) {
    model_drafter_ = std::make_unique<DraftModelDrafter>(std::move(parts));
  } else {
    model_drafter_ = std::make_unique<AheadDrafter>(std::move(parts));
  }
  scheduler_.set_draft_filler([this](std::span<const Share> shares) {
    drafting_began_ = clock_();
    most_drafts_ = 0;
    for (const Share& share : shares) most_drafts_ = std::max(most_drafts_, share.drafts);
    model_drafter_->propose(shares, queues_drafts());
    if (!model_drafter_->has_unread()) note_drafting();
    for (const Share& share : shares) {
      if (share.drafts == 0) continue;
      if (draft_edit_ && !share.sequence->drafts_forced) draft_edit_(*share.sequence, share.sequence->drafts);
      cut_drafts(*share.sequence);
    }
  });
}

// What the drafts of this step have cost, once they are there.
void Engine::note_drafting() {
  if (most_drafts_ == 0) return;
  drafting_seconds_ = clock_() - drafting_began_;
  constexpr double kWeight = 0.1;  // of the newest
  const double each = drafting_seconds_ / static_cast<double>(most_drafts_);
  model_draft_seconds_ += model_draft_seconds_ == 0 ? each : kWeight * (each - model_draft_seconds_);
}

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
  if (request.adapter != nullptr && options_.scheduler.max_adapters == 0) {
    return invalid_argument("the request has an adapter, but the model was loaded without --enable-lora");
  }
  if (prompt == 0) return invalid_argument("the prompt is empty; it needs at least one token");
  const bool pools = request.pool != model::PoolRows::kNone;
  if (!pools && !model_->config().has_head) {
    return invalid_argument(
        "this model makes embeddings or scores and generates no text; use /v1/embeddings, /score or /classify");
  }
  if (pools && !options_.pools) {
    return invalid_argument("this model was loaded to generate text; load it with --runner pooling or --convert embed");
  }
  if (request.second_segment >= 0 && model_->config().encoder.token_types < 2) {
    return invalid_argument("the model has no token type for a second text");
  }
  if (pools && prompt > max_len) {
    return invalid_argument({"the input has ", prompt, " tokens, but the model takes at most ", max_len,
                             "; shorten it or set truncate_prompt_tokens to -1"});
  }
  const int64_t step = options_.scheduler.max_num_batched_tokens;
  if (model_->config().encoder.on && prompt > step) {
    return invalid_argument({"the input has ", prompt,
                             " tokens, but an encoder computes a sequence in one step, which holds ", step,
                             "; shorten it or raise --max-num-batched-tokens"});
  }
  if (!pools && prompt >= max_len) {
    return invalid_argument({"the prompt has ", prompt, " tokens, but the model's context holds ", max_len,
                             " with at least one for the answer; shorten it or raise --max-model-len"});
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= model_->config().vocab_size) {
      return invalid_argument(
          {"token id ", token, " is out of the vocabulary (0 to ", model_->config().vocab_size - 1, ")"});
    }
  }
  const int64_t longest = pools ? prompt : std::min(max_len, prompt + request.params.max_tokens.value_or(max_len));
  if (const int64_t pages = kv_.pages_for(longest); pages > kv_.pool().num_usable()) {
    const size_t groups = kv_.groups().size();
    const std::string what = groups == 1 ? "pages of " + std::to_string(kv_.groups().front().block_size) + " tokens"
                                         : "pages in " + std::to_string(groups) + " cache groups";
    return invalid_argument({"the request may need ", pages, " ", what, ", but there are ", kv_.pool().num_usable(),
                             "; lower max_tokens, or give the KV cache more memory"});
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
  pending.seed = request->params.seed ? static_cast<uint64_t>(*request->params.seed) : seeds_.next();
  pending.arrival = next_arrival_;
  next_arrival_ += static_cast<uint64_t>(n);
  added_tokens_ += n * static_cast<int64_t>(request->prompt.size());
  num_needing_logits_ += needs_host(request->params, request->pool) ? n : 0;
  pending.request = std::move(request);
  scheduler_.add(&pending_.emplace(id, std::move(pending)).first->second);
}

// Makes the next sequence of a request; schedule() erases the request after its last one.
Sequence* Engine::make_sequence(PendingRequest& pending) {
  const int32_t child = pending.next_child++;
  auto sequence =
      std::make_unique<Sequence>(pending.id, child, *pending.request, sampling::child_seed(pending.seed, child),
                                 pending.arrival + static_cast<uint64_t>(child), pending.submission);
  sequence->pace = DraftPace(right_);
  Sequence* made = sequence.get();
  sequences_.emplace(std::pair(pending.id, child), std::move(sequence));
  if (pending.left() == 0) all_made_.push_back(pending.id);
  return made;
}

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
  if (model_drafter_ != nullptr) model_drafter_->forget(sequence);
  num_needing_logits_ -= needs_host(sequence->params, sequence->pool) ? 1 : 0;
  if (sequence->proposer != nullptr) {
    sequence->proposer->end(std::span(sequence->tokens).subspan(static_cast<size_t>(sequence->prompt_size)));
  }
  sequences_.erase({sequence->id, sequence->child});
}

void Engine::abort(RequestId id, int32_t child) {
  const auto it = sequences_.find({id, child});
  if (it != sequences_.end()) drop(it->second.get());
}

void Engine::abort(RequestId id) {
  if (const auto it = pending_.find(id); it != pending_.end()) {
    scheduler_.remove(&it->second);
    num_needing_logits_ -= needs_host(it->second.request->params, it->second.request->pool) ? it->second.left() : 0;
    pending_.erase(it);
  }
  for (auto it = sequences_.lower_bound({id, 0}); it != sequences_.end() && it->first.first == id;) {
    Sequence* sequence = (it++)->second.get();
    drop(sequence);
  }
}

// Whether a sequence of so many tokens is as long as it may become.
bool Engine::reaches_end(const Sequence& sequence, int64_t num_tokens) const {
  const std::optional<int64_t>& max_tokens = sequence.params.max_tokens;
  return num_tokens >= options_.scheduler.max_model_len ||
         (max_tokens && num_tokens - sequence.prompt_size >= *max_tokens);
}

// Appends a token, and ends the sequence at EOS, at a stop token or at its longest length.
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
  } else if (reaches_end(sequence, sequence.num_tokens())) {
    output.finish = FinishReason::kLength;
  }
}

std::vector<Output> Engine::step() {
  const trace::Span span("step %lld", static_cast<long long>(steps_));
  if (current_.active() && !current_.alive()) current_.clear();
  if (!current_.active() && !begin(current_)) {
    if (scheduler_.restoring()) offload_->wait_for_loads();
    return {};
  }
  const bool launched = may_run_ahead() && launch(next_, true);
  const bool enqueued = launched && !next_.waits_for_tokens;
  if (enqueued) enqueue(next_);
  std::vector<Output> outputs = finish(current_);
  if (drafting_ && current_.alone && !launched && current_.num_tokens == std::ssize(current_.rows)) {
    draft_cost_.note(current_.num_tokens, clock_() - current_.began - drafting_seconds_);
  }
  current_.clear();
  if (offload_ != nullptr) offload_->after_step();
  if (!launched) {
    // The caller deals with the outputs while the device computes. A model that drafts would let them wait too long.
    if (drafting_ && runs_ahead() && model_drafter_ == nullptr) begin(current_);
    return outputs;
  }
  if (!enqueued) start_masks(next_);
  if (model_drafter_ == nullptr) commit(next_);
  if (!enqueued) {
    join_masks(next_);
    if (next_.alive()) enqueue(next_);
  }
  if (model_drafter_ != nullptr) commit(next_);
  std::swap(current_, next_);
  return outputs;
}

// Launches a step while no other is in flight, and queues its sampling; false when there is nothing to do.
bool Engine::begin(Step& step) {
  const double began = clock_();
  if (!launch(step, false)) return false;
  step.alone = true;
  step.began = began;
  if (model_drafter_ == nullptr) commit(step);
  join_masks(step);
  enqueue(step);
  if (model_drafter_ != nullptr) commit(step);
  return true;
}

// Queues the sampling of a step, and behind it the first pass of the drafter.
void Engine::enqueue(Step& step) {
  sampler_->enqueue(step);
  if (model_drafter_ != nullptr && queues_drafts()) model_drafter_->start(step);
}

// Whether a drafter's passes and the step that checks their drafts are queued before the host knows their tokens.
bool Engine::queues_drafts() const {
  return options_.async_scheduling && sampler_->can_run_ahead();
}

// Whether the pages of sequences without drafts are committed before the step is read.
bool Engine::commits_early() const {
  return model_drafter_ == nullptr || queues_drafts();
}

// Whether steps may be in flight while the caller does something else.
bool Engine::runs_ahead() const {
  return options_.async_scheduling && sampler_->can_run_ahead() && !sampler_->has_tap() && num_needing_logits_ == 0;
}

// Whether the next step may be launched before the tokens of this one are known.
bool Engine::may_run_ahead() const {
  if (!runs_ahead()) return false;
  const double least = model_drafter_ != nullptr ? least_model_probability_ : least_probability_;
  return std::ranges::none_of(current_.shares, [&](const Share& share) {
    const Sequence* s = share.sequence;
    if (s == nullptr || share.drafts > 0) return s != nullptr;
    return drafting_ && (s->pace.ready(least) || (s->constraint_source && s->forced_pace.ready(least_probability_)));
  });
}

// Schedules the step and starts its forward pass; false when there is nothing to do. A step is launched ahead while the
// one before it is in flight.
bool Engine::launch(Step& step, bool ahead) {
  least_probability_ = draft_cost_.least_probability(scheduler_.num_running());
  least_model_probability_ = draft_cost_.least_probability(scheduler_.num_running(), model_draft_seconds_);
  drafting_seconds_ = 0;
  const std::vector<Share>& shares = schedule();
  if (shares.empty()) return false;
  step.clear();
  step.shares = shares;
  step.outputs.resize(shares.size());
  const model::StepBatch& batch = builder_.build(step);
  const bool unread = model_drafter_ != nullptr && model_drafter_->has_unread();
  if (!ahead && !unread) start_masks(step);
  {
    const trace::Span span("forward %lld tokens %zu seqs", static_cast<long long>(batch.num_tokens()), shares.size());
    model_->forward(batch, *pages_);
  }
  if (unread) {
    read_drafts(step);
    start_masks(step);
  }
  step.number = static_cast<uint64_t>(++steps_);
  step.num_tokens = batch.num_tokens();
  tokens_computed_ += batch.num_tokens();
  for (Share& share : step.shares) {
    share.begin = share.sequence->num_computed;
    share.sequence->num_computed += share.count;
    if (share.sequence->in_flight()) (void)share.sequence->pace.next(0);  // a step of the pause that has no drafts
  }
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (!step.rows[i].sample) continue;
    Sequence& sequence = *step.rows[i].sequence;
    step.waits_for_tokens |= sequence.in_flight() && sampling::looks_at_history(sequence.params);
    step.waits_for_tokens |= ahead && sequence.constraint_source != nullptr;
    sequence.row_in_flight = static_cast<int32_t>(i);
    sequence.step_in_flight = step.number;
    sequence.ends_in_flight = reaches_end(sequence, step.rows[i].position + 2);
  }
  return true;
}

// Reads the drafts that were sampled when the step was queued. The row of one that is no token, or that would end the
// answer, is not used (see cut_drafts).
void Engine::read_drafts(Step& step) {
  model_drafter_->read_last();
  note_drafting();
  for (LogitRow& row : step.rows) {
    Share& share = step.shares[row.share];
    Sequence& sequence = *share.sequence;
    if (sequence.draft_row < 0 || row.position + 1 != sequence.num_computed + share.count) continue;
    sequence.draft_row = -1;
    row.draft = sequence.drafts.back();
    cut_drafts(sequence);
    if (std::ssize(sequence.drafts) == share.drafts) continue;
    row.sequence = nullptr;
    row.sample = false;
    share.dropped = 1;
  }
}

// Lets the workers fill the masks of the rows whose sequences have constraints.
// REQUIRES: the tokens of these sequences are known.
void Engine::start_masks(Step& step) {
  step.masks.clear();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const LogitRow& row = step.rows[i];
    if (row.sequence == nullptr || !row.sample || row.sequence->constraint_source == nullptr) continue;
    step.masks.push_back({.row = i});
  }
  const size_t words = (static_cast<size_t>(model_->config().vocab_size) + 31) / 32;
  step.mask_bits.resize(step.masks.size() * words);
  for (size_t m = 0; m < step.masks.size(); ++m) {
    step.masks[m].bits = std::span(step.mask_bits).subspan(m * words, words);
  }
  mask_workers_.start(step.masks.size(), [&step](size_t m) {
    if (step.rows[step.masks[m].row].draft >= 0) return;  // filled with that of the sequence's first row
    size_t end = m + 1;
    while (end < step.masks.size() && step.rows[step.masks[end].row].draft >= 0) ++end;
    fill_masks(std::span(step.masks).subspan(m, end - m), step.rows);
  });
}

// Waits for the masks. A sequence whose constraint failed ends with the error. An error after a draft counts only if
// the draft is accepted: see RowSampler.
void Engine::join_masks(Step& step) {
  if (step.masks.empty()) return;
  const trace::Span span("wait for %zu masks", step.masks.size());
  mask_workers_.wait();
  for (const RowMask& mask : step.masks) {
    const LogitRow& row = step.rows[mask.row];
    if (mask.filled.ok() || row.draft >= 0) continue;
    fail(mask.filled.error(), step.outputs[row.share]);
  }
}

// Tells the KV manager which positions the step has written to pages; work that is queued later may read them.
// Which drafts are part of a sequence is known only when the step is read. What a drafter writes there must be queued.
// REQUIRES: the tokens at these positions are known.
void Engine::commit(const Step& step) {
  if (!commits_early()) return;  // see finish()
  if (model_drafter_ != nullptr) model_drafter_->catch_up(step.shares);
  for (const Share& share : step.shares) {
    if (share.sequence == nullptr || share.drafts > 0) continue;
    kv_.commit(share.sequence->table, share.sequence->tokens, share.sequence->num_computed);
  }
}

// Waits for the step's tokens, appends them to their sequences and returns the outputs.
std::vector<Output> Engine::finish(Step& step) {
  sampler_->read(step);
  read_pooled(step);
  for (const LogitRow& row : step.rows) {
    if (row.sequence == nullptr || !row.sample) continue;
    Sequence& sequence = *row.sequence;
    if (sequence.step_in_flight == step.number) {
      sequence.row_in_flight = -1;
      sequence.ends_in_flight = false;
    }
    if (row.token < 0) continue;
    accept(sequence, row.token, step.outputs[row.share]);
    if (sequence.params.row_digests != sampling::RowDigests::kNone)
      step.outputs[row.share].row_digests.push_back(row.digest);
    scheduler_.note_token(sequence);
  }
  for (size_t s = 0; s < step.shares.size(); ++s) {
    if (step.shares[s].sequence != nullptr && step.shares[s].drafts > 0) settle_drafts(step.shares[s], step.outputs[s]);
  }
  if (model_drafter_ != nullptr) model_drafter_->follow(step);
  for (const Share& share : step.shares) {
    if (share.sequence == nullptr || (share.drafts == 0 && commits_early())) continue;
    kv_.commit(share.sequence->table, share.sequence->tokens, share.sequence->num_computed);
    if (share.drafts > 0) kv_.trim(share.sequence->table, share.sequence->num_tokens());
  }
  return collect_outputs(step);
}

// Takes the hidden states of sequences that pool. A mean is a sum by position, so it does not depend on the chunks.
void Engine::read_pooled(Step& step) {
  const auto width = static_cast<size_t>(model_->config().hidden);
  int64_t total = 0;
  for (const PooledRows& rows : step.pooled) total += rows.count;
  std::span<const float> hidden;
  if (total > 0) hidden = model_->hidden(0, total);
  for (const PooledRows& rows : step.pooled) {
    const std::span<const float> mine = hidden.first(static_cast<size_t>(rows.count) * width);
    hidden = hidden.subspan(mine.size());
    const Share& share = step.shares[rows.share];
    if (share.sequence == nullptr) continue;
    Sequence& sequence = *share.sequence;
    const bool first = sequence.num_computed == share.count;  // also after a preemption
    if (first) sequence.pooled.clear();
    if (model::gathers(sequence.pool)) {
      model::gather(sequence.pool, sequence.num_computed - share.count, mine, width, sequence.pooled);
    } else {
      sequence.pooled.insert(sequence.pooled.end(), mine.begin(), mine.end());
    }
    if (sequence.num_computed < sequence.num_tokens()) continue;
    Output& output = step.outputs[rows.share];
    if (model::gathers(sequence.pool)) {
      model::finish_gathering(sequence.pool, sequence.num_tokens(), sequence.pooled);
    }
    output.finish = FinishReason::kStop;
    output.pooled = std::move(sequence.pooled);
    const bool finite = std::ranges::all_of(output.pooled, [](float value) { return std::isfinite(value); });
    if (!finite) fail({ErrorCode::kInternal, "the hidden states are not finite numbers"}, output);
  }
}

// Sets the sequence's drafts for the next step. None of them ends the answer, and there is room for one more token, so
// a row after a draft is never one after the end.
void Engine::draft(Sequence& sequence, int64_t most) {
  sequence.drafts.clear();
  const int64_t max_len = options_.scheduler.max_model_len;
  const int64_t longest = std::min(max_len, sequence.prompt_size + sequence.params.max_tokens.value_or(max_len));
  most = std::min({most, options_.speculation.num_tokens, longest - sequence.num_tokens() - 1});
  if (!drafting_ || most <= 0 || draft_forced(sequence, most)) return;
  if (model_drafter_ != nullptr) most = std::min(most, model_drafter_->max_length() - sequence.num_tokens());
  if (most <= 0 || (model_drafter_ != nullptr && current_.active())) return;  // its passes would come between two steps
  most = sequence.pace.next(most, model_drafter_ != nullptr ? least_model_probability_ : least_probability_);
  if (most == 0) return;
  if (model_drafter_ != nullptr) return sequence.drafts.assign(static_cast<size_t>(most), -1);  // made later, together
  if (sequence.proposer == nullptr) sequence.proposer = make_proposer_(sequence);
  std::vector<int32_t>& drafts = sequence.drafts;
  sequence.proposer->propose(sequence.tokens, most, drafts);
  QUIRE_CHECK(static_cast<int64_t>(drafts.size()) <= most);
  cut_drafts(sequence);
}

// The same from the sequence's constraint; false if it forces nothing. An error of the constraint is for the filling of
// its mask, which meets it again.
bool Engine::draft_forced(Sequence& sequence, int64_t most) {
  sequence.drafts_forced = false;
  if (sequence.constraint_source == nullptr) return false;
  most = sequence.forced_pace.next(most, least_probability_);
  if (most == 0 || !show_tokens(sequence).ok()) return false;
  sequence.constraint->forced(most, sequence.drafts);
  QUIRE_CHECK(static_cast<int64_t>(sequence.drafts.size()) <= most);
  cut_drafts(sequence);
  sequence.drafts_forced = !sequence.drafts.empty();
  return sequence.drafts_forced;
}

// Drops the drafts from the first on that is no token or would end the answer. One that is not known yet stays.
void Engine::cut_drafts(Sequence& sequence) const {
  std::vector<int32_t>& drafts = sequence.drafts;
  if (sequence.draft_row >= 0 && drafts.back() >= 0) sequence.draft_row = -1;  // it was replaced
  const auto known = drafts.end() - (sequence.draft_row >= 0 ? 1 : 0);
  const auto end = std::find_if(drafts.begin(), known, [&](int32_t token) {
    return token < 0 || token >= model_->config().vocab_size || ends_answer(sequence.params, token);
  });
  if (end == known) return;
  drafts.erase(end, drafts.end());
  sequence.draft_row = -1;
}

// Takes back what the step has computed of a sequence's rejected drafts, and counts the accepted ones.
void Engine::settle_drafts(const Share& share, const Output& output) {
  Sequence& sequence = *share.sequence;
  sequence.num_computed = sequence.num_tokens() - 1;
  const int64_t accepted = std::max<int64_t>(1, static_cast<int64_t>(output.tokens.size())) - 1;
  const int64_t drafts = share.drafts - share.dropped;
  if (drafts == 0) return;
  (sequence.drafts_forced ? sequence.forced_pace : sequence.pace).note(drafts, accepted);
  if (!sequence.drafts_forced) {
    constexpr double kWeight = 0.02;
    right_ += kWeight * ((accepted > 0 ? 1 : 0) - right_);
  }
  ++speculation_.drafts;
  speculation_.draft_tokens += drafts;
  speculation_.accepted_tokens += accepted;
  for (int64_t i = 0; i < accepted; ++i) ++speculation_.accepted_per_position[static_cast<size_t>(i)];
}

// The outputs of the sequences that had rows in the step, without those of forgotten ones. Finished sequences are
// dropped.
std::vector<Output> Engine::collect_outputs(Step& step) {
  // Besides the tokens in each output this is all that a step allocates: it is the caller's.
  std::vector<Output> outputs = std::move(step.outputs);
  size_t kept = 0;
  size_t row = 0;
  for (size_t s = 0; s < step.shares.size(); ++s) {
    const bool pooled = outputs[s].finish != FinishReason::kNone;
    if (!pooled && (row == step.rows.size() || step.rows[row].share != s)) continue;
    while (row < step.rows.size() && step.rows[row].share == s) ++row;
    if (step.shares[s].sequence == nullptr) continue;
    Sequence& sequence = *step.shares[s].sequence;
    if (kept != s) outputs[kept] = std::move(outputs[s]);
    Output& output = outputs[kept++];
    output.id = sequence.id;
    output.child = sequence.child;
    output.cached_tokens = sequence.cached_tokens;
    output.restored_tokens = sequence.restored_tokens;
    output.restored_from_disk = sequence.restored_from_disk;
    output.num_preemptions = sequence.num_preemptions;
    output.seed = sequence.seed;
    output.scheduled = sequence.scheduled;
    if (output.finish != FinishReason::kNone) drop(&sequence);
  }
  outputs.resize(kept);
  return outputs;
}

EngineStats Engine::stats() const {
  return {.steps = steps_,
          .tokens_computed = tokens_computed_,
          .preemptions = scheduler_.num_preemptions(),
          .running = scheduler_.num_running(),
          .waiting = scheduler_.num_waiting(),
          .waiting_tokens = scheduler_.num_waiting_tokens(),
          .added = static_cast<int64_t>(next_arrival_),
          .added_tokens = added_tokens_,
          .kv_usage = kv_.usage(),
          .prefix = kv_.prefix_stats(),
          .speculation = speculation_,
          .running_adapters = scheduler_.running_adapters(),
          .waiting_adapters = scheduler_.waiting_adapters()};
}

}  // namespace quire::engine
