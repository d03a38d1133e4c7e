// SPDX-License-Identifier: Apache-2.0
// Batches of a drafter's model: what sequences lack, then one token per sequence and pass.
#include "engine/model_drafter.h"

#include <algorithm>

#include "base/trace.h"
#include "kv/cache_groups.h"
#include "sampling/device_rows.h"

namespace quire::engine {

ModelDrafter::ModelDrafter(Parts parts)
    : max_tokens_(parts.limits.max_tokens),
      max_length_(parts.max_length),
      page_size_(kv::main_block_size(parts.pages->layout())),
      kv_(parts.kv),
      backend_(parts.backend),
      model_(parts.model),
      pages_(std::move(parts.pages)),
      sampler_(make_row_sampler(parts.backend, parts.model, parts.limits.max_logit_rows)) {
  for (const kv::CacheLayout::Layer& layer : pages_->layout().layers) {
    if (layer.group < 0) continue;
    const auto group = static_cast<size_t>(layer.group);
    QUIRE_CHECK(kv_.groups()[group].kind != kv::CacheKind::kState, "a draft model has no recurrent layers");
    if (std::ranges::find(groups_, group) != groups_.end()) continue;
    groups_.push_back(group);
    if (kv_.groups()[group].kind == kv::CacheKind::kWindow) offsets_.push_back(kv_.groups()[group].window - 1);
  }
}

void ModelDrafter::begin_batch() {
  batch_.clear();
  batch_.cu_seqlens_q.push_back(0);
  batch_.groups.resize(kv_.groups().size());
  step_.clear();
}

void ModelDrafter::add_row(Sequence& sequence, int64_t position, int32_t token) {
  if (step_.shares.empty() || step_.shares.back().sequence != &sequence) {
    step_.shares.push_back({&sequence, 0});
    batch_.cu_seqlens_q.push_back(0);
    batch_.context_lens.push_back(0);
  }
  ++step_.shares.back().count;
  batch_.tokens.push_back(token);
  batch_.positions.push_back(static_cast<int32_t>(position));
  batch_.cu_seqlens_q.back() = static_cast<int32_t>(batch_.num_tokens());
  batch_.context_lens.back() = static_cast<int32_t>(position + 1);
  for (const size_t g : groups_) {
    std::vector<int64_t>& slots = batch_.groups[g].slot_mapping;
    slots.emplace_back();
    kv_.slot_mapping(sequence.table, g, position, std::span(slots).last(1));
  }
}

void ModelDrafter::want(Sequence& sequence, int64_t position) {
  batch_.wanted.push_back(static_cast<int32_t>(batch_.num_tokens() - 1));
  LogitRow& row = step_.rows.emplace_back();
  row.sequence = &sequence;
  row.share = step_.shares.size() - 1;
  row.position = position - 1;
  row.sample = row.guess = true;
}

size_t ModelDrafter::num_sampled(const Step& step, size_t share, size_t& first) {
  const std::vector<LogitRow>& rows = step.rows;
  while (first < rows.size() && (rows[first].share < share || (rows[first].share == share && !rows[first].sample))) {
    ++first;
  }
  size_t end = first;
  while (end < rows.size() && rows[end].share == share && rows[end].sequence != nullptr && rows[end].sample) ++end;
  return end - first;
}

void ModelDrafter::add_sampled(const Step& step, size_t first, size_t count, int64_t position, int64_t wanted) {
  for (size_t i = 0; i < count; ++i) {
    const LogitRow& row = step.rows[first + i];
    batch_.sampled_from_row.resize(batch_.tokens.size(), -1);
    batch_.drafts.resize(batch_.tokens.size(), -1);
    add_row(*row.sequence, position + static_cast<int64_t>(i), 0);
    batch_.sampled_from_row.push_back(static_cast<int32_t>(first + i));
    batch_.drafts.push_back(i == 0 ? -1 : row.draft);
    if (i == 0) want(*row.sequence, wanted);
  }
}

bool ModelDrafter::settle_start(const Step& step) {
  if (step.number > started_) return false;
  if (step.number < started_) return true;  // a later one was started as well
  for (size_t i = 0; i < step_.rows.size(); ++i) {
    LogitRow& row = step_.rows[i];
    if (row.sequence == nullptr) continue;
    const int64_t accepted = row.sequence->num_tokens() - 1 - row.position;
    const int64_t at = batch_.wanted[i] + accepted;
    if (accepted < 0 || at >= batch_.cu_seqlens_q[row.share + 1]) {  // it failed, or is too long
      row.sequence = nullptr;
      continue;
    }
    batch_.wanted[i] = static_cast<int32_t>(at);
    row.position += accepted;
  }
  return true;
}

void ModelDrafter::add_pages() {
  for (const size_t g : groups_) {
    model::GroupBatch& group = batch_.groups[g];
    size_t most = 0;
    for (const Share& share : step_.shares) most = std::max(most, share.sequence->table.blocks(g).size());
    group.max_blocks =
        static_cast<int32_t>(backend_.table_width(static_cast<int64_t>(most), kv_.groups()[g].block_size));
    for (size_t s = 0; s < step_.shares.size(); ++s) {
      const auto blocks = step_.shares[s].sequence->table.blocks(g);
      group.block_tables.insert(group.block_tables.end(), blocks.begin(), blocks.end());
      group.block_tables.resize((s + 1) * static_cast<size_t>(group.max_blocks), 0);
    }
  }
}

void ModelDrafter::run_batch() {
  if (batch_.num_tokens() == 0) return;
  add_pages();
  if (!batch_.sampled_from_row.empty()) batch_.sampled_from_row.resize(batch_.tokens.size(), -1);
  if (std::ranges::all_of(batch_.drafts, [](int32_t draft) { return draft < 0; })) batch_.drafts.clear();
  if (!batch_.drafts.empty()) batch_.drafts.resize(batch_.tokens.size(), -1);
  model_.forward(batch_, *pages_);
}

void ModelDrafter::enqueue_samples() {
  step_.outputs.assign(step_.shares.size(), {});
  sampler_->enqueue(step_);
}

// What follows a token that could not be sampled is no draft.
void ModelDrafter::read_samples(Step& step) {
  sampler_->read(step);
  for (LogitRow& row : step.rows) {
    if (row.sequence == nullptr) continue;
    Sequence& sequence = *row.sequence;
    if (row.position + 1 != sequence.num_tokens() + std::ssize(sequence.drafts)) row.token = -1;
    if (row.token < 0) continue;
    sequence.drafts.push_back(row.token);
    sequence.history.push_output(row.token);
  }
}

void ModelDrafter::sample() {
  if (step_.rows.empty()) return;
  enqueue_samples();
  read_samples(step_);
}

void ModelDrafter::sample_on(std::vector<int64_t> left, bool unread) {
  std::vector<Sequence*> drafted;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i] == 0) step_.rows[i].sequence = nullptr;
    if (left[i] > 0) drafted.push_back(step_.rows[i].sequence);
  }
  if (drafted.empty()) return;
  const bool queued = sampler_->can_run_ahead() && !sampler_->has_tap();
  unread_ = queued && unread;
  enqueue_samples();
  while (pass_on(left, queued, unread_)) {
  }
  for (Sequence* sequence : drafted) end_drafts(*sequence);
  if (!unread_) return;
  for (size_t i = 0; i < last_.rows.size(); ++i) {
    Sequence* sequence = last_.rows[i].sequence;
    if (sequence == nullptr || last_.rows[i].position + 1 != sequence->num_tokens() + std::ssize(sequence->drafts)) {
      continue;
    }
    sequence->drafts.push_back(-1);
    sequence->draft_row = static_cast<int32_t>(i);
  }
}

void ModelDrafter::read_last() {
  if (!std::exchange(unread_, false)) return;
  sampler_->read(last_);
  for (size_t i = 0; i < last_.rows.size(); ++i) {
    Sequence* sequence = last_.rows[i].sequence;
    if (sequence != nullptr && sequence->draft_row == static_cast<int32_t>(i)) {
      sequence->drafts.back() = last_.rows[i].token;
    }
  }
}

bool ModelDrafter::left_of_shares(std::span<const Share> shares, std::vector<int64_t>& left) const {
  bool all = true;
  left.assign(step_.rows.size(), 0);
  for (const Share& share : shares) {
    if (!wants_drafts(share)) continue;
    const auto row = std::ranges::find(step_.rows, share.sequence, &LogitRow::sequence);
    if (row == step_.rows.end() || row->position + 1 != share.sequence->num_tokens()) {
      all = false;
    } else {
      left[static_cast<size_t>(row - step_.rows.begin())] = share.drafts;
    }
  }
  return all;
}

// One more pass, if any row is wanted of it, and its samples; the tokens of the pass before it are read.
bool ModelDrafter::pass_on(std::vector<int64_t>& left, bool queued, bool unread) {
  if (!queued) read_samples(step_);
  std::swap(step_, last_);
  last_wanted_ = batch_.wanted;
  begin_batch();
  std::vector<int64_t> next;
  for (size_t i = 0; i < last_.rows.size(); ++i) {
    const LogitRow& row = last_.rows[i];
    if (row.sequence == nullptr || left[i] <= 1 || (!queued && row.token < 0)) continue;
    add_draft(row, last_wanted_[i], queued ? 0 : row.token);
    if (queued) batch_.sampled_from_row.push_back(static_cast<int32_t>(i));
    want(*row.sequence, row.position + 2);
    next.push_back(left[i] - 1);
  }
  left = std::move(next);
  run_batch();
  const bool more = !left.empty();
  const bool waits = std::ranges::any_of(
      step_.rows, [](const LogitRow& row) { return sampling::looks_at_history(row.sequence->params); });
  if (queued && waits) read_samples(last_);
  if (more) enqueue_samples();
  if (queued && !waits && (more || !unread)) read_samples(last_);
  return more;
}

bool ModelDrafter::wants_drafts(const Share& share) {
  return share.drafts > 0 && share.sequence->drafts.front() < 0;
}

void ModelDrafter::end_drafts(Sequence& sequence) {
  for (size_t i = 0; i < sequence.drafts.size(); ++i) sequence.history.pop_output();
}

// The model computes the tokens that the step is sampling, for the sequences whose other tokens it has computed. Those
// of accepted drafts it has computed before, to the same bits.
void DraftModelDrafter::start(const Step& step) {
  begin_batch();
  started_ = step.number;
  size_t first = 0;
  for (size_t s = 0; s < step.shares.size(); ++s) {
    const Share& share = step.shares[s];
    const size_t count = num_sampled(step, s, first);
    if (share.sequence == nullptr || share.drafts == 0 || count == 0) continue;
    Sequence& sequence = *share.sequence;
    const int64_t known = share.begin + share.count - share.drafts;
    const int64_t end = known + static_cast<int64_t>(count);
    if (sequence.num_drafted < known || end > max_length_ || !kv_.allocate_slots(sequence.table, end)) continue;
    add_sampled(step, first, count, known, known + 1);
  }
  const trace::Span span("draft model starts %zu seqs", step_.shares.size());
  run_batch();
}

void DraftModelDrafter::propose(std::span<const Share> shares, bool unread) {
  if (std::vector<int64_t> left; left_of_shares(shares, left)) {
    const trace::Span span("draft for %zu started seqs", left.size());
    for (const Share& share : shares) {
      if (!wants_drafts(share)) continue;
      share.sequence->drafts.clear();
      share.sequence->num_drafted = share.sequence->num_tokens();
    }
    return sample_on(std::move(left), unread);
  }
  work_.clear();
  for (const Share& share : shares) {
    if (!wants_drafts(share)) continue;
    share.sequence->drafts.clear();
    QUIRE_CHECK(share.sequence->num_drafted < share.sequence->num_tokens());
    work_.push_back({share.sequence, share.sequence->num_tokens(), share.drafts});
  }
  const trace::Span span("draft for %zu seqs", work_.size());
  while (!work_.empty()) {
    if (run(work_)) {
      std::vector<int64_t> left;
      for (const Work& work : work_) left.push_back(work.samples);
      return sample_on(std::move(left), unread);
    }
    sample();
    std::erase_if(work_, [](const Work& work) {
      const bool failed = work.sequence->num_tokens() + std::ssize(work.sequence->drafts) == work.end;
      if (work.samples > 1 && !failed) return false;
      end_drafts(*work.sequence);
      return true;
    });
    for (Work& work : work_) ++work.end, --work.samples;
  }
}

// Whether a page ends between the two positions, or the last page that a window of the draft model needs.
bool DraftModelDrafter::must_follow(int64_t drafted, int64_t computed) const {
  const auto pages = [&](int64_t positions) { return std::max<int64_t>(positions, 0) / page_size_; };
  return std::ranges::any_of(offsets_,
                             [&](int64_t offset) { return pages(computed - offset) > pages(drafted - offset); });
}

void DraftModelDrafter::add_work(Sequence& sequence) {
  sequence.num_drafted = std::min(sequence.num_drafted, sequence.num_computed);  // without rejected drafts
  const int64_t end = std::min(sequence.num_computed, max_length_);
  if (must_follow(sequence.num_drafted, end)) work_.push_back({&sequence, end});
}

void DraftModelDrafter::catch_up(std::span<const Share> shares) {
  work_.clear();
  for (const Share& share : shares) {
    if (share.sequence != nullptr && share.drafts == 0) add_work(*share.sequence);
  }
  if (work_.empty()) return;
  const trace::Span span("draft model follows %zu seqs", work_.size());
  run(work_);
}

void DraftModelDrafter::follow(const Step& step) {
  const bool started = settle_start(step);
  work_.clear();
  for (const Share& share : step.shares) {
    if (share.sequence == nullptr || (started && share.drafts == 0)) continue;
    Sequence& sequence = *share.sequence;
    const bool all = started && std::ranges::find(step_.rows, &sequence, &LogitRow::sequence) != step_.rows.end();
    if (all) sequence.num_drafted = sequence.num_computed;
    add_work(sequence);
  }
  if (work_.empty()) return;
  const trace::Span span("draft model follows %zu seqs", work_.size());
  run(work_);
}

void DraftModelDrafter::add_draft(const LogitRow& row, int32_t, int32_t token) {
  add_row(*row.sequence, row.position + 1, token);
  ++row.sequence->num_drafted;
}

// Does the work in batches of at most max_tokens_ rows, and samples all of them but the last.
bool DraftModelDrafter::run(std::span<const Work> all) {
  bool whole = true;
  begin_batch();
  for (const Work& work : all) {
    Sequence& sequence = *work.sequence;
    const int64_t known = sequence.num_tokens();
    for (; sequence.num_drafted < work.end; ++sequence.num_drafted) {
      if (batch_.num_tokens() == max_tokens_) {
        run_batch();
        whole = whole && step_.rows.empty();
        sample();
        begin_batch();
      }
      const int64_t at = sequence.num_drafted;
      add_row(sequence, at,
              at < known ? sequence.tokens[static_cast<size_t>(at)] : sequence.drafts[static_cast<size_t>(at - known)]);
    }
    if (work.samples > 0) want(sequence, work.end);
  }
  run_batch();
  return whole;
}

namespace {

int32_t token_after(const Sequence& sequence, int64_t position) {
  QUIRE_CHECK(position + 1 < sequence.num_tokens());
  return sequence.tokens[static_cast<size_t>(position + 1)];
}

}  // namespace

void AheadDrafter::start(const Step& step) {
  begin_batch();
  started_ = step.number;
  int64_t first_row = 0;  // of the share in the target's step
  size_t first = 0;
  for (size_t s = 0; s < step.shares.size(); ++s) {
    const Share& share = step.shares[s];
    const int64_t rows = first_row;
    first_row += share.count;
    const size_t count = num_sampled(step, s, first);
    if (share.sequence == nullptr) continue;
    Sequence& sequence = *share.sequence;
    const int64_t end = std::min(share.begin + share.count, max_length_);
    // The rows whose next token is known. Nothing follows the last token of a sequence whose hidden states are pooled.
    const int64_t known = count > 0 ? share.begin + share.count - share.drafts - 1 : sequence.num_tokens() - 1;
    for (int64_t at = share.begin; at < std::min(known, end); ++at) {
      add_row(sequence, at, token_after(sequence, at));
      batch_.hidden_rows.push_back(static_cast<int32_t>(rows + at - share.begin));
    }
    const int64_t sampled = std::min(static_cast<int64_t>(count), end - known);
    if (sampled <= 0) continue;
    add_sampled(step, first, static_cast<size_t>(sampled), known, known + 2);
    for (int64_t i = 0; i < sampled; ++i) {
      batch_.hidden_rows.push_back(static_cast<int32_t>(rows + known + i - share.begin));
    }
  }
  const trace::Span span("layer ahead starts %zu seqs", step_.shares.size());
  run_batch();
}

void AheadDrafter::follow(const Step& step) {
  if (settle_start(step)) return;
  begin_batch();
  int64_t first_row = 0;  // of the share in the target's step
  for (const Share& share : step.shares) {
    const int64_t rows = first_row;
    first_row += share.count;
    if (share.sequence == nullptr) continue;
    Sequence& sequence = *share.sequence;
    const int64_t end = std::min(sequence.num_computed, sequence.num_tokens() - 1);
    if (end > max_length_ || end <= share.begin) continue;
    for (int64_t at = share.begin; at < end; ++at) {
      add_row(sequence, at, token_after(sequence, at));
      batch_.hidden_rows.push_back(static_cast<int32_t>(rows + at - share.begin));
    }
    if (end + 1 == sequence.num_tokens()) want(sequence, end + 1);
  }
  const trace::Span span("layer ahead follows %zu seqs", step_.shares.size());
  run_batch();
}

void AheadDrafter::propose(std::span<const Share> shares, bool unread) {
  // Of the rows that start() or follow() has computed, those whose sequences go on with drafts now.
  std::vector<int64_t> left;
  left_of_shares(shares, left);
  for (const Share& share : shares) {
    if (wants_drafts(share)) share.sequence->drafts.clear();
  }
  const trace::Span span("draft for %zu seqs", left.size());
  sample_on(std::move(left), unread);
}

void AheadDrafter::add_draft(const LogitRow& row, int32_t at, int32_t token) {
  add_row(*row.sequence, row.position, token);
  batch_.hidden_rows.push_back(at);
  batch_.own_hidden = true;
}

}  // namespace quire::engine
