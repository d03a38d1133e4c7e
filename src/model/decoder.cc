// SPDX-License-Identifier: Apache-2.0
// The forward pass: embed, layers, and the head on the rows that are wanted.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>

namespace quire::model {
namespace {

// Rows of the MLP's inner activations that exist at a time: enough to be busy, few enough to be small.
constexpr int64_t kMlpRows = 512;

Tensor some_rows(Tensor t, int64_t first, int64_t count) {
  QUIRE_CHECK(first >= 0 && first + count <= t.rows);
  t.data = t.row_f32(first);
  t.rows = count;
  return t;
}

// Cuts row-major matrices out of one buffer, each on a 64-byte boundary.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  Tensor take(int64_t rows, int64_t cols) {
    Tensor t{base_ == nullptr ? nullptr : base_ + used_, DType::kF32, rows, cols, cols};
    used_ += (static_cast<size_t>(rows * cols) * sizeof(float) + 63) / 64 * 64;
    return t;
  }
  size_t used() const { return used_; }
  void go_back_to(size_t used) { used_ = used; }  // what lies behind is taken a second time

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace

DecoderModel::DecoderModel(DecoderConfig config, DecoderWeights weights, int64_t max_model_len, Backend& backend)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      head_norm_(weights_.final_norm),
      rope_(rope_frequencies(config_.rope, max_model_len), max_model_len),
      attention_scale_(config_.attention_scale != 0
                           ? config_.attention_scale
                           : static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))),
      backend_(backend) {
  for (float& w : head_norm_) w *= config_.logits_scale;
}

size_t DecoderModel::weights_bytes() const {
  size_t total = weights_.embedding->bytes();
  if (&weights_.head.first() != weights_.embedding.get()) total += weights_.head.bytes();
  for (const DecoderLayer& layer : weights_.layers) {
    total += layer.qkv.bytes() + layer.o.bytes() + layer.gate_up.bytes() + layer.down.bytes();
  }
  return total;
}

DecoderModel::Width DecoderModel::width() const {
  const int64_t q = config_.heads * config_.head_dim;
  return {config_.hidden, q + 2 * config_.kv_heads * config_.head_dim, q, 2 * config_.intermediate};
}

// Attention, MLP and head follow one another, so they share one region; normed and wanted do not meet either.
DecoderModel::Scratch DecoderModel::carve(char* base, const StepLimits& limits) const {
  const Width w = width();
  Carver carver(base);
  Scratch out;
  out.hidden = carver.take(limits.max_tokens, w.hidden);
  out.normed = carver.take(limits.max_tokens, w.hidden);
  out.wanted = out.normed;
  const size_t shared = carver.used();
  out.qkv = carver.take(limits.max_tokens, w.qkv);
  out.attention = carver.take(limits.max_tokens, w.attention);
  out.bytes = carver.used();
  carver.go_back_to(shared);
  out.gate_up = carver.take(std::min(limits.max_tokens, kMlpRows), w.gate_up);
  out.bytes = std::max(out.bytes, carver.used());
  carver.go_back_to(shared);
  out.logits = carver.take(limits.max_logit_rows, config_.vocab_size);
  out.bytes = std::max(out.bytes, carver.used());
  return out;
}

size_t DecoderModel::scratch_bytes(const StepLimits& limits) const {
  return carve(nullptr, limits).bytes;
}

Status DecoderModel::prepare(const StepLimits& limits) {
  QUIRE_ASSIGN(memory_, backend_.allocate(scratch_bytes(limits)));
  scratch_ = carve(static_cast<char*>(memory_->data()), limits);
  wanted_rows_.reserve(static_cast<size_t>(limits.max_tokens));
  limits_ = limits;
  return {};
}

void DecoderModel::norm(const Tensor& x, const std::vector<float>& weight, int64_t group, const Tensor& out) {
  backend_.rms_norm({x, weight.data(), group, config_.norm_eps, out});
}

void DecoderModel::forward(const StepBatch& batch, const KvCache& kv) {
  const int64_t tokens = batch.num_tokens();
  QUIRE_CHECK(tokens > 0 && tokens <= limits_.max_tokens);
  QUIRE_CHECK(batch.position_axes == 1 && batch.adapter_slots.empty() && batch.embedding_rows.empty() &&
                  batch.sampled_from_row.empty() && batch.causal.empty(),
              "a plain decoder takes token ids and one position axis");
  step_hidden_ = scratch_.hidden.first_rows(tokens);
  step_normed_ = scratch_.normed.first_rows(tokens);
  step_qkv_ = scratch_.qkv.first_rows(tokens);
  step_attention_ = scratch_.attention.first_rows(tokens);

  int64_t reach = 0;
  for (const int32_t length : batch.context_lens) reach = std::max<int64_t>(reach, length);
  rope_.reach(reach);

  backend_.embedding({weights_.embedding.get(), batch.tokens, config_.embedding_scale, step_hidden_});
  for (int64_t i = 0; i < config_.layers; ++i) {
    run_attention(batch, kv, i);
    run_mlp(weights_.layers[static_cast<size_t>(i)]);
  }

  num_wanted_ = static_cast<int64_t>(batch.wanted.size());
  if (num_wanted_ == 0) return;
  wanted_rows_.clear();
  for (const WantedRow& row : batch.wanted) wanted_rows_.push_back(row.token);
  const Tensor wanted = scratch_.wanted.first_rows(num_wanted_);
  backend_.gather({step_hidden_, wanted_rows_, wanted});
  norm(wanted, head_norm_, config_.hidden, wanted);
}

void DecoderModel::run_attention(const StepBatch& batch, const KvCache& kv, int64_t index) {
  const DecoderLayer& layer = weights_.layers[static_cast<size_t>(index)];
  const int64_t d = config_.head_dim;
  const bool pre = !layer.attention_norm.empty();
  if (pre) norm(step_hidden_, layer.attention_norm, config_.hidden, step_normed_);
  layer.qkv.run(backend_, pre ? step_normed_ : step_hidden_, step_qkv_);

  const Tensor q = step_qkv_.columns(0, config_.heads * d);
  const Tensor k = step_qkv_.columns(config_.heads * d, config_.kv_heads * d);
  const Tensor v = step_qkv_.columns((config_.heads + config_.kv_heads) * d, config_.kv_heads * d);
  if (config_.qk_norm != QkNorm::kNone) {
    const bool whole = config_.qk_norm == QkNorm::kWhole;
    norm(q, layer.q_norm, whole ? q.cols : d, q);
    norm(k, layer.k_norm, whole ? k.cols : d, k);
  }
  if (config_.rope_layers.empty() || config_.rope_layers[static_cast<size_t>(index)] != 0) {
    for (const Tensor& x : {q, k}) {
      backend_.rope(
          {x, d, config_.rope.rot_dim, config_.rope.interleaved, rope_.cosines(), rope_.sines(), batch.positions});
    }
  }
  const KvLayer pages = kv.layer(index);
  const GroupBatch& group = batch.groups[static_cast<size_t>(kv.group(index))];
  backend_.reshape_and_cache({k, v, group.slot_mapping, pages});
  backend_.attention({.q = q,
                      .kv = pages,
                      .num_heads = config_.heads,
                      .scale = attention_scale_,
                      .cu_seqlens_q = batch.cu_seqlens_q,
                      .context_lens = batch.context_lens,
                      .block_tables = group.block_tables,
                      .max_blocks = group.max_blocks,
                      .out = step_attention_});
  layer.o.run(backend_, step_attention_, step_normed_);
  add_to_residual(layer.post_attention_norm);
}

void DecoderModel::run_mlp(const DecoderLayer& layer) {
  const bool pre = !layer.mlp_norm.empty();
  if (pre) norm(step_hidden_, layer.mlp_norm, config_.hidden, step_normed_);
  // Parts of about equal size: 513 rows are not 512 and 1.
  const int64_t parts = (step_hidden_.rows + kMlpRows - 1) / kMlpRows;
  const int64_t part = ((step_hidden_.rows + parts - 1) / parts + 15) / 16 * 16;
  for (int64_t first = 0; first < step_hidden_.rows; first += part) {
    const int64_t count = std::min(part, step_hidden_.rows - first);
    const Tensor gate_up = scratch_.gate_up.first_rows(count);
    layer.gate_up.run(backend_, some_rows(pre ? step_normed_ : step_hidden_, first, count), gate_up);
    const Tensor gate = gate_up.columns(0, config_.intermediate);
    const Tensor up = gate_up.columns(config_.intermediate, config_.intermediate);
    backend_.glu({gate, up, config_.activation, gate});
    layer.down.run(backend_, gate, some_rows(step_normed_, first, count));
  }
  add_to_residual(layer.post_mlp_norm);
}

// hidden += residual_scale * norm(normed), in place.
void DecoderModel::add_to_residual(const std::vector<float>& post_norm) {
  if (!post_norm.empty()) norm(step_normed_, post_norm, config_.hidden, step_normed_);
  backend_.residual_add({step_normed_, step_hidden_, config_.residual_scale, step_hidden_});
}

std::span<const float> DecoderModel::logits(int64_t first_wanted, int64_t count) {
  QUIRE_CHECK(first_wanted >= 0 && count > 0 && first_wanted + count <= num_wanted_ && count <= limits_.max_logit_rows);
  const Tensor logits = scratch_.logits.first_rows(count);
  weights_.head.run(backend_, some_rows(scratch_.wanted, first_wanted, count), logits);
  backend_.synchronise();
  return {logits.f32(), static_cast<size_t>(count * config_.vocab_size)};
}

std::vector<LayerCache> cache_layers(const DecoderConfig& config) {
  LayerCache layer;
  layer.kv_heads = config.kv_heads;
  layer.head_dim = layer.v_head_dim = config.head_dim;
  return std::vector<LayerCache>(static_cast<size_t>(config.layers), layer);
}

}  // namespace quire::model
