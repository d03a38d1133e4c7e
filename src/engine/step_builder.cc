// SPDX-License-Identifier: Apache-2.0
// Tokens and positions, block tables and slots, and the rows whose logits are needed.
#include "engine/step_builder.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {

const model::StepBatch& StepBuilder::build(Step& step) {
  batch_.clear();
  step.rows.clear();
  step.pooled.clear();
  pooled_.clear();
  batch_.cu_seqlens_q.push_back(0);
  for (size_t s = 0; s < step.shares.size(); ++s) {
    const int64_t first_token = batch_.num_tokens();
    add_tokens(step.shares[s]);
    if (step.shares[s].sequence->pools()) {
      add_pooled_rows(step.shares[s], s, first_token, step);
    } else {
      add_rows(step.shares[s], s, first_token, step.rows);
    }
  }
  add_adapters(step.shares);
  batch_.num_pooled = static_cast<int64_t>(pooled_.size());
  batch_.wanted.insert(batch_.wanted.end(), pooled_.begin(), pooled_.end());
  if (!batch_.sampled_from_row.empty()) batch_.sampled_from_row.resize(batch_.tokens.size(), -1);
  batch_.groups.resize(kv_.groups().size());
  for (size_t g = 0; g < batch_.groups.size(); ++g) {
    if (kv_.groups()[g].kind == kv::CacheKind::kState) {
      add_states(step.shares, g);
    } else {
      add_pages(step.shares, g);
    }
  }
  return batch_;
}

void StepBuilder::add_tokens(const Share& share) {
  const Sequence& sequence = *share.sequence;
  const int64_t begin = sequence.num_computed;
  const int64_t end = begin + share.count;
  if (begin < sequence.num_tokens()) {
    const auto tokens = sequence.tokens.begin();
    batch_.tokens.insert(batch_.tokens.end(), tokens + begin, tokens + end - share.drafts);
    batch_.tokens.insert(batch_.tokens.end(), sequence.drafts.begin(), sequence.drafts.begin() + share.drafts);
    if (sequence.draft_row >= 0) {  // the draft that a drafter is sampling
      batch_.tokens.back() = 0;
      batch_.sampled_from_row.resize(batch_.tokens.size() - 1, -1);
      batch_.sampled_from_row.push_back(sequence.draft_row);
    }
  } else {  // the token that the previous step is sampling
    QUIRE_CHECK(sequence.in_flight() && end == begin + 1);
    batch_.sampled_from_row.resize(batch_.tokens.size(), -1);
    batch_.sampled_from_row.push_back(sequence.row_in_flight);
    batch_.tokens.push_back(0);
  }
  for (int64_t p = begin; p < end; ++p) batch_.positions.push_back(static_cast<int32_t>(p));
  if (sequence.second_segment >= 0 && sequence.second_segment < end) {
    batch_.token_types.resize(
        static_cast<size_t>(batch_.num_tokens() - (end - std::max(begin, sequence.second_segment))));
    batch_.token_types.resize(batch_.tokens.size(), 1);
  }
  batch_.cu_seqlens_q.push_back(static_cast<int32_t>(batch_.num_tokens()));
  batch_.context_lens.push_back(static_cast<int32_t>(end));
}

void StepBuilder::add_rows(const Share& share, size_t index, int64_t first_token, std::vector<LogitRow>& rows) {
  Sequence& sequence = *share.sequence;
  const int64_t begin = sequence.num_computed;
  for (int64_t p = begin; p < begin + share.count; ++p) {
    LogitRow row{.sequence = &sequence, .share = index, .position = p};
    row.sample = p + 1 >= sequence.num_to_compute();
    if (p >= begin + share.count - share.drafts)
      row.draft = sequence.drafts[static_cast<size_t>(p - sequence.num_tokens())];
    row.prompt_logprob =
        sequence.owes_prompt_logprobs() && p + 1 < sequence.prompt_size && p >= sequence.prompt_logprobs_sent;
    if (!row.sample && !row.prompt_logprob) continue;
    batch_.wanted.push_back(static_cast<int32_t>(first_token + p - begin));
    rows.push_back(row);
  }
}

void StepBuilder::add_adapters(std::span<const Share> shares) {
  std::vector<const model::Adapter*>& adapters = batch_.adapters;
  for (const Share& share : shares) {
    const model::Adapter* adapter = share.sequence->adapter.get();
    const auto known = std::find_if(adapters.begin(), adapters.end(),
                                    [&](const model::Adapter* other) { return adapter && other->id == adapter->id; });
    batch_.adapter_of.push_back(adapter == nullptr ? -1 : static_cast<int32_t>(known - adapters.begin()));
    if (adapter != nullptr && known == adapters.end()) adapters.push_back(adapter);
  }
  if (adapters.empty()) batch_.adapter_of.clear();
}

void StepBuilder::add_pooled_rows(const Share& share, size_t index, int64_t first_token, Step& step) {
  const Sequence& sequence = *share.sequence;
  const int64_t end = sequence.num_computed + share.count;
  int64_t from = sequence.num_computed, to = end;
  if (sequence.pool == model::PoolRows::kFirst) to = std::min<int64_t>(end, 1);
  if (sequence.pool == model::PoolRows::kLast) from = std::max(from, sequence.num_tokens() - 1);
  step.pooled.push_back({index, std::max<int64_t>(0, to - from)});
  for (int64_t p = from; p < to; ++p) {
    pooled_.push_back(static_cast<int32_t>(first_token + p - sequence.num_computed));
  }
}

void StepBuilder::add_pages(std::span<const Share> shares, size_t index) {
  model::GroupBatch& group = batch_.groups[index];
  for (const Share& share : shares) {
    group.max_blocks = std::max(group.max_blocks, static_cast<int32_t>(share.sequence->table.blocks(index).size()));
  }
  group.max_blocks = static_cast<int32_t>(backend_.table_width(group.max_blocks, kv_.groups()[index].block_size));
  group.slot_mapping.resize(batch_.tokens.size());
  auto slots = std::span(group.slot_mapping);
  for (size_t s = 0; s < shares.size(); ++s) {
    const Sequence& sequence = *shares[s].sequence;
    const auto count = static_cast<size_t>(shares[s].count);
    kv_.slot_mapping(sequence.table, index, sequence.num_computed, slots.first(count));
    slots = slots.subspan(count);
    const auto blocks = sequence.table.blocks(index);
    group.block_tables.insert(group.block_tables.end(), blocks.begin(), blocks.end());
    group.block_tables.resize((s + 1) * static_cast<size_t>(group.max_blocks), 0);
  }
}

void StepBuilder::add_states(std::span<const Share> shares, size_t index) {
  model::GroupBatch& group = batch_.groups[index];
  const bool rows = std::ranges::any_of(shares, [](const Share& share) {
    return share.sequence->table.state_ends().front() < share.sequence->num_computed + share.count;
  });
  for (const Share& share : shares) {
    const kv::BlockTable& table = share.sequence->table;
    const int64_t begin = share.sequence->num_computed, end = begin + share.count;
    const size_t first = group.state_rows.size();
    if (rows) group.state_rows.resize(first + static_cast<size_t>(share.count), -1);
    group.state_source.push_back(table.state_source(index));
    for (size_t i = 0; i < table.state_ends().size(); ++i) {
      const int64_t at = table.state_ends()[i];
      if (at < end) group.state_rows[first + static_cast<size_t>(at - begin - 1)] = table.state_after(index, i);
      if (at == end) group.state_destination.push_back(table.state_after(index, i));
    }
  }
}

}  // namespace quire::engine
