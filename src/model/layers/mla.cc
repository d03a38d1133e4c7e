// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention, absorbed for every row: the cache holds one latent vector and one rotated key a token,
// queries go to the latent space and outputs come back from it.
#include "model/layers/decoder.h"

namespace quire::model {

DecoderModel::MlaScratch DecoderModel::mla_scratch(Carver& carver, int64_t tokens) const {
  const MlaConfig& c = config_.mla;
  MlaScratch out;
  if (c.q_rank > 0) out.q_a = carver.take(tokens, c.q_rank, activation_);
  out.q = carver.take(tokens, config_.heads * (c.nope_dim + c.rope_dim), activation_);
  out.kv = carver.take(tokens, c.kv_rank + c.rope_dim, activation_);
  out.q_latent = carver.take(tokens, config_.heads * (c.kv_rank + c.rope_dim), activation_);
  out.out_latent = carver.take(tokens, config_.heads * c.kv_rank, activation_);
  out.out = carver.take(tokens, config_.heads * c.v_dim, activation_);
  return out;
}

void DecoderModel::run_mla(const LayerContext& layer, const Tensor& x, const Sink& sink) {
  const MlaConfig& c = config_.mla;
  const MlaWeights& weights = layer.weights.mla;
  Carver carver(scratch_.shared);
  const MlaScratch s = mla_scratch(carver, x.rows);
  const int64_t head = c.nope_dim + c.rope_dim;
  const int64_t latent = c.kv_rank + c.rope_dim;

  if (c.q_rank > 0) {
    weights.q_a.run(backend_, x, s.q_a);
    norm(s.q_a, weights.q_a_norm, c.q_rank, s.q_a);
  }
  weights.q.run(backend_, c.q_rank > 0 ? s.q_a : x, s.q);
  weights.kv_a.run(backend_, x, s.kv);
  const Tensor kv_latent = s.kv.columns(0, c.kv_rank);
  norm(kv_latent, weights.kv_norm, c.kv_rank, kv_latent);
  rotate(s.q, head, c.nope_dim, layer.config.rope);
  rotate(s.kv, latent, c.kv_rank, layer.config.rope);

  backend_.reshape_and_cache({s.kv, {}, group(layer).slot_mapping, layer.kv.layer(layer.index)});
  for (int64_t h = 0; h < config_.heads; ++h) {
    const auto up = static_cast<size_t>(h);
    backend_.linear({s.q.columns(h * head, c.nope_dim), weights.k_up[up].get(), nullptr,
                     s.q_latent.columns(h * latent, c.kv_rank)});
    backend_.scale({s.q.columns(h * head + c.nope_dim, c.rope_dim),
                    1.0f,
                    {},
                    s.q_latent.columns(h * latent + c.kv_rank, c.rope_dim)});
  }
  backend_.attention(attention_args(layer, s.q_latent, s.out_latent));
  for (int64_t h = 0; h < config_.heads; ++h) {
    backend_.linear({s.out_latent.columns(h * c.kv_rank, c.kv_rank), weights.v_up[static_cast<size_t>(h)].get(),
                     nullptr, s.out.columns(h * c.v_dim, c.v_dim)});
  }
  finish(weights.o, s.out, sink);
}

}  // namespace quire::model
