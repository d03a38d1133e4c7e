// SPDX-License-Identifier: Apache-2.0
// StepBatch: one step as a flat list of tokens over all sequences; the only input of a model's forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/adapter.h"

namespace quire::model {

// One cache group's part of a step (kv/cache_layout.h).
struct GroupBatch {
  // Attention groups: one page per block_size positions.
  std::vector<int64_t> slot_mapping;  // [tokens]: page * block_size + offset
  std::vector<int32_t> block_tables;  // [seqs, max_blocks], padded with 0; also 0 for pages before the window
  int32_t max_blocks = 0;
  // State groups: the page that is read (-1: the first step of a sequence) and the page that is written.
  std::vector<int32_t> state_source;       // [seqs]
  std::vector<int32_t> state_destination;  // [seqs]
  // Also the pages for the states after each token but the last (-1: none): where a checkpoint is made, and before each
  // draft, for the case that it is rejected.
  std::vector<int32_t> state_rows;  // [tokens]; empty: none

  void clear() {
    for (auto* ids : {&block_tables, &state_source, &state_destination, &state_rows}) ids->clear();
    slot_mapping.clear();
    max_blocks = 0;
  }
};

// A step: decode tokens and prefill chunks of any number of sequences. Built by the engine, read by the model.
// Invariants: cu_seqlens_q starts at 0, is non-decreasing and ends at num_tokens(); the position of a token is below
// the context length of its sequence; slots are distinct. A model checks that the fields that it does not support are
// empty.
struct StepBatch {
  // Tokens, flat over the sequences.
  std::vector<int32_t> tokens;     // [tokens]
  std::vector<int32_t> positions;  // [axes, tokens]; one axis, except for M-RoPE
  int32_t position_axes = 1;

  // Sequences.
  std::vector<int32_t> cu_seqlens_q;  // [seqs + 1]
  std::vector<int32_t> context_lens;  // [seqs]: positions in the pages after this step
  std::vector<uint8_t> causal;        // [seqs]; empty: all causal
  std::vector<GroupBatch> groups;     // [cache groups]

  // For tokens whose embedding comes from a buffer (images, audio), or whose id is sampled by the previous step (a step
  // scheduled ahead): the row of the buffer or of that step. -1: an ordinary token. Empty: all are ordinary.
  std::vector<int32_t> embedding_rows;    // [tokens]
  std::vector<int32_t> sampled_from_row;  // [tokens]
  // For a step that follows one with drafts before its tokens are known: the draft that the token before the row's own
  // has to be, or -1. A wanted row then moves on to the last one whose drafts are right. Empty: none does.
  std::vector<int32_t> drafts;       // [tokens]
  std::vector<int32_t> token_types;  // [tokens], for models that have a table of them; empty: all are 0

  // For a layer ahead (AheadConfig): the row of each token's hidden state in the last step, of the target or, with
  // own_hidden, of the layer itself. Empty for other models.
  std::vector<int32_t> hidden_rows;  // [tokens]
  bool own_hidden = false;
  // The adapters of the step, and for each sequence the index of its own; -1: none. Both empty: none has one.
  std::vector<const Adapter*> adapters;
  std::vector<int32_t> adapter_of;  // [seqs]

  // The rows (indices of tokens) whose logits are wanted, in the order in which they are read. Of the last num_pooled
  // of them the hidden states are wanted instead.
  std::vector<int32_t> wanted;
  int64_t num_pooled = 0;
  int64_t wanted_before = 0;  // rows of earlier parts of the step (model/step_parts.h), which stay

  // Empties the batch and keeps its memory for the next step.
  void clear() {
    for (auto* ids : {&tokens, &positions, &cu_seqlens_q, &context_lens, &embedding_rows, &sampled_from_row, &drafts,
                      &token_types, &hidden_rows, &wanted}) {
      ids->clear();
    }
    num_pooled = 0;
    wanted_before = 0;
    causal.clear();
    adapters.clear();
    adapter_of.clear();
    for (GroupBatch& group : groups) group.clear();
    position_axes = 1;
    own_hidden = false;
  }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  // An upper bound of the bytes of all arrays, of one float and of one token type per token, and the number of arrays.
  size_t bytes() const {
    size_t total = tokens.size() * (sizeof(float) + sizeof(int32_t));
    for (const auto* ids :
         {&tokens, &positions, &cu_seqlens_q, &context_lens, &sampled_from_row, &drafts, &hidden_rows, &wanted}) {
      total += ids->size() * sizeof(int32_t);
    }
    if (!adapters.empty()) total += 6 * (tokens.size() + wanted.size()) * sizeof(int32_t);
    for (const GroupBatch& group : groups) {
      total += group.slot_mapping.size() * sizeof(int64_t);
      for (const auto* ids : {&group.block_tables, &group.state_source, &group.state_destination, &group.state_rows}) {
        total += ids->size() * sizeof(int32_t);
      }
    }
    return total;
  }
  static size_t num_arrays(size_t groups) { return 16 + 5 * groups; }
  size_t num_arrays() const { return num_arrays(groups.size()); }
  // The maximum of bytes() for this many tokens, sequences and groups, with block tables of these widths.
  static size_t most_bytes(int64_t tokens, int64_t seqs, size_t groups, const std::vector<int64_t>& table_widths) {
    const auto per_group = static_cast<int64_t>(groups);
    int64_t total = tokens * static_cast<int64_t>(sizeof(float) + 19 * sizeof(int32_t));
    total += (2 * seqs + 1) * static_cast<int64_t>(sizeof(int32_t));
    total += per_group * (tokens * static_cast<int64_t>(sizeof(int64_t) + sizeof(int32_t)) +
                          2 * seqs * static_cast<int64_t>(sizeof(int32_t)));
    for (const int64_t width : table_widths) total += seqs * width * static_cast<int64_t>(sizeof(int32_t));
    return static_cast<size_t>(total);
  }
  int64_t num_seqs() const { return static_cast<int64_t>(context_lens.size()); }
};

}  // namespace quire::model
