// SPDX-License-Identifier: Apache-2.0
// Writes the arrays of a step one after another, each behind its length.
#include "model/step_wire.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace quire::model {
namespace {

// The one list of the fields: `visit` takes numbers and vectors in order.
template <typename Batch, typename Ids, typename Visit>
void for_each_field(Batch& batch, Ids& adapters, const Visit& visit) {
  visit(adapters);
  visit(batch.tokens);
  visit(batch.positions);
  visit(batch.position_axes);
  visit(batch.cu_seqlens_q);
  visit(batch.context_lens);
  visit(batch.causal);
  for (auto& group : batch.groups) {
    visit(group.slot_mapping);
    visit(group.block_tables);
    visit(group.max_blocks);
    visit(group.state_source);
    visit(group.state_destination);
    visit(group.state_rows);
  }
  visit(batch.sampled_from_row);
  visit(batch.token_types);
  visit(batch.adapter_of);
  visit(batch.wanted);
  visit(batch.num_pooled);
  visit(batch.wanted_before);
}

void append(std::vector<std::byte>& to, const void* from, size_t bytes) {
  const size_t at = to.size();
  to.resize(at + bytes);
  if (bytes > 0) std::memcpy(to.data() + at, from, bytes);
}

struct Reader {
  std::span<const std::byte> left;
  bool ok = true;

  void read(void* to, size_t bytes) {
    ok = ok && bytes <= left.size();
    if (!ok || bytes == 0) return;
    std::memcpy(to, left.data(), bytes);
    left = left.subspan(bytes);
  }
};

template <typename T>
bool all_within(const std::vector<T>& values, int64_t low, int64_t high) {
  return std::ranges::all_of(
      values, [&](T value) { return static_cast<int64_t>(value) >= low && static_cast<int64_t>(value) < high; });
}

bool group_is_whole(const GroupBatch& group, size_t tokens, size_t seqs, const StepLimits& limits) {
  const auto sized = [](const auto& values, size_t size) { return values.empty() || values.size() == size; };
  if (group.max_blocks < 0 || !sized(group.slot_mapping, tokens) || !sized(group.state_source, seqs) ||
      !sized(group.state_destination, seqs) || !sized(group.state_rows, tokens)) {
    return false;
  }
  if (group.block_tables.size() != seqs * static_cast<size_t>(group.max_blocks) && !group.block_tables.empty()) {
    return false;
  }
  const int64_t pages = limits.num_pages;
  return all_within(group.block_tables, 0, pages) && all_within(group.state_source, -1, pages) &&
         all_within(group.state_destination, 0, pages) && all_within(group.state_rows, -1, pages) &&
         all_within(group.slot_mapping, 0, pages << 20);  // a page has fewer positions; ops check the exact number
}

bool is_whole(const StepBatch& batch, const StepLimits& limits) {
  const size_t tokens = batch.tokens.size(), seqs = batch.context_lens.size();
  const auto end = static_cast<int64_t>(tokens);
  const auto sized = [](const auto& values, size_t size) { return values.empty() || values.size() == size; };
  return tokens > 0 && end <= limits.max_tokens && all_within(batch.tokens, 0, limits.vocab_size) &&
         batch.positions.size() == tokens && batch.position_axes == 1 && batch.cu_seqlens_q.size() == seqs + 1 &&
         batch.cu_seqlens_q.front() == 0 && batch.cu_seqlens_q.back() == end &&
         std::ranges::is_sorted(batch.cu_seqlens_q) && all_within(batch.context_lens, 0, int64_t{1} << 31) &&
         all_within(batch.positions, 0, int64_t{1} << 31) && all_within(batch.wanted, 0, end) &&
         sized(batch.sampled_from_row, tokens) && batch.token_types.size() <= tokens && sized(batch.adapter_of, seqs) &&
         batch.num_pooled >= 0 && batch.wanted_before >= 0 && batch.wanted_before <= limits.max_tokens - end &&
         batch.num_pooled <= std::ssize(batch.wanted) &&
         std::ranges::all_of(batch.groups,
                             [&](const GroupBatch& group) { return group_is_whole(group, tokens, seqs, limits); });
}

}  // namespace

void write_step(const StepBatch& batch, std::vector<std::byte>& to) {
  const auto groups = static_cast<uint32_t>(batch.groups.size());
  append(to, &groups, sizeof groups);
  std::vector<uint64_t> adapters;
  for (const Adapter* adapter : batch.adapters) adapters.push_back(adapter->id);
  for_each_field(batch, adapters, [&]<typename Field>(const Field& field) {
    if constexpr (std::is_arithmetic_v<Field>) {
      append(to, &field, sizeof field);
    } else {
      const auto size = static_cast<uint64_t>(field.size());
      append(to, &size, sizeof size);
      append(to, field.data(), field.size() * sizeof field[0]);
    }
  });
}

Status read_step(std::span<const std::byte> from, const StepLimits& limits, StepBatch& batch,
                 std::vector<uint64_t>& adapters) {
  batch.clear();
  Reader reader{from};
  uint32_t groups = 0;
  reader.read(&groups, sizeof groups);
  if (!reader.ok || groups != limits.groups) {
    return corrupt({"a step for ", groups, " cache groups came to a rank with ", limits.groups,
                    "; do all ranks load the same model with the same options?"});
  }
  batch.groups.resize(groups);
  for_each_field(batch, adapters, [&]<typename Field>(Field& field) {
    if constexpr (std::is_arithmetic_v<Field>) {
      reader.read(&field, sizeof field);
    } else {
      uint64_t size = 0;
      reader.read(&size, sizeof size);
      if (!reader.ok || size > reader.left.size() / sizeof field[0]) {
        reader.ok = false;
        return;
      }
      field.resize(size);
      reader.read(field.data(), size * sizeof field[0]);
    }
  });
  if (reader.ok && reader.left.empty() && is_whole(batch, limits) &&
      all_within(batch.adapter_of, -1, std::ssize(adapters))) {
    return {};
  }
  return corrupt(
      "a step that came from rank 0 does not fit this rank; do all ranks load the same model with the same options?");
}

}  // namespace quire::model
