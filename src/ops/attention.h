// SPDX-License-Identifier: Apache-2.0
// Varlen paged attention, and reshape_and_cache, which writes K and V to pages before attention reads them.
//
// Contract of attention. Token t of a sequence sees the positions 0..p(t) of its own sequence (causal) or all of its
// context, read from pages alone. Cuts are by absolute position: tiles of kAttentionTile positions, splits of
// kAttentionSplit. Scores are kept in units of ln 2, so that weights are powers of two. For one row (token, head):
//   query : qs[d] = q[d] * c, where c = scale * log2(e), each product rounded to float
//   score : s[j]  = one fma chain over head_dim ascending from +0 of qs[d] * float(k[j][d])
//   tile  : m' = max(m, max s); a = e(m - m'); p[j] = e(s[j] - m'), where e(x) = 2^max(x, -100) is exp2_clamped of
//           backend/cpu/simd_math.h; l[i] = fma(l[i], a, p[i] + p[i+16] + ...) for 16 lanes i, positions of the tile
//           ascending; o = o*a, then for j ascending o = fma(p[j], float(v[j]), o). Masked positions are left out,
//           never multiplied by zero.
//   split : the recurrence starts anew (m = -inf, l = 0, o = 0) at each split, and its l is folded 8, 4, 2, 1 at its
//           end; splits merge left to right: M = max(m1, m2); l = fma(l1, e(m1-M), l2*e(m2-M)); o likewise.
//   out   = o / l
// With AMX and BF16 pages, the rounded form: qs, K, V and p are rounded to bf16 (ties to even; l is summed of p
// before). A score is a sum over head_dim in steps of 32, as ops/linear.h's rounded form adds them. p V is the sum over
// the tile's 64 positions in two such steps from +0, unseen ones as zeros, and o = fma(o, a, that sum).
// So a row's bits depend on its own sequence and position: not on the other rows, the chunk, the block size or the
// threads. A row whose scores overflow or hold a NaN is NaN; no other row is.
#pragma once

#include <span>

#include "ops/tensor.h"

namespace quire {

constexpr int64_t kAttentionTile = 64;
constexpr int64_t kAttentionSplit = 256;  // short, so that one short sequence still gives every thread work
constexpr int64_t kMaxHeadDim = 256;

// What a page of one layer holds: the arguments of Backend::kv_page_bytes.
struct KvPageShape {
  DType dtype = DType::kF16;
  int64_t block_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;    // of K
  int64_t v_head_dim = 0;  // of V; 0: as K
  bool v_in_k = false;
};

// The pages of one layer. A page's bytes are the contract; the inner layout is the backend's.
struct KvLayer {
  void* pages = nullptr;    // page b of this layer starts at pages + b * page_stride
  int64_t page_stride = 0;  // bytes
  int64_t num_pages = 0;
  int64_t block_size = 0;  // positions in a page, a multiple of 8
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;       // of K
  int64_t v_head_dim = 0;     // of V; 0: as K
  bool v_in_k = false;        // MLA: there is no V in the page, it is the first v_head_dim elements of K
  DType dtype = DType::kF16;  // F32, F16, BF16, I8, F8E4M3 or F8E5M2

  int64_t v_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

struct AttentionArgs {
  Tensor q;  // [tokens, heads*head_dim], rope applied
  KvLayer kv;
  int64_t num_heads = 0;  // a multiple of kv.num_kv_heads
  float scale = 0;
  bool causal = true;
  int64_t window = 0;                     // > 0: token at p sees p - window + 1 .. p
  float soft_cap = 0;                     // > 0: score s becomes cap * tanh(s / cap)
  const float* sinks = nullptr;           // [heads]: a score that takes part in the softmax and has no value
  const float* slopes = nullptr;          // [heads]: ALiBi, slope * (j - p) is added to the score of position j
  std::span<const int32_t> cu_seqlens_q;  // [seqs+1]: rows of q of each sequence
  std::span<const int32_t> context_lens;  // [seqs]: positions in the pages after this step's were written
  std::span<const int32_t> block_tables;  // [seqs, max_blocks]
  int64_t max_blocks = 0;
  Tensor out;  // [tokens, heads*v_dim()]; must not overlap q
};

struct ReshapeAndCacheArgs {
  Tensor k;                               // [tokens, kv_heads*head_dim], rope applied
  Tensor v;                               // [tokens, kv_heads*v_dim()]; no data where V is in K
  std::span<const int64_t> slot_mapping;  // [tokens]: page*block_size + offset; negative: not written
  KvLayer kv;
};

}  // namespace quire
