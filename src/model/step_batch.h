// SPDX-License-Identifier: Apache-2.0
// StepBatch: one step's work as a flat list of tokens over all sequences; the only input a model's forward pass takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::model {

// One cache group's part of a step (kv/cache_layout.h).
struct GroupBatch {
  // Groups with a page for every block_size positions.
  std::vector<int64_t> slot_mapping;  // [tokens]: page * block_size + offset
  std::vector<int32_t> block_tables;  // [seqs, max_blocks], padded with 0; 0 also where a window left a page behind
  int32_t max_blocks = 0;
  // Groups of recurrent states: the page that is read (-1: a sequence's beginning) and the one that is written.
  std::vector<int32_t> state_source;       // [seqs]
  std::vector<int32_t> state_destination;  // [seqs]

  void clear() {
    for (auto* ids : {&block_tables, &state_source, &state_destination}) ids->clear();
    slot_mapping.clear();
    max_blocks = 0;
  }
};

// A step: decode tokens and prefill chunks of any number of sequences, mixed. Built by the engine, read by the model,
// thrown away. Invariants: cu_seqlens_q starts at 0, does not fall, and ends at num_tokens(); every position p of a
// token is below its sequence's context length; slots are distinct. Fields that a model does not know must be empty: it
// checks.
struct StepBatch {
  // Tokens, flat over the sequences.
  std::vector<int32_t> tokens;     // [tokens]
  std::vector<int32_t> positions;  // [axes, tokens]; one axis but for M-RoPE
  int32_t position_axes = 1;

  // Sequences.
  std::vector<int32_t> cu_seqlens_q;  // [seqs + 1]
  std::vector<int32_t> context_lens;  // [seqs]: positions in the pages once this step's are written
  std::vector<uint8_t> causal;        // [seqs]; empty: all causal
  std::vector<GroupBatch> groups;     // [cache groups], always all of them

  // Tokens whose embedding is a row of a buffer (images, audio) or whose id is the one sampled by a row of the step
  // before (a step scheduled ahead): -1 where the token is plain. Empty: all plain.
  std::vector<int32_t> embedding_rows;    // [tokens]
  std::vector<int32_t> sampled_from_row;  // [tokens]

  // Rows (indices into the flat list of tokens) whose logits are wanted, in the order in which they are read.
  std::vector<int32_t> wanted;

  // Empties it and keeps its memory for the next step.
  void clear() {
    for (auto* ids : {&tokens, &positions, &cu_seqlens_q, &context_lens, &embedding_rows, &sampled_from_row, &wanted}) {
      ids->clear();
    }
    causal.clear();
    for (GroupBatch& group : groups) group.clear();
    position_axes = 1;
  }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  // At least what its arrays, and a factor a token beside them, take together; and how many they are.
  size_t bytes() const {
    size_t total = tokens.size() * sizeof(float);
    for (const auto* ids : {&tokens, &positions, &cu_seqlens_q, &context_lens, &sampled_from_row, &wanted}) {
      total += ids->size() * sizeof(int32_t);
    }
    for (const GroupBatch& group : groups) {
      total += group.slot_mapping.size() * sizeof(int64_t);
      for (const auto* ids : {&group.block_tables, &group.state_source, &group.state_destination}) {
        total += ids->size() * sizeof(int32_t);
      }
    }
    return total;
  }
  static size_t num_arrays(size_t groups) { return 7 + 4 * groups; }
  size_t num_arrays() const { return num_arrays(groups.size()); }
  // What bytes() can be, at most, of a step of so many tokens and sequences with tables of these widths.
  static size_t most_bytes(int64_t tokens, int64_t seqs, size_t groups, const std::vector<int64_t>& table_widths) {
    const auto per_group = static_cast<int64_t>(groups);
    int64_t total = tokens * static_cast<int64_t>(sizeof(float) + 4 * sizeof(int32_t));
    total += (2 * seqs + 1) * static_cast<int64_t>(sizeof(int32_t));
    total +=
        per_group * (tokens * static_cast<int64_t>(sizeof(int64_t)) + 2 * seqs * static_cast<int64_t>(sizeof(int32_t)));
    for (const int64_t width : table_widths) total += seqs * width * static_cast<int64_t>(sizeof(int32_t));
    return static_cast<size_t>(total);
  }
  int64_t num_seqs() const { return static_cast<int64_t>(context_lens.size()); }
};

}  // namespace quire::model
