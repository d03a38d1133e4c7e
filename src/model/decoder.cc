// SPDX-License-Identifier: Apache-2.0
// The frame of the forward pass: embed, layers, and the head on the rows that are wanted.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>

namespace quire::model {
namespace {

// MLA is scaled by what a query and a key have in common, and by YaRN once more.
float scale_of(const DecoderConfig& config) {
  if (config.attention_scale != 0) return config.attention_scale;
  const bool latent = config.mla.kv_rank > 0;
  const int64_t dim = latent ? config.mla.nope_dim + config.mla.rope_dim : config.head_dim;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

}  // namespace

size_t DecoderWeights::bytes() const {
  const auto of = [](const std::vector<Packed>& matrices) {
    size_t total = 0;
    for (const Packed& matrix : matrices) total += matrix->bytes();
    return total;
  };
  size_t total = embedding->bytes() + per_layer_projection.bytes();
  if (per_layer_embedding != nullptr) total += per_layer_embedding->bytes();
  if (&head.first() != embedding.get()) total += head.bytes();
  for (const DecoderLayer& layer : layers) {
    total += layer.attention.qkv.bytes() + layer.attention.o.bytes();
    total += layer.mla.q_a.bytes() + layer.mla.q.bytes() + layer.mla.kv_a.bytes() + layer.mla.o.bytes();
    total += of(layer.mla.k_up) + of(layer.mla.v_up) + layer.recurrent.in.bytes() + layer.recurrent.out.bytes();
    total += layer.mlp.gate_up.bytes() + layer.mlp.down.bytes() + layer.moe.router.bytes();
    total += of(layer.moe.gate_up) + of(layer.moe.down) + layer.moe.shared_gate.bytes();
    total += layer.moe.shared.gate_up.bytes() + layer.moe.shared.down.bytes();
    total += layer.per_layer_input.gate.bytes() + layer.per_layer_input.projection.bytes();
  }
  return total;
}

DecoderModel::DecoderModel(DecoderConfig config, DecoderWeights weights, int64_t max_model_len, Backend& backend)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      head_norm_(weights_.final_norm),
      ones_(static_cast<size_t>(std::max(config_.hidden, kMaxHeadDim)), 1.0f),
      rope_(rope_frequencies(config_.rope, max_model_len), max_model_len),
      local_rope_(rope_frequencies(config_.local_rope, max_model_len), max_model_len),
      attention_scale_(scale_of(config_)),
      backend_(backend) {
  for (float& w : head_norm_.weight) w *= config_.logits_scale;
  for (float& b : head_norm_.bias) b *= config_.logits_scale;
}

DecoderModel::Scratch DecoderModel::carve(char* base, const StepLimits& limits) const {
  Carver carver(base);
  Scratch out;
  out.hidden = carver.take(limits.max_tokens, config_.hidden);
  out.normed = carver.take(limits.max_tokens, config_.hidden);
  out.wanted = out.normed;  // they do not meet
  if (config_.norms == NormPlacement::kParallel) out.parallel = carver.take(limits.max_tokens, config_.hidden);
  if (config_.per_layer_input.dim > 0) {
    out.per_layer = carver.take(limits.max_tokens, config_.layers * config_.per_layer_input.dim);
  }
  const size_t before = carver.used();
  out.shared = base == nullptr ? nullptr : base + before;
  Carver head(out.shared);
  out.logits = head.take(limits.max_logit_rows, config_.vocab_size);
  size_t most = head.used();
  for (const LayerConfig& layer : config_.per_layer) {
    Carver mixer(nullptr), feed(nullptr), per_layer(nullptr);
    switch (layer.mixer) {
      case Mixer::kAttention:
        attention_scratch(mixer, layer, limits.max_tokens);
        break;
      case Mixer::kMla:
        mla_scratch(mixer, limits.max_tokens);
        break;
      case Mixer::kGatedDeltaNet:
      case Mixer::kMamba2:
      case Mixer::kShortConv:
        recurrent_scratch(mixer, layer, limits.max_tokens);
        break;
      case Mixer::kNone:
        break;
    }
    feed_scratch(feed, layer, limits.max_tokens);
    if (config_.per_layer_input.dim > 0) {
      per_layer.take(limits.max_tokens, config_.layers * config_.per_layer_input.dim);
    }
    most = std::max({most, mixer.used(), feed.used(), per_layer.used()});
  }
  out.bytes = before + most;
  return out;
}

size_t DecoderModel::scratch_bytes(const StepLimits& limits) const {
  return carve(nullptr, limits).bytes;
}

Status DecoderModel::prepare(const StepLimits& limits) {
  QUIRE_ASSIGN(memory_, backend_.allocate(scratch_bytes(limits)));
  scratch_ = carve(static_cast<char*>(memory_->data()), limits);
  wanted_rows_.reserve(static_cast<size_t>(limits.max_tokens));
  query_growth_.reserve(static_cast<size_t>(limits.max_tokens));
  limits_ = limits;
  return {};
}

void DecoderModel::norm(const Tensor& x, const Norm& norm, int64_t group, const Tensor& out) {
  if (config_.norm_kind == NormKind::kRms) {
    backend_.rms_norm({x, norm.weight.data(), group, config_.norm_eps, out});
  } else {
    const float* bias = norm.bias.empty() ? nullptr : norm.bias.data();
    backend_.layer_norm({x, norm.weight.data(), bias, group, config_.norm_eps, out});
  }
}

void DecoderModel::forward(const StepBatch& batch, const KvCache& kv) {
  const int64_t tokens = batch.num_tokens();
  QUIRE_CHECK(tokens > 0 && tokens <= limits_.max_tokens);
  QUIRE_CHECK(batch.position_axes == 1 && batch.adapter_slots.empty() && batch.embedding_rows.empty() &&
                  batch.sampled_from_row.empty() && batch.causal.empty(),
              "a plain decoder takes token ids and one position axis");
  step_hidden_ = scratch_.hidden.first_rows(tokens);
  step_normed_ = scratch_.normed.first_rows(tokens);

  int64_t reach = 0;
  for (const int32_t length : batch.context_lens) reach = std::max<int64_t>(reach, length);
  rope_.reach(reach);
  local_rope_.reach(reach);

  embed(batch);
  const bool parallel = config_.norms == NormPlacement::kParallel;
  for (int64_t i = 0; i < config_.layers; ++i) {
    const DecoderLayer& weights = weights_.layers[static_cast<size_t>(i)];
    const LayerContext layer{batch, kv, i, config_.per_layer[static_cast<size_t>(i)], weights};
    if (layer.config.mixer != Mixer::kNone) {
      const bool pre = !weights.attention_norm.empty();
      if (pre) norm(step_hidden_, weights.attention_norm, config_.hidden, step_normed_);
      const Tensor out = parallel ? scratch_.parallel.first_rows(tokens) : step_normed_;
      run_mixer(layer, pre ? step_normed_ : step_hidden_, out);
      add_to_residual(out, weights.post_attention_norm);
    }
    if (layer.config.feed != Feed::kNone) {
      const bool pre = !weights.mlp_norm.empty();
      if (pre) norm(step_hidden_, weights.mlp_norm, config_.hidden, step_normed_);
      run_feed(layer, pre || parallel ? step_normed_ : step_hidden_, step_normed_);
      add_to_residual(step_normed_, weights.post_mlp_norm);
    }
    if (config_.per_layer_input.dim > 0) add_per_layer_input(layer);
    if (config_.layer_scalars) backend_.scale({step_hidden_, weights.scalar, {}, step_hidden_});
  }

  num_wanted_ = static_cast<int64_t>(batch.wanted.size());
  if (num_wanted_ == 0) return;
  wanted_rows_.clear();
  for (const WantedRow& row : batch.wanted) wanted_rows_.push_back(row.token);
  const Tensor wanted = scratch_.wanted.first_rows(num_wanted_);
  backend_.gather({step_hidden_, wanted_rows_, wanted});
  norm(wanted, head_norm_, config_.hidden, wanted);
}

// hidden += residual_scale * norm(x), in place; x is overwritten where there is a norm.
void DecoderModel::add_to_residual(const Tensor& x, const Norm& post_norm) {
  if (!post_norm.empty()) norm(x, post_norm, config_.hidden, x);
  backend_.residual_add({x, step_hidden_, config_.residual_scale, step_hidden_});
}

// Gemma 4 looks the token up a second time, in a table with a part for each layer, and adds a projection of the first
// embedding: (norm(projection) + lookup) / sqrt(2).
void DecoderModel::embed(const StepBatch& batch) {
  backend_.embedding({weights_.embedding.get(), batch.tokens, config_.embedding_scale, step_hidden_});
  const int64_t dim = config_.per_layer_input.dim;
  if (dim == 0) return;
  const Tensor inputs = scratch_.per_layer.first_rows(step_hidden_.rows);
  Carver carver(scratch_.shared);
  const Tensor looked_up = carver.take(step_hidden_.rows, inputs.cols);
  weights_.per_layer_projection.run(backend_, step_hidden_, inputs);
  const auto inverse_root = [](int64_t n) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))); };
  backend_.scale({inputs, inverse_root(config_.hidden), {}, inputs});
  norm(inputs, weights_.per_layer_norm, dim, inputs);
  backend_.embedding({weights_.per_layer_embedding.get(), batch.tokens,
                      static_cast<float>(std::sqrt(static_cast<double>(dim))), looked_up});
  backend_.residual_add({looked_up, inputs, 1.0f, inputs});
  backend_.scale({inputs, inverse_root(2), {}, inputs});
}

void DecoderModel::add_per_layer_input(const LayerContext& layer) {
  const PerLayerInputWeights& weights = layer.weights.per_layer_input;
  const int64_t dim = config_.per_layer_input.dim;
  Carver carver(scratch_.shared);
  const Tensor gate = carver.take(step_hidden_.rows, dim);
  const Tensor input = scratch_.per_layer.first_rows(step_hidden_.rows).columns(layer.index * dim, dim);
  weights.gate.run(backend_, step_hidden_, gate);
  backend_.glu({gate, input, config_.activation, gate});
  weights.projection.run(backend_, gate, step_normed_);
  add_to_residual(step_normed_, weights.norm);
}

std::span<const float> DecoderModel::logits(int64_t first_wanted, int64_t count) {
  QUIRE_CHECK(first_wanted >= 0 && count > 0 && first_wanted + count <= num_wanted_ && count <= limits_.max_logit_rows);
  const Tensor logits = scratch_.logits.first_rows(count);
  weights_.head.run(backend_, some_rows(scratch_.wanted, first_wanted, count), logits);
  if (config_.logits_soft_cap > 0) backend_.soft_cap({logits, config_.logits_soft_cap, logits});
  backend_.synchronise();
  return {logits.f32(), static_cast<size_t>(count * config_.vocab_size)};
}

}  // namespace quire::model
