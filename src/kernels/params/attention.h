// SPDX-License-Identifier: Apache-2.0
// Parameters of the attention kernels, and the constants that fix the order of their arithmetic.
#pragma once

#include "kernels/params/attention_cache.h"

enum {
  kAttentionPositions = 64,  // positions in a tile
  kAttentionSplitPositions = 1024,
  kAttentionRowTile = 16,  // rows of a matrix tile: query heads of one KV head times tokens
  kAttentionRowTileF32 = 4,
  kAttentionThreads = 128,
  kAttentionMaxDim = 576,  // largest head size, of K and of V
  kAttentionTileScores = kAttentionRowTile * kAttentionPositions
};

// A threadgroup computes `tokens_a_group` tokens of one sequence for `tile_heads` query heads of one KV head.
// Threadgroup x of the grid has token group x / (kv_heads * head_tiles); the remainder is KV head * head_tiles + tile
// of heads.
struct AttentionParams {
  KvPages kv;
  i64 q_stride, out_stride;  // elements
  int seqs, max_blocks;
  int heads, group;                 // query heads in all, and per KV head
  int tile_heads, head_tiles;       // query heads in a tile, and tiles per KV head
  int tile_tokens;                  // tokens in a matrix tile
  int tokens_a_group;               // tokens per threadgroup
  int by_sequence;                  // token group i is sequence i; otherwise the kernel searches for its sequence
  int mapped;                       // token group i is the i-th pair (sequence, first token) of the map
  int first;                        // added to the grid's x
  int groups;                       // token groups of all launches together; threadgroups beyond them return at once
  int least_queries, most_queries;  // this launch serves the sequences whose number of tokens lies in this range
  // > 0: one threadgroup per split, counted from the first visible one; 0: one threadgroup takes all splits in turn.
  int splits;
  int partial_rows, partial_dim;  // shape of a slot in scratch
  int score_tiles;                // tiles of scores in scratch for each threadgroup of the grid's x
  int k_chunks, v_chunks;         // chunks of 64 dims
  int k_steps;                    // steps of 16 dims
  int positions;                  // always kAttentionPositions (see attention_convert)
  int causal, window;
  int has_sinks;
  int max_distance;  // > 0: scores have a bias by distance, which the buffer of the sinks holds
  float q_scale;     // scale * log2(e), or scale / soft_cap
  float cap;         // soft_cap * log2(e), or 0
};
