// SPDX-License-Identifier: Apache-2.0
// What the attention kernels of this folder share: addressing of rows and positions, and the arithmetic of one row. No
// kernels here.
//
// The arithmetic is that of the portable attention (attention_common.h): tiles of 64 positions, splits of 1024. Scores
// are a chain of k16 steps over head_dim of T(q * c). The sum of a row has four parts, t = (column % 8) / 2: l_t =
// fma(l_t, a, tree of the sums of pairs). o = o * a, then four k16 steps of T(p) V; a factor of one changes no bit and
// is skipped. Each split starts from zero, and splits are merged from left to right.
#pragma once

#include "kernels/compat/tile.h"
#include "kernels/cuda/hopper.cuh"

#define HOPPER_NONE as_float(0xff800000u)

// One sequence of the step.
struct HopperSequence {
  int first;        // the token that is its first query
  int queries;      // tokens
  int context;      // positions in the pages
  int first_split;  // of those that its queries see
  int splits;       // how many they see
};

// The first position that the token at `position` sees.
HOPPER_FN int hopper_low(const HopperAttentionParams& p, int position) {
  return p.window > 0 ? max(0, position - p.window + 1) : 0;
}

HOPPER_FN HopperSequence hopper_sequence(const HopperAttentionParams& p, int seq, const int* cu_seqlens,
                                         const int* context_lens) {
  HopperSequence s;
  s.first = cu_seqlens[seq];
  s.queries = cu_seqlens[seq + 1] - s.first;
  s.context = context_lens[seq];
  s.first_split = hopper_low(p, s.context - s.queries) / kHopperSplit;
  s.splits = (s.context + kHopperSplit - 1) / kHopperSplit - s.first_split;
  return s;
}

// The sequence that a token belongs to: cu_seqlens[i] <= token < cu_seqlens[i + 1].
HOPPER_FN int hopper_find_sequence(const HopperAttentionParams& p, const int* cu_seqlens, int token) {
  int low = 0, high = p.seqs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

HOPPER_FN float hopper_score(const HopperAttentionParams& p, float score) {
  return p.cap > 0.0f ? p.cap * q_tanh(score) : score;
}

// Adds a head's sink to the sum l of a row whose maximum is m; returns the factor for o.
HOPPER_FN float hopper_sink(const HopperAttentionParams& p, const float* sinks, int head, float m, float& l) {
  if (!p.has_sinks) return 1.0f;
  const float sink = sinks[head] * 1.44269504088896341f, most = max(m, sink);  // log2(e)
  const float left = q_exp2(m - most);
  l = fma(l, left, q_exp2(sink - most));
  return left;
}

// Byte offset of a position of KV head 0 from the layer's first page. REQUIRES: `position` is the first of eight
// positions in the same page.
HOPPER_FN i64 hopper_position(const HopperAttentionParams& p, const int* blocks, int position, int row_bytes) {
  const int block = position / p.block_size;
  return (i64)blocks[block] * p.page_stride + (i64)(position - block * p.block_size) * row_bytes;
}

// Writes T(q * c) of `rows` rows (query, head of the group), beginning with row `row0`, to shared memory, with
// `threads` threads. Absent rows, up to `count`, become zeros.
template <typename T, int D>
HOPPER_FN void hopper_load_queries(const HopperAttentionParams& p, const HopperSequence& s, const T* q, int kv_head,
                                   T* shared, int stride, int row0, int rows, int count, int thread, int threads) {
  const int group = p.heads / p.kv_heads;
  for (int i = thread; i < count * (D / 8); i += threads) {
    const int r = i / (D / 8), d = (i % (D / 8)) * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (r < rows) {
      const int row = row0 + r;
      const T* from = q + (i64)(s.first + row / group) * p.q_stride + (i64)(kv_head * group + row % group) * D + d;
      v = __ldcg((const uint4*)from);
      uint* words = (uint*)&v;
      UNROLL for (int j = 0; j < 4; j++) {
        const float low = to_f(from_bits16<T>((ushort)words[j])), high = to_f(from_bits16<T>((ushort)(words[j] >> 16)));
        words[j] = hopper_pack<T>(low * p.c, high * p.c);
      }
    }
    *(uint4*)(shared + r * stride + d) = v;
  }
}

// The sum of four pairs of weights, as a tree.
HOPPER_FN float hopper_tree(float e0, float e1, float e2, float e3) {
  return (e0 + e1) + (e2 + e3);
}

// Where the partial results of a row and split (counted from the first one that is seen) go: o, and m and l.
struct HopperScratch {
  float* o;
  float* ml;
};
HOPPER_FN HopperScratch hopper_scratch(const HopperAttentionParams& p, float* scratch, int tokens, int token, int head,
                                       int split, int head_dim) {
  const i64 at = ((i64)token * p.heads + head) * p.max_splits + split;
  HopperScratch s;
  s.o = scratch + at * head_dim;
  s.ml = scratch + (i64)tokens * p.heads * p.max_splits * head_dim + at * 2;
  return s;
}
