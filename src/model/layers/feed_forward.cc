// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a layer, in parts of its rows, and the MLP.
#include "model/layers/feed_forward.h"

#include <algorithm>

#include "model/load/loader.h"

namespace quire::model {
namespace {

// Rows of the inner activations that exist at a time: enough to use all cores, few enough to stay small.
int64_t max_rows(const Backend& backend) {
  return backend.host_memory() ? 512 : 4096;
}

bool has_experts(const DecoderConfig& config, const LayerConfig& layer) {
  return layer.feed_forward == FeedForward::kMoe || config.moe.beside_mlp;
}

bool has_mlp(const LayerConfig& layer) {
  return layer.feed_forward == FeedForward::kGated || layer.feed_forward == FeedForward::kPlain;
}

struct FeedForwardScratch {
  MoeScratch moe;
  Tensor gate_up;
  Tensor all;  // room for the columns of all ranks
};

FeedForwardScratch take_feed_forward_scratch(const DecoderModel& model, const LayerConfig& layer, int64_t tokens,
                                             ScratchAllocator& scratch) {
  const int64_t rows = std::min(tokens, max_rows(model.backend()));
  FeedForwardScratch out;
  if (has_experts(model.config(), layer)) out.moe = take_moe_scratch(model, rows, scratch);
  if (has_mlp(layer)) {
    const int64_t matrices = layer.feed_forward == FeedForward::kGated ? 2 : 1;
    const int64_t inner = model.config().intermediate_of(layer);
    out.gate_up = scratch.take(rows, matrices * inner, model.activation());
    const Share& share = model.config().share;
    if (share.split()) out.all = scratch.take(rows, share.ranks * inner, model.activation());
  }
  return out;
}

}  // namespace

Status load_feed_forward(Loader& loader, const LayerConfig& layer, int64_t index, DecoderLayer& out) {
  const DecoderConfig& config = loader.config();
  if (has_experts(config, layer)) QUIRE_TRY(load_moe(loader, index, out.moe));
  if (!has_mlp(layer)) return {};
  const int64_t inner = config.intermediate_of(layer);
  std::vector<Slice> gate_up = {{loader.name(Part::kGate, index), inner}, {loader.name(Part::kUp, index), inner}};
  if (config.fused_gate_up) gate_up = {{loader.name(Part::kGateUp, index), 2 * inner}};
  if (layer.feed_forward == FeedForward::kPlain) gate_up = {{loader.name(Part::kUp, index), inner}};
  return load_mlp(loader, std::move(gate_up), inner, loader.name(Part::kDown, index), out.mlp);
}

Status load_mlp(Loader& loader, std::vector<Slice> gate_up, int64_t inner, const std::string& down, MlpWeights& out) {
  const DecoderConfig& config = loader.config();
  if (loader.share().split() && gate_up.size() == 1 && gate_up[0].rows == 2 * inner) {  // each half is cut
    const std::string name = gate_up[0].prefix;
    gate_up = {{name, inner, strided_rows(0, inner, 0, 1), 2 * inner},
               {name, inner, strided_rows(inner, inner, 0, 1), 2 * inner}};
  }
  for (Slice& slice : gate_up) slice = loader.cut_slice(std::move(slice));
  QUIRE_ASSIGN(out.gate_up, loader.linear(gate_up, config.hidden, config.mlp_bias));
  QUIRE_ASSIGN(out.down, loader.linear({loader.cut_slice({down, config.hidden})}, inner, config.mlp_bias));
  return {};
}

void reserve_feed_forward(const DecoderModel& model, const LayerConfig& layer, int64_t tokens,
                          ScratchAllocator& scratch) {
  take_feed_forward_scratch(model, layer, tokens, scratch);
}

bool run_feed_forward(DecoderModel& model, const LayerContext& layer, const LayerInput& input,
                      const LayerOutput& output) {
  // Parts of about equal size: 513 rows are not 512 and 1. There is one part if the norm is joined to the product,
  // which would otherwise read rows that an earlier part has added to.
  const int64_t all = input.x.rows;
  const int64_t parts = (all + max_rows(model.backend()) - 1) / max_rows(model.backend());
  const int64_t part = ((all + parts - 1) / parts + 15) / 16 * 16;
  const bool plain = !has_experts(model.config(), layer.config);
  const bool joined = parts == 1 && plain && model.joins_norm(input, layer.weights.mlp.gate_up);
  const LayerInput from = joined ? input : LayerInput{model.normed(input)};
  bool added = false;
  for (int64_t first = 0; first < all; first += part) {
    const int64_t count = std::min(part, all - first);
    ScratchAllocator allocator = model.scratch();
    const FeedForwardScratch scratch = take_feed_forward_scratch(model, layer.config, count, allocator);
    model.select_rows(first);
    const Tensor x = from.x.some_rows(first, count);
    const Tensor out = output.out.some_rows(first, count);
    if (layer.config.feed_forward == FeedForward::kMoe) {
      added = run_moe(model, layer.weights.moe, scratch.moe, x, model.residual().some_rows(first, count),
                      {out, output.may_add});
      continue;
    }
    added = run_mlp(model, layer.weights.mlp, model.config().intermediate_of(layer.config),
                    layer.config.feed_forward == FeedForward::kGated, {x, from.norm}, scratch.gate_up, scratch.all,
                    {out, output.may_add && parts == 1 && plain});
    if (model.config().moe.beside_mlp) {
      add_experts_beside(model, layer.weights.moe, scratch.moe, model.residual().some_rows(first, count), out);
    }
  }
  model.select_rows(0);
  return added;
}

bool run_mlp(DecoderModel& model, const MlpWeights& mlp, int64_t intermediate, bool gated, const LayerInput& input,
             const Tensor& gate_up, const Tensor& all, const LayerOutput& output) {
  const DecoderConfig& config = model.config();
  const Tensor gate = gate_up.columns(0, intermediate);
  if (gated) {
    const bool joined = model.joins_norm(input, mlp.gate_up);
    const FusedNorm form{joined ? input.norm->weight.data() : nullptr, config.norm_eps};
    mlp.gate_up.run_gated(model.backend(), joined ? input.x : model.normed(input), config.activation, gate_up, gate,
                          {joined ? &form : nullptr});
  } else {
    model.project_in(mlp.gate_up, input, gate);
    model.backend().activation({gate, config.activation, gate});
  }
  return model.project_out(mlp.down, model.gathered(gate, all, mlp.down.in_dim()), output);
}

}  // namespace quire::model
