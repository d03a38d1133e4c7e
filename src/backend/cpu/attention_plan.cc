// SPDX-License-Identifier: Apache-2.0
// Divides an attention call into items of similar cost: by kv head, by block of rows, and, if needed, by split.
#include "backend/cpu/attention_plan.h"

#include <algorithm>

#include "backend/cpu/attention_layout.h"
#include "base/check.h"
#include "base/math.h"

namespace quire::cpu {
namespace {

// Items per thread on average, so that threads finish at about the same time.
constexpr int64_t kItemsPerThread = 6;

// Rows of one sequence and kv head that run together.
struct RowBlock {
  int64_t begin, end;
  int64_t low, high;  // the positions that any of its rows sees
  int64_t split_begin() const { return low / kAttentionSplit; }
  int64_t split_end() const { return ceil_div(high, kAttentionSplit); }
  // Loading a position costs about as much as two rows' arithmetic on it.
  int64_t cost(int64_t from, int64_t to) const {
    return (end - begin + 2) * (std::min(to, high) - std::max(from, low / kAttentionTile * kAttentionTile));
  }
  int64_t cost() const { return cost(0, high); }
};

template <typename Visit>
void for_each_row_block(const AttentionArgs& args, int64_t most_rows, const Visit& visit) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const auto seqs = static_cast<int64_t>(args.context_lens.size());
  for (int64_t seq = 0; seq < seqs; ++seq) {
    const int64_t queries = args.cu_seqlens_q[seq + 1] - args.cu_seqlens_q[seq];
    const int64_t rows = queries * group;
    const int64_t whole = most_rows == kAttentionRows ? 6 : 16;
    // Blocks of equal size: 49 rows are 25 and 24, not 48 and 1; whole register tiles of 6 rows, or 16.
    const int64_t blocks = ceil_div(rows, most_rows);
    const int64_t size = blocks == 0 ? 0 : std::min(most_rows, round_up(ceil_div(rows, blocks), whole));
    for (int64_t begin = 0; begin < rows; begin += size) {
      const int64_t end = std::min(begin + size, rows);
      const int64_t context = args.context_lens[seq];
      visit(seq, RowBlock{begin, end, seen_by(args, context, queries, begin / group).begin,
                          seen_by(args, context, queries, (end - 1) / group).end});
    }
  }
}

// Kernels rely on these values: with a wrong length or page they would read other memory.
void check_sequences(const AttentionArgs& args) {
  const int64_t seqs = static_cast<int64_t>(args.context_lens.size());
  for (int64_t seq = 0; seq < seqs; ++seq) {
    const int64_t queries = args.cu_seqlens_q[seq + 1] - args.cu_seqlens_q[seq];
    const int64_t context = args.context_lens[seq];
    const bool own = args.causal || args.window > 0;  // a token sees its own position
    QUIRE_CHECK(queries >= 0 && context >= (own ? queries : queries > 0), "a row would see no position");
    const int64_t blocks = (context + args.kv.block_size - 1) / args.kv.block_size;
    QUIRE_CHECK(blocks <= args.max_blocks, "a context is longer than its block table");
    if (queries == 0) continue;
    const int64_t unread = seen_by(args, context, queries, 0).begin / args.kv.block_size;
    for (const int32_t page : args.block_tables.subspan(seq * args.max_blocks + unread, blocks - unread)) {
      QUIRE_CHECK(page >= 0 && page < args.kv.num_pages, "a block table names a page that does not exist");
    }
  }
  QUIRE_CHECK(args.cu_seqlens_q[seqs] <= args.q.rows);
}

AttentionItem make_item(int64_t seq, int64_t kv_head, const RowBlock& block, int64_t split_begin, int64_t split_end) {
  AttentionItem item;
  item.seq = static_cast<int32_t>(seq);
  item.kv_head = static_cast<int32_t>(kv_head);
  item.row_begin = static_cast<int32_t>(block.begin);
  item.row_end = static_cast<int32_t>(block.end);
  item.split_begin = static_cast<int32_t>(split_begin);
  item.split_end = static_cast<int32_t>(split_end);
  item.split_first = static_cast<int32_t>(block.split_begin());
  return item;
}

}  // namespace

int64_t attention_scratch_floats(int64_t head_dim, int64_t v_dim) {
  const int64_t padded = (v_dim + 15) / 16 * 16;
  const int64_t in_float = kAttentionTile * std::max(head_dim, padded)         // K or V as float
                           + kAttentionRows * (kMaxHeadDim + 16 + 2 * padded)  // q, o, o of earlier splits
                           + kAttentionRows * (16 + 16 + 2 + kAttentionTile);  // lanes of l and m, m and l, p
  const int64_t steps = (head_dim + 31) / 32;
  const int64_t in_tiles = 256 * (4 * steps + 2 * padded / 16 + 2)                  // K, V, p
                           + 256 * steps * kAttentionRowsMost / 16                  // q
                           + 16 * kAttentionTile + kAttentionFewRows * kMaxHeadDim  // scores, products
                           + kAttentionRowsMost * (2 * padded + 16 + 3);  // o, o of earlier splits, l, m and l
  return std::max(in_float, in_tiles + kAttentionFewRows * 32 * steps);
}

void AttentionPlan::build(const AttentionArgs& args, int threads, int64_t most_rows) {
  QUIRE_CHECK(most_rows > 0 && most_rows <= kAttentionRowsMost);
  check_sequences(args);
  items_.clear();
  merges_.clear();
  int64_t total = 0;
  for_each_row_block(args, most_rows, [&](int64_t, const RowBlock& b) { total += b.cost() * args.kv.num_kv_heads; });
  const int64_t target = std::max<int64_t>(1, total / (threads * kItemsPerThread));
  sized_.clear();
  merge_offsets_.clear();
  const auto add = [&](int64_t cost, const AttentionItem& item, int64_t partials) {
    sized_.push_back({cost, sized_.size(), item, partials});
  };
  int64_t floats = 0;
  for_each_row_block(args, most_rows, [&](int64_t seq, const RowBlock& block) {
    const int64_t first = block.split_begin();
    const int64_t splits = block.split_end() - first;
    const int64_t pieces = threads == 1 ? 1 : std::clamp<int64_t>(block.cost() / target, 1, splits);
    for (int64_t head = 0; head < args.kv.num_kv_heads; ++head) {
      if (pieces == 1) {
        add(block.cost(), make_item(seq, head, block, first, first + splits), -1);
        continue;
      }
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t begin = first + splits * piece / pieces;
        const int64_t end = first + splits * (piece + 1) / pieces;
        const int64_t cost = block.cost(begin * kAttentionSplit, end * kAttentionSplit);
        add(cost, make_item(seq, head, block, begin, end), floats);
      }
      const AttentionItem whole = make_item(seq, head, block, first, first + splits);
      merges_.push_back({whole.seq, whole.kv_head, whole.row_begin, whole.row_end, whole.split_first, nullptr});
      merge_offsets_.push_back(floats);
      floats += splits * (block.end - block.begin) * attention_partial_stride(args.kv.v_dim());
    }
  });

  if (static_cast<int64_t>(partials_.size()) < floats) partials_.resize(static_cast<size_t>(floats));
  // Not stable_sort, which allocates memory.
  std::sort(sized_.begin(), sized_.end(),
            [](const Sized& a, const Sized& b) { return a.cost != b.cost ? a.cost > b.cost : a.order < b.order; });
  for (const Sized& s : sized_) {
    items_.push_back(s.item);
    if (s.partials >= 0) items_.back().partials = partials_.data() + s.partials;
  }
  for (size_t i = 0; i + static_cast<size_t>(threads) < items_.size(); ++i) {
    items_[i].soon = &items_[i + static_cast<size_t>(threads)];
  }
  for (size_t i = 0; i < merges_.size(); ++i) merges_[i].partials = partials_.data() + merge_offsets_[i];
}

}  // namespace quire::cpu
