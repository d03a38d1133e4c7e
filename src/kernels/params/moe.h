// SPDX-License-Identifier: Apache-2.0
// Parameters of the mixture-of-experts kernels in kernels/moe.h.
#pragma once

#include "kernels/compat/types.h"
#include "kernels/params/lora.h"

enum { kMoeMaxExperts = 1024, kMoeMaxChosen = 64, kMoeThreads = 128 };

// The values of quire::MoeScore.
enum { kMoeSoftmax = 0, kMoeSigmoid = 1, kMoeSoftmaxOfChosen = 2, kMoeSparseMixer = 3 };

struct MoeRouteParams {
  i64 stride;  // elements between rows of logits
  int experts, k;
  int score;
  int groups, groups_kept;
  int top_two;  // the score of a group is the sum of its two best experts
  int biased, scaled, normalise;
  float sum_epsilon, scale, jitter;
};

// The order of the choices: sorted by expert, ascending within an expert, each expert's rows padded with -1 to whole
// tiles.
struct MoeOrderParams {
  int choices;  // choices of all tokens together
  int experts;
  int tile_rows;
  int max_tiles;  // tiles that the order has room for; unused ones at the end get the expert -1
};

// The choices of rows with an adapter, sorted by expert and adapter. A choice's key is expert * slots + slot, or -1.
struct MoeLoraKeysParams {
  int listed;  // rows of the step
  int first;   // the one that is row 0 of this call
  int tokens, k, slots;
};
struct MoeLoraPlaceParams {
  MoeOrderParams order;  // of keys instead of experts; a tile is a run of kLoraRows
  int slots;
  int placed;  // 1: the row of choice i is places[i]; otherwise i
};

struct MoeCombineParams {
  i64 y_stride, out_stride;
  int k;
  int columns;
  int sorted;   // row places[i] of y belongs to choice i; otherwise row i
  int aligned;  // rows of y and out allow loads and stores of four elements
};
