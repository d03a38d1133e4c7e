// SPDX-License-Identifier: Apache-2.0
// Parameters of the attention kernels, and the cuts of their arithmetic.
#pragma once

#include "kernels/params/attention_cache.h"

enum {
  kAttentionPositions = 64,  // in a tile
  kAttentionSplitPositions = 1024,
  kAttentionRowTile = 16,  // rows of a matrix tile: heads of a group times tokens
  kAttentionRowTileF32 = 4,
  kAttentionThreads = 128,
  kAttentionMaxDim = 576  // of K and of V
};

// A threadgroup has `tokens_a_group` tokens of one sequence and `tile_heads` query heads of one kv head. Threadgroup x
// of the grid is (number of the group of tokens) * kv_heads * head_tiles + kv head * head_tiles + tile of heads.
struct AttentionParams {
  KvPages kv;
  i64 q_stride, out_stride;  // elements
  int seqs, max_blocks;
  int heads, group;                 // query heads, and those of one kv head
  int tile_heads, head_tiles;       // query heads in a tile, tiles for a kv head's query heads
  int tile_tokens;                  // in a matrix tile
  int tokens_a_group;               // in a threadgroup
  int by_sequence;                  // group i of tokens is sequence i; else it is searched for
  int mapped;                       // group i of tokens is (sequence, first token) of the map
  int first;                        // added to the grid's x
  int groups;                       // of tokens, in all launches; what is beyond has no work
  int least_queries, most_queries;  // sequences with more or fewer tokens are another launch's
  int splits;                       // > 0: one threadgroup a split, counted from the first one seen; 0: all in turn
  int partial_rows, partial_dim;    // of a slot in scratch
  int k_chunks, v_chunks;           // of 64 dims
  int k_steps;                      // of 16 dims
  int positions;                    // kAttentionPositions
  int causal, window;
  int has_sinks;
  float q_scale;  // scale * log2(e), or scale / soft_cap
  float cap;      // soft_cap * log2(e), or 0
};
