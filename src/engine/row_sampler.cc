// SPDX-License-Identifier: Apache-2.0
// Steps on a backend that samples: while one runs, the next is scheduled, built and queued.
//
// A step N + 1 that is made before N's tokens are known takes them from where N puts them
// (StepBatch::sampled_from_row). Then N is read: its tokens are accepted, and what ended is dropped, with its row of N
// + 1. Only after that N + 1 is committed, so the prefix cache sees accepted tokens alone. Settings that look at the
// sequence's tokens (penalties, bad words) wait with N + 1's sampling until N is read; its forward pass is under way
// meanwhile. Where the host wants logits (prompt logprobs, more logprobs than a backend gives, a tap) no step is made
// ahead.
#include <algorithm>

#include "base/trace.h"
#include "engine/engine.h"

namespace quire::engine {

bool Engine::wants_logits(const sampling::SamplingParams& params) {
  return params.prompt_logprobs || (params.logprobs && !sampling::has_device_logprobs(params));
}

std::vector<Output> Engine::step_on_device() {
  if (current_.active() && !current_.alive()) current_.clear();  // all that it was for has ended
  if (!current_.active()) {
    if (!begin(current_)) return {};
    commit(current_.shares);
    sample(current_);
  }
  const bool ahead = options_.async_scheduling && !tap_ && num_wanting_logits_ == 0;
  const bool begun = ahead && begin(next_);
  const bool sampled = begun && !next_.waits_for_tokens;
  if (sampled) sample(next_);
  std::vector<Output> outputs = read(current_);
  current_.clear();
  if (!begun) return outputs;
  commit(next_.shares);
  if (!sampled && next_.alive()) sample(next_);
  std::swap(current_, next_);
  return outputs;
}

// Schedules the step, and queues its forward pass; false when there is nothing to do.
bool Engine::begin(InFlight& step) {
  const std::vector<Share>& shares = schedule();
  if (shares.empty()) return false;
  step.clear();
  step.number = ++last_number_;
  step.shares = shares;
  build(step.shares, step.rows);
  step.outputs.resize(shares.size());
  {
    const trace::Span span("forward %lld tokens %zu seqs", static_cast<long long>(batch_.num_tokens()), shares.size());
    model_->forward(batch_, *pages_);
  }
  ++steps_;
  tokens_computed_ += batch_.num_tokens();
  for (const Share& share : step.shares) share.sequence->num_computed += share.count;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (!step.rows[i].sample) continue;
    Sequence& sequence = *step.rows[i].sequence;
    step.waits_for_tokens |= sequence.in_flight() && sampling::looks_at_history(sequence.params);
    sequence.row_in_flight = static_cast<int32_t>(i);
    sequence.step_in_flight = step.number;
    const int64_t length = step.rows[i].position + 2;  // once the token is there
    const auto& most = sequence.params.max_tokens;
    sequence.ends_in_flight =
        length >= options_.scheduler.max_model_len || (most && length - sequence.prompt_size >= *most);
  }
  return true;
}

// The step's positions are in the pages, for all that is queued later; their tokens must be known.
void Engine::commit(const std::vector<Share>& shares) {
  for (const Share& share : shares) {
    if (share.sequence == nullptr) continue;
    kv_.commit(share.sequence->table, share.sequence->tokens, share.sequence->num_computed);
  }
}

// Queues head and sampling of the step's rows.
void Engine::sample(InFlight& step) {
  const trace::Span span("logits and sampling %zu rows", step.rows.size());
  const int64_t total = static_cast<int64_t>(step.rows.size());
  const int64_t vocab = model_->config().vocab_size;
  step.kept.resize(step.rows.size());
  for (int64_t begin = 0; begin < total; begin += options_.max_logit_rows) {
    const int64_t count = std::min(options_.max_logit_rows, total - begin);
    const Tensor logits = model_->run_head(begin, count);
    if (tap_ || num_wanting_logits_ > 0) keep_rows(step, begin, logits);
    device_rows_.clear();
    for (int64_t i = begin; i < begin + count; ++i) {
      const Row& row = step.rows[static_cast<size_t>(i)];
      if (row.sequence == nullptr || !row.sample) {
        device_rows_.add_unused();
        continue;
      }
      const Sequence& sequence = *row.sequence;
      device_rows_.add(sequence.params, sequence.history, row.position + 1 - sequence.prompt_size, sequence.seed,
                       row.position + 1, vocab);
    }
    backend_->sample({logits, device_rows_.rows(), device_rows_.edits(), device_rows_.masks(), begin});
  }
  if (total > 0) step.finished = backend_->finish_samples(total);
}

// What the host makes of logits themselves, while they are there.
void Engine::keep_rows(InFlight& step, int64_t begin, const Tensor& logits) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    const auto place = static_cast<size_t>(begin + i);
    const Row& row = step.rows[place];
    if (row.sequence == nullptr) continue;
    const Sequence& sequence = *row.sequence;
    const bool list = row.sample && sequence.params.logprobs && !sampling::has_device_logprobs(sequence.params);
    if (!tap_ && !row.prompt_logprob && !list) continue;
    const std::span<const float> values = backend_->read(logits.some_rows(i, 1));
    Output& output = step.outputs[row.share];
    if (output.finish != FinishReason::kNone) continue;
    if (tap_) tap_(sequence.id, sequence.child, row.position, values);
    if (row.prompt_logprob) read_prompt_logprob(row, values, output);
    if (list) step.kept[place].assign(values.begin(), values.end());
  }
}

void Engine::read_sampled(InFlight& step, size_t place, const SampledRow& sampled, std::span<const SampledTop> top) {
  const Row& row = step.rows[place];
  Sequence& sequence = *row.sequence;
  Output& output = step.outputs[row.share];
  if (sequence.step_in_flight == step.number) {
    sequence.row_in_flight = -1;
    sequence.ends_in_flight = false;
  }
  if (output.finish != FinishReason::kNone) return;
  if (sampled.faults != 0) return fail(sequence, sampling::broken_row(sampled.faults), output);
  if (sampling::has_device_logprobs(sequence.params)) {
    std::vector<sampling::TokenLogprob>& list = output.logprobs.emplace_back();
    const auto count = static_cast<size_t>(*sequence.params.logprobs);
    list.reserve(count + 1);
    list.push_back({sampled.token, sampled.logprob, sampled.rank});
    for (size_t n = 0; n < count && top[n].token >= 0; ++n) {
      list.push_back({top[n].token, top[n].logprob, static_cast<int32_t>(n + 1)});
    }
  } else if (sequence.params.logprobs) {
    auto list = sampling::row_logprobs(step.kept[place], sampled.token, *sequence.params.logprobs, scratch_);
    if (!list.ok()) return fail(sequence, list.error(), output);
    output.logprobs.push_back(std::move(*list));
  }
  accept(sequence, sampled.token, output);
  scheduler_.note_token(sequence);
}

// Waits for the step's tokens and says what they bring.
std::vector<Output> Engine::read(InFlight& step) {
  const trace::Span span("read %zu rows", step.rows.size());
  if (!step.rows.empty()) {
    const SampledRows results = backend_->sampled(step.finished);
    for (size_t i = 0; i < step.rows.size(); ++i) {
      if (step.rows[i].sequence == nullptr || !step.rows[i].sample) continue;
      const auto top =
          results.top.empty() ? results.top : results.top.subspan(i * kMaxSampleLogprobs, kMaxSampleLogprobs);
      read_sampled(step, i, results.rows[i], top);
    }
  }
  std::vector<Output> outputs = std::move(step.outputs);
  hand_out(step.shares, step.rows, outputs);
  return outputs;
}

}  // namespace quire::engine
