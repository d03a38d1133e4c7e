// SPDX-License-Identifier: Apache-2.0
// Varlen paged attention, and reshape_and_cache, which writes K and V to pages before attention reads them.
//
// Contract of attention. Token t of a sequence has the position p = context - queries + t. It sees the positions 0..p
// of its own sequence (causal) or all of its context; with a window w, only those above p - w (and, if not causal,
// below p + w). K and V are read from pages alone, and only from pages with a position that a row of the call sees:
// block table entries before a window may hold anything. The context is divided by absolute position, whatever the
// window: into tiles of kAttentionTile positions and splits of kAttentionSplit. This is the online softmax of
// FlashAttention, with partial results per split as in Flash-Decoding. Scores are kept in units of ln 2, so that
// weights are powers of two; L is log2(e) as a float. For one row (token, head), every operation rounded to float:
//   query : qs[d] = q[d] * c, where c = scale * L, or scale / soft_cap where there is a cap
//   score : s[j]  = one fma chain over head_dim ascending from +0 of qs[d] * float(k[j][d])
//           soft cap: s[j] = (soft_cap * L) * tanh(s[j])
//           bias by distance: s[j] = fma(bias[head][clamp(j - p) + max_distance], L, s[j])
//   tile  : m' = max(m, max s); a = e(m - m'); p[j] = e(s[j] - m'), where e(x) = 2^max(x, -100) is exp2_clamped of
//           backend/cpu/simd_math.h, as tanh is its tanh; l[i] = fma(l[i], a, p[i] + p[i+16] + ...) for 16 lanes i,
//           positions of the tile ascending; o = o*a, then for j ascending o = fma(p[j], float(v[j]), o). Positions
//           that the row does not see are left out, never multiplied by zero; a tile without any changes nothing.
//   split : the recurrence starts anew (m = -inf, l = 0, o = 0) at each split, and its l is folded 8, 4, 2, 1 at its
//           end; splits that hold a position the row sees merge left to right: M = max(m1, m2);
//           l = fma(l1, e(m1-M), l2*e(m2-M)); o likewise.
//   sink  : where there are sinks, z = sink * L joins last, as a split of m = z, l = 1, o = 0: M = max(m, z);
//           l = fma(l, e(m-M), e(z-M)); o = o * e(m-M)
//   out   = o / l
// With AMX and pages of BF16, I8 or F8, the rounded form: qs, K, V and p are rounded to bf16 (ties to even; l sums the
// p before rounding). A score is a sum over head_dim in steps of 32, added as in the rounded form of ops/linear.h. p V
// is the sum over the tile's 64 positions in two such steps from +0, with zeros for positions that the row does not
// see, and o = fma(o, a, p V). Of I8 pages it multiplies codes, which are exact: a score is the sum times K's scale,
// and p[j] times V's scale is rounded. So the bits of a row depend on its own sequence and position, not on the other
// rows, the chunk, the block size or the threads. A row whose scores overflow or contain a NaN becomes NaN; others do
// not.
//
// What a page stores, and so the K and V that attention sees: F32, F16, BF16: rounded to nearest even. F8E4M3, F8E5M2:
// the same, with magnitudes above the largest finite value clamped to it; NaN stays. I8: for each (token, kv head), K
// and V separately, a float scale = amax / 127 and codes x / scale rounded half to even; the value is
// float(code) * scale. An amax below 2^-100 counts as zero (scale and codes are 0); if an element is not finite, the
// scale is NaN and the codes are 0.
#pragma once

#include <span>

#include "ops/tensor.h"

namespace quire {

constexpr int64_t kAttentionTile = 64;
constexpr int64_t kAttentionSplit = 256;  // short, so that one short sequence still gives every thread work
constexpr int64_t kMaxHeadDim = 640;      // the largest head of K and of V
constexpr int64_t kKvBlockStep = 8;       // a page has a multiple of so many positions

// What a page of one layer holds: the arguments of Backend::kv_page_bytes.
struct KvPageShape {
  DType dtype = DType::kF16;
  int64_t block_size = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;    // of K
  int64_t v_head_dim = 0;  // of V; 0: head_dim
  bool v_in_k = false;
};

// The pages of one layer. Only the size of a page is fixed here; each backend has its own layout inside it.
struct KvLayer {
  void* pages = nullptr;    // page b of this layer starts at pages + b * page_stride
  int64_t page_stride = 0;  // bytes
  int64_t num_pages = 0;
  int64_t block_size = 0;  // positions per page, a multiple of kKvBlockStep
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;       // of K
  int64_t v_head_dim = 0;     // of V; 0: head_dim
  bool v_in_k = false;        // MLA: the page has no V; V is the first v_head_dim elements of K
  DType dtype = DType::kF16;  // F32, F16, BF16, I8, F8E4M3 or F8E5M2

  int64_t v_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

struct AttentionArgs {
  Tensor q;  // [tokens, heads*head_dim], rope applied
  KvLayer kv;
  int64_t num_heads = 0;  // a multiple of kv.num_kv_heads
  float scale = 0;
  bool causal = true;
  int64_t window = 0;            // > 0: token at p sees p - window + 1 .. p
  float soft_cap = 0;            // > 0: score s becomes cap * tanh(s / cap)
  const float* sinks = nullptr;  // [heads]: a score that takes part in the softmax and has no value
  // MPNet: what a score gets by the distance j - p, which is clamped to max_distance on both sides:
  // [heads, 2 * max_distance + 1]. On a CPU with F32 pages alone; not beside sinks on a GPU.
  const float* distance_bias = nullptr;
  int64_t max_distance = 0;
  std::span<const int32_t> cu_seqlens_q;  // [seqs+1]: rows of q of each sequence
  std::span<const int32_t> context_lens;  // [seqs]: positions in the pages after this step's were written
  std::span<const int32_t> block_tables;  // [seqs, max_blocks]
  int64_t max_blocks = 0;
  Tensor out;  // [tokens, heads*v_dim()]; must not overlap q
};
void check(const AttentionArgs& args);

struct ReshapeAndCacheArgs {
  Tensor k;                               // [tokens, kv_heads*head_dim], rope applied
  Tensor v;                               // [tokens, kv_heads*v_dim()]; no data where V is in K
  std::span<const int64_t> slot_mapping;  // [tokens]: page*block_size + offset; negative: not written
  KvLayer kv;
};
void check(const ReshapeAndCacheArgs& args);
void check_indices(const ReshapeAndCacheArgs& args);

// The steps between the projection and attention as one op, where Backend::joins_qkv(): an rms_norm of each head of q
// and k (where there is a weight), then rope; q stays in place, k and v are written to their pages. The bits are those
// of the separate ops.
struct QkvToCacheArgs {
  Tensor q, k, v;  // [tokens, heads*head_dim], as parts of one projection
  int64_t num_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 0;
  int64_t rot_dim = 0;  // 0: no rope
  bool interleaved = false;
  const float* cos_table = nullptr;  // [positions, rot_dim/2]
  const float* sin_table = nullptr;
  std::span<const int32_t> positions;     // [tokens]
  std::span<const int64_t> slot_mapping;  // [tokens]
  KvLayer kv;
};
void check(const QkvToCacheArgs& args);

// The same for MLA, where Backend::joins_mla(): an rms_norm of the latent vector and rope of the key behind it, which
// are written to their page, and rope of the end of each head of q, which goes to the end of that head of q_latent. The
// bits are those of the separate ops; q and latent stay as they are.
struct MlaToCacheArgs {
  Tensor q;         // [tokens, heads*(any + rot_dim)]
  Tensor latent;    // [tokens, kv.head_dim]: kv.v_dim() elements of the latent vector, then rot_dim of the key
  Tensor q_latent;  // [tokens, heads*kv.head_dim]
  int64_t num_heads = 0;
  const float* norm = nullptr;  // [kv.v_dim()]
  float eps = 0;
  int64_t rot_dim = 0;
  bool interleaved = false;
  const float* cos_table = nullptr;  // [positions, rot_dim/2]
  const float* sin_table = nullptr;
  std::span<const int32_t> positions;     // [tokens]
  std::span<const int64_t> slot_mapping;  // [tokens]
  KvLayer kv;                             // with V in K, and one head
};
void check(const MlaToCacheArgs& args);

}  // namespace quire
