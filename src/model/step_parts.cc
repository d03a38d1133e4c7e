// SPDX-License-Identifier: Apache-2.0
// Divides a step by tokens.
#include "model/step_parts.h"

#include <algorithm>

namespace quire::model {
namespace {

// With fewer tokens, a stage takes as long to read its weights as to use them, and a second part as long as the first.
constexpr int64_t kLeastPart = 32;

template <typename T>
void take_range(const std::vector<T>& from, int64_t begin, int64_t end, std::vector<T>& to) {
  if (!from.empty()) to.assign(from.begin() + begin, from.begin() + end);
}

}  // namespace

int64_t num_parts(const StepBatch& batch, int64_t stages) {
  // States after some of the tokens: a part must not end at one.
  const bool kept_states = std::ranges::any_of(batch.groups, [](const GroupBatch& g) { return !g.state_rows.empty(); });
  const bool plain = batch.num_pooled == 0 && batch.adapters.empty() && batch.causal.empty() && !batch.groups.empty() &&
                     !kept_states && std::ranges::is_sorted(batch.wanted);
  return plain ? std::clamp<int64_t>(batch.num_tokens() / kLeastPart, 1, stages) : 1;
}

void take_part(const StepBatch& batch, int64_t part, int64_t parts, StepBatch& out) {
  out.clear();
  const int64_t begin = batch.num_tokens() * part / parts, end = batch.num_tokens() * (part + 1) / parts;
  take_range(batch.tokens, begin, end, out.tokens);
  take_range(batch.positions, begin, end, out.positions);
  take_range(batch.sampled_from_row, begin, end, out.sampled_from_row);
  take_range(batch.token_types, begin, end, out.token_types);
  for (const int32_t row : batch.wanted) {
    if (row < begin) ++out.wanted_before;
    if (row >= begin && row < end) out.wanted.push_back(row - static_cast<int32_t>(begin));
  }
  out.groups.resize(batch.groups.size());
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    take_range(batch.groups[g].slot_mapping, begin, end, out.groups[g].slot_mapping);
    out.groups[g].max_blocks = batch.groups[g].max_blocks;
  }
  out.cu_seqlens_q.push_back(0);
  for (size_t s = 0; s < batch.context_lens.size(); ++s) {
    const int64_t first = batch.cu_seqlens_q[s], last = batch.cu_seqlens_q[s + 1];
    if (last <= begin || first >= end) continue;
    out.cu_seqlens_q.push_back(static_cast<int32_t>(std::min(last, end) - begin));
    out.context_lens.push_back(batch.context_lens[s] - static_cast<int32_t>(last - std::min(last, end)));
    for (size_t g = 0; g < batch.groups.size(); ++g) {
      const GroupBatch& from = batch.groups[g];
      GroupBatch& to = out.groups[g];
      if (!from.block_tables.empty()) {
        const auto row = from.block_tables.begin() + static_cast<ptrdiff_t>(s) * from.max_blocks;
        to.block_tables.insert(to.block_tables.end(), row, row + from.max_blocks);
      }
      if (from.state_destination.empty()) continue;
      to.state_source.push_back(first < begin ? from.state_destination[s] : from.state_source[s]);
      to.state_destination.push_back(from.state_destination[s]);
    }
  }
}

}  // namespace quire::model
