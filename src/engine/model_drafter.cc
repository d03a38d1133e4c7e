// SPDX-License-Identifier: Apache-2.0
// Batches of a draft model: what sequences lack, then one token per sequence and pass.
#include "engine/model_drafter.h"

#include <algorithm>

#include "base/trace.h"
#include "kv/cache_groups.h"

namespace quire::engine {

ModelDrafter::ModelDrafter(Backend& backend, const kv::KvManager& kv, model::Model& model,
                           std::unique_ptr<model::KvCache> pages, const model::BatchLimits& limits, int64_t max_length)
    : backend_(backend),
      kv_(kv),
      model_(model),
      pages_(std::move(pages)),
      max_tokens_(limits.max_tokens),
      max_length_(max_length),
      page_size_(kv::main_block_size(pages_->layout())),
      sampler_(make_row_sampler(backend, model, limits.max_logit_rows)) {
  for (const kv::CacheLayout::Layer& layer : pages_->layout().layers) {
    if (layer.group < 0) continue;
    const auto group = static_cast<size_t>(layer.group);
    QUIRE_CHECK(kv_.groups()[group].kind != kv::CacheKind::kState, "a draft model has no recurrent layers");
    if (std::ranges::find(groups_, group) != groups_.end()) continue;
    groups_.push_back(group);
    if (kv_.groups()[group].kind == kv::CacheKind::kWindow) offsets_.push_back(kv_.groups()[group].window - 1);
  }
}

void ModelDrafter::propose(std::span<const Share> shares) {
  work_.clear();
  for (const Share& share : shares) {
    if (share.drafts == 0) continue;
    share.sequence->drafts.clear();
    work_.push_back({share.sequence, share.sequence->num_tokens(), share.drafts});
  }
  if (work_.empty()) return;
  const trace::Span span("draft for %zu seqs", work_.size());
  while (!work_.empty()) {
    for (Work& work : work_) --work.samples;
    run(work_);
    // A sequence whose row could not be sampled keeps the drafts that it has.
    std::erase_if(work_, [](const Work& work) {
      return work.samples == 0 || work.sequence->num_tokens() + std::ssize(work.sequence->drafts) == work.end;
    });
    for (Work& work : work_) ++work.end;
  }
  for (const Share& share : shares) {
    if (share.drafts == 0) continue;
    for (size_t i = 0; i < share.sequence->drafts.size(); ++i) share.sequence->history.pop_output();
  }
}

// Whether a page ends between the two positions, or the last page that a window of the draft model needs.
bool ModelDrafter::must_follow(int64_t drafted, int64_t computed) const {
  const auto pages = [&](int64_t positions) { return std::max<int64_t>(positions, 0) / page_size_; };
  return std::ranges::any_of(offsets_,
                             [&](int64_t offset) { return pages(computed - offset) > pages(drafted - offset); });
}

void ModelDrafter::follow(std::span<const Share> shares) {
  work_.clear();
  for (const Share& share : shares) {
    if (share.sequence == nullptr) continue;
    Sequence& sequence = *share.sequence;
    const int64_t end = sequence.num_computed;
    sequence.num_drafted = std::min(sequence.num_drafted, end);  // without rejected drafts
    if (end > max_length_ || !must_follow(sequence.num_drafted, end)) continue;
    work_.push_back({&sequence, end});
  }
  if (work_.empty()) return;
  const trace::Span span("draft model follows %zu seqs", work_.size());
  run(work_);
}

// Does the work in batches of at most max_tokens_ tokens; a long piece of work is divided.
void ModelDrafter::run(std::span<const Work> all) {
  begin_batch();
  for (const Work& work : all) {
    while (work.sequence->num_drafted < work.end) {
      const int64_t room = max_tokens_ - batch_.num_tokens();
      if (room == 0) {
        run_batch();
        begin_batch();
        continue;
      }
      add(work, std::min(room, work.end - work.sequence->num_drafted));
    }
  }
  if (batch_.num_tokens() > 0) run_batch();
}

void ModelDrafter::begin_batch() {
  batch_.clear();
  batch_.cu_seqlens_q.push_back(0);
  batch_.groups.resize(kv_.groups().size());
  step_.clear();
}

void ModelDrafter::add(const Work& work, int64_t count) {
  Sequence& sequence = *work.sequence;
  const int64_t begin = sequence.num_drafted;
  const int64_t end = begin + count;
  const auto known = static_cast<int64_t>(sequence.tokens.size());
  for (int64_t p = begin; p < end; ++p) {
    batch_.tokens.push_back(p < known ? sequence.tokens[static_cast<size_t>(p)]
                                      : sequence.drafts[static_cast<size_t>(p - known)]);
    batch_.positions.push_back(static_cast<int32_t>(p));
  }
  batch_.cu_seqlens_q.push_back(static_cast<int32_t>(batch_.num_tokens()));
  batch_.context_lens.push_back(static_cast<int32_t>(end));
  for (const size_t g : groups_) {
    std::vector<int64_t>& slots = batch_.groups[g].slot_mapping;
    slots.resize(batch_.tokens.size());
    kv_.slot_mapping(sequence.table, g, begin, std::span(slots).last(static_cast<size_t>(count)));
  }
  if (work.samples >= 0 && end == work.end) {
    batch_.wanted.push_back(static_cast<int32_t>(batch_.num_tokens() - 1));
    step_.rows.push_back(
        {.sequence = &sequence, .share = step_.shares.size(), .position = end - 1, .sample = true, .guess = true});
  }
  step_.shares.push_back({&sequence, count});
  sequence.num_drafted = end;
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

// Runs the batch, and appends the sampled tokens to the drafts and histories of their sequences.
void ModelDrafter::run_batch() {
  add_pages();
  model_.forward(batch_, *pages_);
  if (step_.rows.empty()) return;
  step_.outputs.resize(step_.shares.size());
  sampler_->enqueue(step_);
  sampler_->read(step_);
  for (const LogitRow& row : step_.rows) {
    if (row.token < 0) continue;
    row.sequence->drafts.push_back(row.token);
    row.sequence->history.push_output(row.token);
  }
}

}  // namespace quire::engine
