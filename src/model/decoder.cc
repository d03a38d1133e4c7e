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

void DecoderLayer::measure(WorkspaceLimits& sizes) const {
  for (const Linear* linear :
       {&attention.qkv, &attention.o, &mla.q_a, &mla.q, &mla.kv_a, &mla.o, &recurrent.in, &recurrent.out, &mlp.gate_up,
        &mlp.down, &moe.router, &moe.shared.gate_up, &moe.shared.down, &moe.shared_gate, &per_layer_input.gate,
        &per_layer_input.projection}) {
    linear->measure(sizes);
  }
  for (const auto* matrices : {&mla.k_up, &mla.v_up}) {
    for (const Packed& matrix : *matrices) {
      Linear one;
      one.add({matrix, {}});
      one.measure(sizes);
    }
  }
}

Status DecoderWeights::place(Backend& backend) {
  const auto norm = [&](Norm& n) -> Status {
    QUIRE_TRY(n.weight.place(backend));
    return n.bias.place(backend);
  };
  const auto mlp = [&](MlpWeights& m) -> Status {
    QUIRE_TRY(m.gate_up.place(backend));
    return m.down.place(backend);
  };
  for (Linear* linear : {&head, &per_layer_projection}) QUIRE_TRY(linear->place(backend));
  for (Norm* n : {&final_norm, &per_layer_norm}) QUIRE_TRY(norm(*n));
  for (DecoderLayer& layer : layers) {
    MoeWeights& moe = layer.moe;
    RecurrentWeights& recurrent = layer.recurrent;
    for (Linear* linear : {&layer.attention.qkv, &layer.attention.o, &layer.mla.q_a, &layer.mla.q, &layer.mla.kv_a,
                           &layer.mla.o, &recurrent.in, &recurrent.out, &moe.router, &moe.shared_gate,
                           &layer.per_layer_input.gate, &layer.per_layer_input.projection}) {
      QUIRE_TRY(linear->place(backend));
    }
    for (Norm* n : {&layer.attention_norm, &layer.mlp_norm, &layer.post_attention_norm, &layer.post_mlp_norm,
                    &layer.attention.q_norm, &layer.attention.k_norm, &layer.mla.q_a_norm, &layer.mla.kv_norm,
                    &moe.router_norm, &moe.mlp_out_norm, &moe.norm, &moe.out_norm, &layer.per_layer_input.norm}) {
      QUIRE_TRY(norm(*n));
    }
    for (Floats* floats :
         {&layer.attention.sinks, &recurrent.conv, &recurrent.conv_bias, &recurrent.decay, &recurrent.dt_bias,
          &recurrent.skip, &recurrent.norm, &moe.choice_bias, &moe.expert_scale, &moe.gate_up_bias, &moe.down_bias}) {
      QUIRE_TRY(floats->place(backend));
    }
    QUIRE_TRY(mlp(layer.mlp));
    QUIRE_TRY(mlp(moe.shared));
    QUIRE_TRY(backend.stack(moe.gate_up_views));
    QUIRE_TRY(backend.stack(moe.down_views));
    // The experts' biases lie one after another.
    const auto views = [](const Floats& all, size_t experts, std::vector<const float*>& out) {
      out.clear();
      for (size_t e = 0; e < experts && !all.empty(); ++e) out.push_back(all.data() + e * (all.size() / experts));
    };
    views(moe.gate_up_bias, moe.gate_up.size(), moe.gate_up_bias_views);
    views(moe.down_bias, moe.down.size(), moe.down_bias_views);
  }
  return {};
}

DecoderModel::DecoderModel(DecoderConfig config, DecoderWeights weights, int64_t max_model_len, Backend& backend)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      activation_(weights_.activation),
      ones_(std::vector<float>(static_cast<size_t>(std::max(config_.hidden, kMaxHeadDim)), 1.0f)),
      rope_(rope_frequencies(config_.rope, max_model_len), max_model_len),
      local_rope_(rope_frequencies(config_.local_rope, max_model_len), max_model_len),
      attention_scale_(scale_of(config_)),
      backend_(backend) {}

DecoderModel::Scratch DecoderModel::carve(char* base, const StepLimits& limits) const {
  Carver carver(base);
  Scratch out;
  out.hidden = carver.take(limits.max_tokens, config_.hidden, DType::kF32);
  out.normed = carver.take(limits.max_tokens, config_.hidden, activation_);
  out.wanted = out.normed;  // they do not meet
  if (config_.norms == NormPlacement::kParallel) {
    out.parallel = carver.take(limits.max_tokens, config_.hidden, activation_);
  }
  if (config_.per_layer_input.dim > 0) {
    out.per_layer = carver.take(limits.max_tokens, config_.layers * config_.per_layer_input.dim, activation_);
  }
  const size_t before = carver.used();
  out.shared = base == nullptr ? nullptr : base + before;
  Carver head(out.shared);
  out.logits = head.take(limits.max_logit_rows, config_.vocab_size, DType::kF32);
  Carver gathered(out.shared);
  out.wanted_hidden = gathered.take(limits.max_tokens, config_.hidden, DType::kF32);
  size_t most = std::max(head.used(), gathered.used());
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
      per_layer.take(limits.max_tokens, config_.layers * config_.per_layer_input.dim, activation_);
    }
    most = std::max({most, mixer.used(), feed.used(), per_layer.used()});
  }
  out.bytes = before + most;
  return out;
}

size_t DecoderModel::scratch_bytes(const StepLimits& limits) const {
  return carve(nullptr, limits).bytes;
}

WorkspaceLimits DecoderModel::workspace_limits(const StepLimits& limits) const {
  WorkspaceLimits out;
  out.tokens = limits.max_tokens;
  out.logit_rows = limits.max_logit_rows;
  out.vocab = config_.vocab_size;
  out.activation = activation_;
  for (const LayerCache& layer : cache_layers(config_)) {
    if (layer.kind == CacheKind::kState || layer.kind == CacheKind::kNone) continue;
    out.heads = config_.heads;
    out.head_dim = std::max({out.head_dim, layer.head_dim, layer.v_head_dim});
  }
  weights_.per_layer_projection.measure(out);
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    weights_.layers[i].measure(out);
    out.state_columns = std::max(out.state_columns, recurrent_columns(config_.per_layer[i]));
    if (weights_.layers[i].moe.gate_up.empty()) continue;
    out.experts = config_.moe.experts;
    out.chosen = config_.moe.k;
    out.expert_columns = config_.moe.intermediate + config_.hidden;
  }
  return out;
}

Status DecoderModel::prepare(const StepLimits& limits) {
  QUIRE_ASSIGN(memory_, backend_.allocate(scratch_bytes(limits)));
  scratch_ = carve(static_cast<char*>(memory_->data()), limits);
  QUIRE_TRY(ones_.place(backend_));
  if (!backend_.host_memory()) {  // a table that grows would move
    for (RopeTable* table : {&rope_, &local_rope_}) QUIRE_TRY(table->place(backend_));
  }
  query_growth_.reserve(static_cast<size_t>(limits.max_tokens));
  limits_ = limits;
  return {};
}

void DecoderModel::norm(const Tensor& x, const Norm& norm, int64_t group, const Tensor& out) {
  if (config_.norm_kind == NormKind::kRms) {
    backend_.rms_norm({x, norm.weight.data(), group, config_.norm_eps, out});
  } else {
    backend_.layer_norm({x, norm.weight.data(), norm.bias.data(), group, config_.norm_eps, out});
  }
}

// Everything that changes with the step and that ops read goes to the backend's memory first.
void DecoderModel::stage(const StepBatch& batch) {
  backend_.begin_step();
  backend_.reserve_stage(batch.bytes(), batch.num_arrays());
  const auto staged = [&]<typename T>(const std::vector<T>& values) {
    const void* at = values.empty() ? nullptr : backend_.stage(std::as_bytes(std::span(values)));
    return std::span<const T>(static_cast<const T*>(at), values.size());
  };
  step_.tokens = staged(batch.tokens);
  step_.positions = staged(batch.positions);
  step_.cu_seqlens_q = staged(batch.cu_seqlens_q);
  step_.context_lens = staged(batch.context_lens);
  step_.groups.resize(batch.groups.size());
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    const GroupBatch& from = batch.groups[g];
    StagedGroup& to = step_.groups[g];
    to.slot_mapping = staged(from.slot_mapping);
    to.block_tables = staged(from.block_tables);
    to.max_blocks = from.max_blocks;
    to.state_source = staged(from.state_source);
    to.state_destination = staged(from.state_destination);
  }
  if (static_cast<int64_t>(batch.wanted.size()) == batch.num_tokens()) {  // then they are not gathered
    for (size_t i = 0; i < batch.wanted.size(); ++i) QUIRE_CHECK(batch.wanted[i] == static_cast<int32_t>(i));
  }
  step_.wanted = staged(batch.wanted);
  query_growth_.clear();
  if (config_.query_growth != 0) {
    for (const int32_t position : batch.positions) {
      const double steps = std::floor(static_cast<double>(position) / static_cast<double>(config_.query_growth_base));
      query_growth_.push_back(static_cast<float>(1.0 + static_cast<double>(config_.query_growth) * std::log1p(steps)));
    }
  }
  step_.query_growth = staged(query_growth_);
  // Last, so that what a recorded step reads lies where it lay. The tokens are filled in before the step runs.
  const std::span<const int32_t> rows = staged(batch.sampled_from_row);
  if (!rows.empty()) backend_.take_sampled({step_.tokens, rows});
}

void DecoderModel::forward(const StepBatch& batch, const KvCache& kv) {
  const int64_t tokens = batch.num_tokens();
  QUIRE_CHECK(tokens > 0 && tokens <= limits_.max_tokens);
  QUIRE_CHECK(batch.position_axes == 1 && batch.embedding_rows.empty() && batch.causal.empty(),
              "a plain decoder takes token ids and one position axis");
  step_hidden_ = scratch_.hidden.first_rows(tokens);
  step_normed_ = scratch_.normed.first_rows(tokens);
  num_wanted_ = static_cast<int64_t>(batch.wanted.size());

  int64_t reach = 0;
  for (const int32_t length : batch.context_lens) reach = std::max<int64_t>(reach, length);
  rope_.reach(reach);
  local_rope_.reach(reach);

  // Not where rows are gathered: those lie where the logits go.
  head_in_step_ = num_wanted_ == tokens && tokens <= limits_.max_logit_rows && backend_.joins_head(tokens) &&
                  joins_norm({step_hidden_, &weights_.final_norm, false}, weights_.head);
  stage(batch);
  GraphKey shape{tokens, batch.num_seqs(), num_wanted_, 0, tokens == batch.num_seqs()};
  for (const GroupBatch& group : batch.groups) shape.max_blocks = std::max<int64_t>(shape.max_blocks, group.max_blocks);
  if (!backend_.replay_step(shape)) {
    run_layers(kv);
    backend_.end_step();
  }
}

void DecoderModel::run_layers(const KvCache& kv) {
  embed();
  const bool parallel = config_.norms == NormPlacement::kParallel;
  for (int64_t i = 0; i < config_.layers; ++i) {
    const DecoderLayer& weights = weights_.layers[static_cast<size_t>(i)];
    const LayerContext layer{kv, i, config_.per_layer[static_cast<size_t>(i)], weights};
    if (layer.config.mixer != Mixer::kNone) {
      const Tensor out = parallel ? scratch_.parallel.first_rows(step_hidden_.rows) : step_normed_;
      const Sink sink{out, weights.post_attention_norm.empty() && !parallel};
      run_mixer(layer, {step_hidden_, &weights.attention_norm, parallel}, sink);
      if (!sink.added) add_to_residual(out, weights.post_attention_norm);
    }
    if (layer.config.feed != Feed::kNone) {
      const Sink sink{step_normed_, weights.post_mlp_norm.empty()};
      // Beside the mixer, the feed takes the norm that the mixer took.
      run_feed(layer, parallel ? Source{step_normed_, nullptr, false} : Source{step_hidden_, &weights.mlp_norm, false},
               sink);
      if (!sink.added) add_to_residual(step_normed_, weights.post_mlp_norm);
    }
    if (config_.per_layer_input.dim > 0) add_per_layer_input(layer);
    if (config_.layer_scalars) backend_.scale({step_hidden_, weights.scalar, {}, step_hidden_});
  }
  if (num_wanted_ == 0) return;
  // Rows are taken from the residual stream before the norm, so that the norm sees what the head does.
  Tensor rows = step_hidden_;
  if (num_wanted_ < rows.rows) {
    rows = scratch_.wanted_hidden.first_rows(num_wanted_);
    backend_.gather({step_hidden_, step_.wanted, rows});
  }
  if (head_in_step_) {
    return begin(weights_.head, {rows, &weights_.final_norm, false}, scratch_.logits.first_rows(num_wanted_));
  }
  norm(rows, weights_.final_norm, config_.hidden, scratch_.wanted.first_rows(num_wanted_));
}

Tensor DecoderModel::normed(const Source& source) {
  if (source.norm == nullptr || source.norm->empty()) return activations(source.x);
  norm(source.x, *source.norm, config_.hidden, step_normed_);
  return step_normed_;
}

Tensor DecoderModel::activations(const Tensor& x) {
  if (x.dtype == activation_) return x;
  backend_.scale({x, 1.0f, {}, step_normed_});
  return step_normed_;
}

bool DecoderModel::joins_norm(const Source& source, const Linear& linear) const {
  return source.norm != nullptr && !source.norm->empty() && !source.keep && config_.norm_kind == NormKind::kRms &&
         linear.single() && backend_.joins_linear(source.x.rows);
}

void DecoderModel::begin(const Linear& linear, const Source& source, const Tensor& out) {
  if (!joins_norm(source, linear)) return linear.run(backend_, normed(source), out);
  const FusedNorm form{source.norm->weight.data(), config_.norm_eps};
  linear.run(backend_, source.x, out, {&form});
}

// hidden += residual_scale * y of a layer's last linear, at once where the backend can; else y goes to the sink.
void DecoderModel::finish(const Linear& linear, const Tensor& x, const Sink& sink) {
  if (!sink.may_add || !linear.single() || !backend_.joins_linear(x.rows)) return linear.run(backend_, x, sink.out);
  sink.added = true;
  linear.run(backend_, x, step_hidden_, {nullptr, step_hidden_, config_.residual_scale});
}

// hidden += residual_scale * norm(x), in place; x is overwritten where there is a norm.
void DecoderModel::add_to_residual(const Tensor& x, const Norm& post_norm) {
  if (!post_norm.empty()) norm(x, post_norm, config_.hidden, x);
  backend_.residual_add({x, step_hidden_, config_.residual_scale, step_hidden_});
}

// Gemma 4 looks the token up a second time, in a table with a part for each layer, and adds a projection of the first
// embedding: (norm(projection) + lookup) / sqrt(2).
void DecoderModel::embed() {
  backend_.embedding({weights_.embedding.get(), step_.tokens, config_.embedding_scale, step_hidden_});
  const int64_t dim = config_.per_layer_input.dim;
  if (dim == 0) return;
  const Tensor inputs = scratch_.per_layer.first_rows(step_hidden_.rows);
  Carver carver(scratch_.shared);
  const Tensor looked_up = carver.take(step_hidden_.rows, inputs.cols, activation_);
  weights_.per_layer_projection.run(backend_, activations(step_hidden_), inputs);
  const auto inverse_root = [](int64_t n) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))); };
  backend_.scale({inputs, inverse_root(config_.hidden), {}, inputs});
  norm(inputs, weights_.per_layer_norm, dim, inputs);
  backend_.embedding({weights_.per_layer_embedding.get(), step_.tokens,
                      static_cast<float>(std::sqrt(static_cast<double>(dim))), looked_up});
  backend_.residual_add({looked_up, inputs, 1.0f, inputs});
  backend_.scale({inputs, inverse_root(2), {}, inputs});
}

void DecoderModel::add_per_layer_input(const LayerContext& layer) {
  const PerLayerInputWeights& weights = layer.weights.per_layer_input;
  const int64_t dim = config_.per_layer_input.dim;
  Carver carver(scratch_.shared);
  const Tensor gate = carver.take(step_hidden_.rows, dim, activation_);
  const Tensor input = scratch_.per_layer.first_rows(step_hidden_.rows).columns(layer.index * dim, dim);
  weights.gate.run(backend_, activations(step_hidden_), gate);
  backend_.glu({gate, input, config_.activation, gate});
  weights.projection.run(backend_, gate, step_normed_);
  add_to_residual(step_normed_, weights.norm);
}

Tensor DecoderModel::run_head(int64_t first_wanted, int64_t count) {
  QUIRE_CHECK(first_wanted >= 0 && count > 0 && first_wanted + count <= num_wanted_ && count <= limits_.max_logit_rows);
  const Tensor logits =
      head_in_step_ ? scratch_.logits.some_rows(first_wanted, count) : scratch_.logits.first_rows(count);
  if (!head_in_step_) weights_.head.run(backend_, scratch_.wanted.some_rows(first_wanted, count), logits);
  if (config_.logits_soft_cap > 0) backend_.soft_cap({logits, config_.logits_soft_cap, logits});
  return logits;
}

std::span<const float> DecoderModel::logits(int64_t first_wanted, int64_t count) {
  return backend_.read(run_head(first_wanted, count));
}

}  // namespace quire::model
