// SPDX-License-Identifier: Apache-2.0
// AttentionPlan: divides one attention call into work items for the threads.
//
// Rows. For one sequence and one kv head, a row is (query token, head of the kv head's group), numbered
// query * group + head, so that the rows of an item share every loaded K and V. A row sees the positions of
// seen_by(): both ends do not decrease from row to row, and the rows of an item see together one run of positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention.h"

namespace quire::cpu {

constexpr int64_t kAttentionRows = 48;      // most rows of an item of kernels in float
constexpr int64_t kAttentionRowsMost = 96;  // most rows of any item
constexpr int64_t kAttentionFewRows = 6;    // up to this many rows, AMX kernels do not use tiles

// A part of a call: rows [row_begin, row_end) of one sequence and kv head over splits [split_begin, split_end). Without
// partials it covers all splits and writes `out`; else it writes one partial result per split and row.
struct AttentionItem {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t split_begin = 0;
  int32_t split_end = 0;
  int32_t split_first = 0;              // of the rows' splits
  float* partials = nullptr;            // [splits from split_first on][row_end - row_begin][partial_stride]: m, l, o
  const AttentionItem* soon = nullptr;  // the item that a thread takes after this one, if threads take turns
};

// Merges the partial results of rows [row_begin, row_end), splits from left to right, and writes `out`.
struct AttentionMerge {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t split_first = 0;
  const float* partials = nullptr;
};

constexpr int64_t attention_partial_stride(int64_t v_dim) {
  return (v_dim + 15) / 16 * 16 + 16;  // o first, then m and l
}

// The positions [begin, end) that a query sees, and its own position.
struct Seen {
  int64_t begin, end;
};
// Always inlined, because kernels of several ISA levels must share no code.
[[gnu::always_inline]] constexpr inline Seen seen_by(const AttentionArgs& args, int64_t context, int64_t queries,
                                                     int64_t query) {
  const int64_t at = context - queries + query;
  Seen seen = {0, args.causal ? at + 1 : context};
  if (args.window > 0) {
    if (at >= args.window) seen.begin = at - args.window + 1;
    if (at + args.window < seen.end) seen.end = at + args.window;
  }
  return seen;
}

// Floats that one thread needs while it runs items; the memory must be aligned to 64 bytes.
int64_t attention_scratch_floats(int64_t head_dim, int64_t v_dim);

// A plan that is rebuilt for each call and keeps its memory between calls. Owned by the backend and used by its thread;
// items point into it. Items may run in any order on any thread; the merges run after all of them. The division of a
// call changes no bit.
class AttentionPlan {
 public:
  // most_rows: per item, at most kAttentionRowsMost.
  void build(const AttentionArgs& args, int threads, int64_t most_rows = kAttentionRows);
  std::span<const AttentionItem> items() const { return items_; }  // longest first
  std::span<const AttentionMerge> merges() const { return merges_; }

 private:
  struct Sized {
    int64_t cost;
    size_t order;
    AttentionItem item;
    int64_t partials;  // offset, or -1
  };
  std::vector<Sized> sized_;
  std::vector<int64_t> merge_offsets_;
  std::vector<AttentionItem> items_;
  std::vector<AttentionMerge> merges_;
  std::vector<float> partials_;
};

}  // namespace quire::cpu
