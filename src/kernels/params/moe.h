// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels of mixtures of experts, kernels/moe.h.
#pragma once

#include "kernels/compat/types.h"

enum { kMoeMaxExperts = 1024, kMoeMaxChosen = 64, kMoeThreads = 128 };

// As quire::MoeScore counts.
enum { kMoeSoftmax = 0, kMoeSigmoid = 1, kMoeSoftmaxOfChosen = 2, kMoeSparseMixer = 3 };

struct MoeRouteParams {
  i64 stride;  // of the logits
  int experts, k;
  int score;
  int groups, groups_kept;
  int top_two;  // a group is judged by the sum of its two best
  int biased, scaled, normalise;
  float sum_epsilon, scale, jitter;
};

// The order of the choices: sorted by expert, ascending within one, each expert's share padded with -1 to whole tiles.
struct MoeOrderParams {
  int choices;  // of all tokens
  int experts;
  int tile_rows;
  int max_tiles;  // that the order has room for; those past the last one have the expert -1
};

struct MoeCombineParams {
  i64 y_stride, out_stride;
  int k;
  int columns;
};
