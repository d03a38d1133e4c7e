// SPDX-License-Identifier: Apache-2.0
// The two samplers: on the host, and in the memory of a backend that samples.
#include "engine/row_sampler.h"

#include <algorithm>
#include <string>

#include "base/digest.h"
#include "base/trace.h"
#include "sampling/device_rows.h"
#include "sampling/sampler.h"

namespace quire::engine {

using sampling::RowDigests;

void fail(const Error& error, Output& output) {
  output.finish = FinishReason::kError;
  output.error = error;
}

namespace {

// Whether the backend cannot make the logprobs of the row's sampled token.
bool wants_host_logprobs(const sampling::SamplingParams& params) {
  return params.logprobs && !sampling::has_device_logprobs(params);
}

// RowDigests::kFirst.
uint64_t digest_row(std::span<const float> logits) {
  return digest_of(std::as_bytes(logits)).low;
}
bool wants_digest(const LogitRow& row, RowDigests version) {
  return row.sequence != nullptr && row.sample && !row.guess && row.sequence->params.row_digests == version;
}

// Calls f(first row, count) for slices of the rows that fit into one run of the head.
template <typename F>
void for_each_slice(int64_t rows, int64_t max_logit_rows, F&& f) {
  for (int64_t begin = 0; begin < rows; begin += max_logit_rows) f(begin, std::min(max_logit_rows, rows - begin));
}

bool add_prompt_logprob(const LogitRow& row, std::span<const float> logits, sampling::Scratch& scratch,
                        Output& output) {
  Sequence& sequence = *row.sequence;
  const int32_t next = sequence.tokens[static_cast<size_t>(row.position + 1)];
  auto logprobs = sampling::row_logprobs(logits, next, *sequence.params.prompt_logprobs, scratch);
  if (!logprobs.ok()) {
    fail(logprobs.error(), output);
    return false;
  }
  output.prompt_logprobs.push_back(std::move(*logprobs));
  sequence.prompt_logprobs_sent = row.position + 1;
  return true;
}

// The history of a sequence while its rows are sampled in order: the drafts before a row are part of it, until the rows
// of another sequence begin.
class DraftHistory {
 public:
  DraftHistory() = default;
  ~DraftHistory() { restore(); }
  DraftHistory(const DraftHistory&) = delete;
  DraftHistory& operator=(const DraftHistory&) = delete;

  // Must be called for each row of the step, forgotten ones too.
  void enter(const LogitRow& row) {
    if (row.draft < 0 || row.sequence == nullptr) return restore();
    history_ = &row.sequence->history;
    history_->push_output(row.draft);
    ++pushed_;
  }

 private:
  void restore() {
    for (; pushed_ > 0; --pushed_) history_->pop_output();
  }

  sampling::History* history_ = nullptr;
  int64_t pushed_ = 0;
};

// Samples when the results are read: the head runs and returns its logits in the same call.
class HostRowSampler final : public RowSampler {
 public:
  HostRowSampler(Backend& backend, model::Model& model, int64_t max_logit_rows)
      : backend_(backend), model_(model), max_logit_rows_(max_logit_rows) {}

  bool can_run_ahead() const override { return false; }
  void enqueue(Step&) override {}
  void read(Step& step) override {
    const trace::Span span("logits and sampling %zu rows", step.rows.size());
    const size_t vocab = static_cast<size_t>(model_.config().vocab_size);
    DraftHistory drafts;
    for_each_slice(static_cast<int64_t>(step.rows.size()), max_logit_rows_, [&](int64_t begin, int64_t count) {
      const std::span<const float> logits = model_.logits(begin, count);
      digest_rows(step, begin, count, logits);
      for (int64_t i = 0; i < count; ++i) {
        const auto index = static_cast<size_t>(begin + i);
        drafts.enter(step.rows[index]);
        read_row(step, index, logits.subspan(static_cast<size_t>(i) * vocab, vocab));
      }
    });
  }

 private:
  void digest_rows(Step& step, int64_t begin, int64_t count, std::span<const float> logits) {
    wanted_.clear();
    const std::span<LogitRow> rows = std::span(step.rows).subspan(static_cast<size_t>(begin));
    for (int64_t i = 0; i < count; ++i) {
      if (wants_digest(rows[static_cast<size_t>(i)], RowDigests::kSecond)) wanted_.push_back(static_cast<int32_t>(i));
    }
    if (wanted_.empty()) return;
    digests_.resize(wanted_.size());
    const int64_t vocab = model_.config().vocab_size;
    backend_.digest_rows({{const_cast<float*>(logits.data()), DType::kF32, count, vocab, vocab}, wanted_, digests_});
    for (size_t i = 0; i < wanted_.size(); ++i) rows[static_cast<size_t>(wanted_[i])].digest = digests_[i];
  }

  void read_row(Step& step, size_t index, std::span<const float> logits) {
    LogitRow& row = step.rows[index];
    if (row.sequence == nullptr) return;
    const Sequence& sequence = *row.sequence;
    Output& output = step.outputs[row.share];
    if (output.finish != FinishReason::kNone || !step.counts(index)) return;
    if (const Error* error = step.mask_error(index)) return fail(*error, output);
    if (tap_) tap_(sequence.id, sequence.child, row.position, logits);
    if (row.prompt_logprob && !add_prompt_logprob(row, logits, scratch_, output)) return;
    if (!row.sample) return;
    if (wants_digest(row, RowDigests::kFirst)) row.digest = digest_row(logits);
    auto sampled = sampling::sample_row(logits, sequence.params, sequence.history, sequence.seed, row.position + 1,
                                        scratch_, step.mask_of(index));
    if (!sampled.ok()) return fail(sampled.error(), output);
    if (sequence.params.logprobs && !row.guess) output.logprobs.push_back(std::move(sampled->logprobs));
    row.token = sampled->token;
  }

  Backend& backend_;
  model::Model& model_;
  const int64_t max_logit_rows_;
  sampling::Scratch scratch_;
  std::vector<int32_t> wanted_;  // rows of a slice that are digested
  std::vector<uint64_t> digests_;
};

// Queues head and sampling, and reads the tokens back while the next step runs.
class DeviceRowSampler final : public RowSampler {
 public:
  DeviceRowSampler(Backend& backend, model::Model& model, int64_t max_logit_rows)
      : backend_(backend), model_(model), max_logit_rows_(max_logit_rows) {}

  bool can_run_ahead() const override { return true; }
  void enqueue(Step& step) override;
  void read(Step& step) override;

 private:
  void read_logits(Step& step, int64_t begin, const Tensor& logits);
  void read_row(Step& step, size_t index, const SampledRow& sampled, std::span<const SampledTop> top);

  Backend& backend_;
  model::Model& model_;
  const int64_t max_logit_rows_;
  sampling::DeviceRows device_rows_;
  sampling::Scratch scratch_;
};

void DeviceRowSampler::enqueue(Step& step) {
  const trace::Span span("logits and sampling %zu rows", step.rows.size());
  const auto total = static_cast<int64_t>(step.rows.size());
  const int64_t vocab = model_.config().vocab_size;
  step.kept.resize(step.rows.size());
  DraftHistory drafts;
  for_each_slice(total, max_logit_rows_, [&](int64_t begin, int64_t count) {
    const Tensor logits = model_.run_head(begin, count);
    read_logits(step, begin, logits);
    device_rows_.clear();
    for (int64_t i = begin; i < begin + count; ++i) {
      const auto index = static_cast<size_t>(i);
      const LogitRow& row = step.rows[index];
      drafts.enter(row);
      if (row.sequence == nullptr || !row.sample || step.outputs[row.share].finish != FinishReason::kNone) {
        device_rows_.add_unused();
        continue;
      }
      const Sequence& sequence = *row.sequence;
      device_rows_.add(sequence.params, sequence.history, row.position + 1 - sequence.prompt_size, sequence.seed,
                       row.position + 1, vocab, step.mask_of(index), wants_digest(row, RowDigests::kSecond));
    }
    backend_.sample({logits, device_rows_.rows(), device_rows_.edits(), device_rows_.masks(), begin});
  });
  if (total > 0) step.finished = backend_.finish_samples(total);
}

// Reads the logits that the host needs before sampling may change them. Whether a row after a draft counts is not known
// yet, so the tap sees it later.
void DeviceRowSampler::read_logits(Step& step, int64_t begin, const Tensor& logits) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    const auto index = static_cast<size_t>(begin + i);
    LogitRow& row = step.rows[index];
    if (row.sequence == nullptr || (row.guess && !tap_)) continue;
    const Sequence& sequence = *row.sequence;
    const bool keep = row.sample && !row.guess && (wants_host_logprobs(sequence.params) || (tap_ && row.draft >= 0));
    const bool digest = wants_digest(row, RowDigests::kFirst);
    if (!tap_ && !row.prompt_logprob && !keep && !digest) continue;
    const std::span<const float> values = backend_.read(logits.some_rows(i, 1));
    Output& output = step.outputs[row.share];
    if (output.finish != FinishReason::kNone) continue;
    if (tap_ && row.draft < 0) tap_(sequence.id, sequence.child, row.position, values);
    if (row.prompt_logprob) add_prompt_logprob(row, values, scratch_, output);
    if (digest) row.digest = digest_row(values);
    if (keep) step.kept[index].assign(values.begin(), values.end());
  }
}

void DeviceRowSampler::read(Step& step) {
  const trace::Span span("read %zu rows", step.rows.size());
  if (step.rows.empty()) return;
  const SampledRows results = backend_.sampled(step.finished);
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (step.rows[i].sequence == nullptr || !step.rows[i].sample) continue;
    const auto top =
        results.top.empty() ? results.top : results.top.subspan(i * kMaxSampleLogprobs, kMaxSampleLogprobs);
    if (!results.digests.empty() && wants_digest(step.rows[i], RowDigests::kSecond)) {
      step.rows[i].digest = results.digests[i];
    }
    read_row(step, i, results.rows[i], top);
  }
}

void DeviceRowSampler::read_row(Step& step, size_t index, const SampledRow& sampled, std::span<const SampledTop> top) {
  LogitRow& row = step.rows[index];
  const Sequence& sequence = *row.sequence;
  Output& output = step.outputs[row.share];
  if (output.finish != FinishReason::kNone || !step.counts(index)) return;
  if (const Error* error = step.mask_error(index)) return fail(*error, output);
  if (tap_ && row.draft >= 0) tap_(sequence.id, sequence.child, row.position, step.kept[index]);
  if (sampled.faults != 0) return fail(sampling::broken_row(sampled.faults), output);
  if (row.guess) {
    row.token = sampled.token;
    return;
  }
  if (sampling::has_device_logprobs(sequence.params)) {
    std::vector<sampling::TokenLogprob>& list = output.logprobs.emplace_back();
    const auto count = static_cast<size_t>(*sequence.params.logprobs);
    list.reserve(count + 1);
    list.push_back({sampled.token, sampled.logprob, sampled.rank});
    for (size_t n = 0; n < count && top[n].token >= 0; ++n) {
      list.push_back({top[n].token, top[n].logprob, static_cast<int32_t>(n + 1)});
    }
  } else if (sequence.params.logprobs) {
    sampling::apply_mask(step.kept[index], step.mask_of(index));
    auto list = sampling::row_logprobs(step.kept[index], sampled.token, *sequence.params.logprobs, scratch_);
    if (!list.ok()) return fail(list.error(), output);
    output.logprobs.push_back(std::move(*list));
  }
  row.token = sampled.token;
}

}  // namespace

std::unique_ptr<RowSampler> make_row_sampler(Backend& backend, model::Model& model, int64_t max_logit_rows) {
  if (backend.samples()) return std::make_unique<DeviceRowSampler>(backend, model, max_logit_rows);
  return std::make_unique<HostRowSampler>(backend, model, max_logit_rows);
}

bool needs_host_logits(const sampling::SamplingParams& params) {
  return params.prompt_logprobs || wants_host_logprobs(params) || params.row_digests == RowDigests::kFirst;
}

}  // namespace quire::engine
