// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a layer (LayerConfig::feed_forward): a gated or plain MLP, or a mixture of experts.
#pragma once

#include "model/layers/decoder.h"

namespace quire::model {

class Loader;
struct Slice;

// Reads the weights of layer `index`.
Status load_feed_forward(Loader& loader, const LayerConfig& layer, int64_t index, DecoderLayer& out);
// Takes the memory that run_feed_forward() needs for a step of `tokens` tokens.
void reserve_feed_forward(const DecoderModel& model, const LayerConfig& layer, int64_t tokens,
                          ScratchAllocator& scratch);
// Returns whether the output was added to the residual stream (LayerOutput).
bool run_feed_forward(DecoderModel& model, const LayerContext& layer, const LayerInput& input,
                      const LayerOutput& output);

// One MLP: `intermediate` columns of this rank between its products, for which `gate_up` has room, and `all` for those
// of all ranks.
bool run_mlp(DecoderModel& model, const MlpWeights& mlp, int64_t intermediate, bool gated, const LayerInput& input,
             const Tensor& gate_up, const Tensor& all, const LayerOutput& output);
// Its weights, with `inner` columns on all ranks together; gate and up may be one tensor.
Status load_mlp(Loader& loader, std::vector<Slice> gate_up, int64_t inner, const std::string& down, MlpWeights& out);

// moe.cc
struct MoeScratch {
  Tensor router, out, normed, shared_gate, shared_gate_up, shared_all;
  // If ranks share the experts: their outputs [rows * k, hidden], some columns of them (Exchange::scatter_rows), and
  // the ids of this rank's own.
  Tensor choices, some_columns, own_ids;
  Tensor ids, weights;  // [rows, k]; ids are int32
};
MoeScratch take_moe_scratch(const DecoderModel& model, int64_t rows, ScratchAllocator& scratch);
Status load_moe(Loader& loader, int64_t index, MoeWeights& out);
// Returns whether the output was added to `hidden`, the residual stream (LayerOutput).
bool run_moe(DecoderModel& model, const MoeWeights& weights, const MoeScratch& scratch, const Tensor& x,
             const Tensor& hidden, const LayerOutput& output);
// Gemma 4: out = norm(out) + norm(experts(norm(hidden))), where `out` is the output of the layer's MLP.
void add_experts_beside(DecoderModel& model, const MoeWeights& weights, const MoeScratch& scratch, const Tensor& hidden,
                        const Tensor& out);

}  // namespace quire::model
