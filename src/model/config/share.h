// SPDX-License-Identifier: Apache-2.0
// Share: what one rank computes of a model, when several compute it together.
//
// Products are cut by their outputs, never by K, so that no sum crosses a rank and the bits are those of one rank.
// Attention is cut by KV head, recurrent layers by head or channel, experts by expert. The ranks of a stage (a
// contiguous range of layers) share its layers; where a product needs all columns of its input, they gather them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace quire::model {

struct DecoderConfig;

struct Share {
  int64_t rank = 0, ranks = 1;    // of the stage
  int64_t stage = 0, stages = 1;  // of the model
  int64_t first_layer = 0;        // of the stage; share_of() fills in this and the following
  int64_t model_layers = 0;       // of all stages
  // How many parts there are of what need not have one for each rank: 1, if all ranks compute the whole.
  int64_t kv_parts = 1, gdn_parts = 1, mamba2_parts = 1;

  bool gathers_alone = false;  // a single rank makes the calls of several, to measure them

  bool split() const { return ranks > 1 || gathers_alone; }
  bool first() const { return stage == 0; }
  bool last() const { return stage == stages - 1; }
  bool leads() const { return rank == 0 && stage == 0; }  // the rank that has the engine
  // Columns of a rank, of `n` columns of a product. The last ranks may have fewer: they repeat the last one.
  int64_t width(int64_t n) const { return (n + ranks - 1) / ranks; }
  // The part that this rank has, if there are fewer parts than ranks: neighbours have the same one.
  int64_t part_of(int64_t parts) const { return rank * parts / ranks; }
  // Rank e / width(experts) has expert e.
  int64_t first_expert(int64_t experts) const { return std::min(rank * width(experts), experts); }
  int64_t num_experts(int64_t experts) const {
    return std::min(first_expert(experts) + width(experts), experts) - first_expert(experts);
  }
};

// How many parts there are of `heads` heads of K and V: one per rank, or one per head if ranks have to share them.
int64_t head_parts(int64_t heads, int64_t ranks);
// The layers of a stage. REQUIRES: at least one layer per stage.
int64_t stage_begin(int64_t layers, int64_t stage, int64_t stages);

// The config of a rank's share: its layers, and the sizes that it computes itself. An Error says what does not divide.
Result<DecoderConfig> share_of(const DecoderConfig& whole, Share share);

}  // namespace quire::model
