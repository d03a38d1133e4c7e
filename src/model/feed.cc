// SPDX-License-Identifier: Apache-2.0
// What follows a layer's mixer: a gated or plain MLP, or a mixture of experts.
#include <algorithm>

#include "model/decoder.h"

namespace quire::model {
namespace {

// Rows of the inner activations that exist at a time: enough to be busy, few enough to be small.
constexpr int64_t kFeedRows = 512;

}  // namespace

DecoderModel::FeedScratch DecoderModel::feed_scratch(Carver& carver, const LayerConfig& layer, int64_t tokens) const {
  const int64_t rows = std::min(tokens, kFeedRows);
  FeedScratch out;
  const bool beside = config_.moe.beside_mlp;
  if (layer.feed == Feed::kMoe || beside) {
    out.router = carver.take(rows, config_.moe.experts);
    out.ids = carver.take(rows, config_.moe.k);
    out.weights = carver.take(rows, config_.moe.k);
    out.out = carver.take(rows, config_.hidden);
    if (beside) out.normed = carver.take(rows, config_.hidden);
  }
  switch (layer.feed) {
    case Feed::kGated:
      out.gate_up = carver.take(rows, 2 * config_.intermediate_of(layer));
      break;
    case Feed::kPlain:
      out.gate_up = carver.take(rows, config_.intermediate_of(layer));
      break;
    case Feed::kMoe:
      if (config_.moe.shared_intermediate > 0) {
        out.gate_up = carver.take(rows, (config_.moe.gated ? 2 : 1) * config_.moe.shared_intermediate);
      }
      if (config_.moe.shared_gate) out.shared_gate = carver.take(rows, 1);
      break;
    case Feed::kNone:
      break;
  }
  return out;
}

void DecoderModel::run_feed(const LayerContext& layer, const Tensor& x, const Tensor& out) {
  // Parts of about equal size: 513 rows are not 512 and 1.
  const int64_t parts = (x.rows + kFeedRows - 1) / kFeedRows;
  const int64_t part = ((x.rows + parts - 1) / parts + 15) / 16 * 16;
  for (int64_t first = 0; first < x.rows; first += part) {
    const int64_t count = std::min(part, x.rows - first);
    Carver carver(scratch_.shared);
    const FeedScratch scratch = feed_scratch(carver, layer.config, count);
    const Tensor from = some_rows(x, first, count);
    const Tensor to = some_rows(out, first, count);
    if (layer.config.feed == Feed::kMoe) {
      run_moe(layer.weights, scratch, from, to);
    } else {
      run_mlp(layer.weights.mlp, config_.intermediate_of(layer.config), layer.config.feed == Feed::kGated, from,
              scratch.gate_up, to);
      if (config_.moe.beside_mlp) {
        add_experts_beside(layer.weights.moe, scratch, some_rows(step_hidden_, first, count), to);
      }
    }
  }
}

void DecoderModel::run_mlp(const MlpWeights& mlp, int64_t intermediate, bool gated, const Tensor& x,
                           const Tensor& gate_up, const Tensor& out) {
  const Tensor gate = gate_up.columns(0, intermediate);
  if (gated) {
    mlp.gate_up.run_gated(backend_, x, config_.activation, gate_up, gate);
  } else {
    mlp.gate_up.run(backend_, x, gate);
    backend_.activation({gate, config_.activation, gate});
  }
  mlp.down.run(backend_, gate, out);
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
  route.choice_bias = weights.choice_bias.empty() ? nullptr : weights.choice_bias.data();
  route.groups = c.groups;
  route.groups_kept = c.groups_kept;
  route.group_score = c.group_score;
  route.normalise = c.normalise;
  route.sum_epsilon = c.sum_epsilon;
  route.scale = c.scale;
  route.jitter = c.jitter;
  route.expert_scale = weights.expert_scale.empty() ? nullptr : weights.expert_scale.data();
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
  run_mlp(weights.shared, c.shared_intermediate, c.gated, x, scratch.gate_up, out);
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
