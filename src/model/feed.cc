// SPDX-License-Identifier: Apache-2.0
// What follows a layer's mixer: a gated or plain MLP, or a mixture of experts.
#include <algorithm>

#include "model/decoder.h"

namespace quire::model {
namespace {

// Rows of the inner activations that exist at a time: enough to be busy, few enough to be small.
int64_t feed_rows(const Backend& backend) {
  return backend.host_memory() ? 512 : 4096;
}

}  // namespace

DecoderModel::FeedScratch DecoderModel::feed_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const {
  const int64_t rows = std::min(tokens, feed_rows(backend_));
  FeedScratch out;
  const bool beside = config_.moe.beside_mlp;
  if (layer.feed == Feed::kMoe || beside) {
    out.router = carver.take(rows, config_.moe.experts, DType::kF32);
    out.ids = carver.take(rows, config_.moe.k, DType::kF32);
    out.weights = carver.take(rows, config_.moe.k, DType::kF32);
    out.out = carver.take(rows, config_.hidden, activation_);
    if (beside) out.normed = carver.take(rows, config_.hidden, activation_);
  }
  switch (layer.feed) {
    case Feed::kGated:
      out.gate_up = carver.take(rows, 2 * config_.intermediate_of(layer), activation_);
      break;
    case Feed::kPlain:
      out.gate_up = carver.take(rows, config_.intermediate_of(layer), activation_);
      break;
    case Feed::kMoe:
      if (config_.moe.shared_intermediate > 0) {
        out.gate_up = carver.take(rows, (config_.moe.gated ? 2 : 1) * config_.moe.shared_intermediate, activation_);
      }
      if (config_.moe.shared_gate) out.shared_gate = carver.take(rows, 1, DType::kF32);
      break;
    case Feed::kNone:
      break;
  }
  return out;
}

void DecoderModel::run_feed(const LayerContext& layer, const Source& source, const Sink& sink) {
  // Parts of about equal size: 513 rows are not 512 and 1. One part where the norm is joined: it reads what the parts
  // before would have added to.
  const int64_t all = source.x.rows;
  const int64_t parts = (all + feed_rows(backend_) - 1) / feed_rows(backend_);
  const int64_t part = ((all + parts - 1) / parts + 15) / 16 * 16;
  const bool plain = layer.config.feed != Feed::kMoe && !config_.moe.beside_mlp;
  const bool joined = parts == 1 && plain && joins_norm(source, layer.weights.mlp.gate_up);
  const Source input = joined ? source : Source{normed(source)};
  for (int64_t first = 0; first < all; first += part) {
    const int64_t count = std::min(part, all - first);
    Carver carver(scratch_.shared);
    const FeedScratch scratch = feed_scratch(carver, layer.config, count);
    const Source from{input.x.some_rows(first, count), input.norm};
    const Sink to{sink.out.some_rows(first, count), sink.may_add && parts == 1 && plain};
    if (layer.config.feed == Feed::kMoe) {
      run_moe(layer.weights, scratch, from.x, to.out);
    } else {
      run_mlp(layer.weights.mlp, config_.intermediate_of(layer.config), layer.config.feed == Feed::kGated, from,
              scratch.gate_up, to);
      if (config_.moe.beside_mlp) {
        add_experts_beside(layer.weights.moe, scratch, step_hidden_.some_rows(first, count), to.out);
      }
    }
    sink.added = to.added;
  }
}

void DecoderModel::run_mlp(const MlpWeights& mlp, int64_t intermediate, bool gated, const Source& source,
                           const Tensor& gate_up, const Sink& sink) {
  const Tensor gate = gate_up.columns(0, intermediate);
  if (gated) {
    const bool joined = joins_norm(source, mlp.gate_up);
    const FusedNorm form{joined ? source.norm->weight.data() : nullptr, config_.norm_eps};
    mlp.gate_up.run_gated(backend_, joined ? source.x : normed(source), config_.activation, gate_up, gate,
                          {joined ? &form : nullptr});
  } else {
    begin(mlp.gate_up, source, gate);
    backend_.activation({gate, config_.activation, gate});
  }
  finish(mlp.down, gate, sink);
}

// Chooses experts by router_x, runs them on x, and leaves their sum in scratch.out.
void DecoderModel::run_experts(const MoeWeights& weights, const FeedScratch& scratch, const Tensor& router_x,
                               const Tensor& x) {
  const MoeConfig& c = config_.moe;
  weights.router.run(backend_, router_x, scratch.router);
  auto* ids = static_cast<int32_t*>(scratch.ids.data);
  MoeRouteArgs route;
  route.logits = scratch.router;
  route.k = c.k;
  route.score = c.score;
  route.choice_bias = weights.choice_bias.data();
  route.groups = c.groups;
  route.groups_kept = c.groups_kept;
  route.group_score = c.group_score;
  route.normalise = c.normalise;
  route.sum_epsilon = c.sum_epsilon;
  route.scale = c.scale;
  route.jitter = c.jitter;
  route.expert_scale = weights.expert_scale.data();
  route.ids = ids;
  route.weights = scratch.weights.f32();
  backend_.moe_route(route);

  MoeExpertsArgs experts;
  experts.x = x;
  experts.ids = ids;
  experts.weights = scratch.weights.f32();
  experts.k = c.k;
  experts.gated = c.gated;
  experts.gate_up = weights.gate_up_views;
  experts.down = weights.down_views;
  experts.gate_up_bias = weights.gate_up_bias_views;
  experts.down_bias = weights.down_bias_views;
  experts.activation = config_.activation;
  experts.limit = c.limit;
  experts.out = scratch.out;
  backend_.moe_experts(experts);
}

void DecoderModel::run_moe(const DecoderLayer& layer, const FeedScratch& scratch, const Tensor& x, const Tensor& out) {
  const MoeConfig& c = config_.moe;
  const MoeWeights& weights = layer.moe;
  run_experts(weights, scratch, x, x);
  if (c.shared_intermediate == 0) {
    backend_.scale({scratch.out, 1.0f, {}, out});
    return;
  }
  if (c.shared_gate) {
    weights.shared_gate.run(backend_, x, scratch.shared_gate);
    backend_.activation({scratch.shared_gate, Activation::kSigmoid, scratch.shared_gate});
  }
  run_mlp(weights.shared, c.shared_intermediate, c.gated, {x}, scratch.gate_up, {out});
  if (c.shared_gate) {
    backend_.scale({out, 1.0f, {scratch.shared_gate.f32(), static_cast<size_t>(out.rows)}, out});
  }
  backend_.residual_add({out, scratch.out, 1.0f, out});
}

// out = norm(out) + norm(experts of norm(hidden)), with a router that sees a norm of its own.
void DecoderModel::add_experts_beside(const MoeWeights& weights, const FeedScratch& scratch, const Tensor& hidden,
                                      const Tensor& out) {
  norm(out, weights.mlp_out_norm, config_.hidden, out);
  // The router's input stands where the experts' output will: the choice is made before they run.
  norm(hidden, weights.router_norm, config_.hidden, scratch.out);
  norm(hidden, weights.norm, config_.hidden, scratch.normed);
  run_experts(weights, scratch, scratch.out, scratch.normed);
  norm(scratch.out, weights.out_norm, config_.hidden, scratch.out);
  backend_.residual_add({scratch.out, out, 1.0f, out});
}

}  // namespace quire::model
