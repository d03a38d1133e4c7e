// SPDX-License-Identifier: Apache-2.0
// The weights of a decoder as its layers use them: packed matrices and plain vectors, made once at load.
//
// members() lists the weights of a struct, and for_each_weight() visits them: counting, placing and measuring weights
// all go through it, so a new weight is added to one list.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "model/layers/linear.h"

namespace quire::model {

using Packed = std::shared_ptr<const PackedMatrix>;

// The vectors of a norm; `weight` is empty where there is no norm.
struct Norm {
  Floats weight, bias;
  bool empty() const { return weight.empty(); }
  static auto members(auto& w) { return std::tie(w.weight, w.bias); }
};

struct AttentionWeights {
  Linear qkv;  // q, then k and v where the layer has its own, then the output gate
  Norm q_norm, k_norm;
  Floats sinks;  // [heads]
  Linear o;
  static auto members(auto& w) { return std::tie(w.qkv, w.q_norm, w.k_norm, w.sinks, w.o); }
};

// MLA in its absorbed form: k_up projects a query into the latent space, v_up projects the latent output to values.
struct MlaWeights {
  Linear q_a;  // empty where queries are projected directly
  Norm q_a_norm;
  Linear q;     // [heads * (nope + rope)]
  Linear kv_a;  // [kv_rank + rope]
  Norm kv_norm;
  Packed k_up;  // of each head [kv_rank, nope], as linear_heads takes them
  Packed v_up;  // of each head [v, kv_rank]
  Linear o;
  int64_t site = -1;  // of adapters for k_up; those for v_up follow (LoraSites::Target::heads)
  static auto members(auto& w) { return std::tie(w.q_a, w.q_a_norm, w.q, w.kv_a, w.kv_norm, w.k_up, w.v_up, w.o); }
};

// Gated delta net, Mamba-2 and short convolution.
struct RecurrentWeights {
  Linear in, out;
  Floats conv, conv_bias;  // [channels, kernel], [channels]
  Floats decay;            // [heads]: -exp(A_log)
  Floats dt_bias, skip;    // [heads]
  Floats norm;
  static auto members(auto& w) {
    return std::tie(w.in, w.out, w.conv, w.conv_bias, w.decay, w.dt_bias, w.skip, w.norm);
  }
};

struct MlpWeights {
  Linear gate_up, down;  // FeedForward::kPlain: gate_up is up alone
  static auto members(auto& w) { return std::tie(w.gate_up, w.down); }
};

// One matrix per expert, with biases [experts, n] or none; the views are what the op takes.
struct ExpertMatrices {
  std::vector<Packed> matrices;
  Floats bias;
  std::vector<const PackedMatrix*> views;
  std::vector<const float*> bias_views;

  size_t bytes() const;
  // Puts the biases into the backend's memory, and makes the matrices adjacent there; fills the views.
  Status place(Backend& backend);
};

struct MoeWeights {
  Linear router;
  Floats choice_bias;
  ExpertMatrices gate_up, down;
  MlpWeights shared;
  Linear shared_gate;
  // Gemma 4, whose layers have an MLP beside the experts: the router's norm (with the router's scale), a scale for the
  // weight of each expert, and norms of the MLP's output, the experts' input and the experts' output.
  Norm router_norm, mlp_out_norm, norm, out_norm;
  Floats expert_scale;
  int64_t site = -1;  // of adapters for gate_up of the first expert; -1: experts take none
  static auto members(auto& w) {
    return std::tie(w.router, w.choice_bias, w.gate_up, w.down, w.shared, w.shared_gate, w.router_norm, w.mlp_out_norm,
                    w.norm, w.out_norm, w.expert_scale);
  }
};

// Gemma 4's small embedding of a layer.
struct PerLayerInputWeights {
  Linear gate, projection;
  Norm norm;
  static auto members(auto& w) { return std::tie(w.gate, w.projection, w.norm); }
};

// The input of a layer ahead (AheadConfig): a projection of [embedding, hidden state], each after a norm.
struct AheadWeights {
  Linear projection;
  Norm embedding_norm, hidden_norm;  // EAGLE-3: the embedding has the layer's attention_norm
  // EAGLE-3: for each token of the vocabulary its row of the head; the last row is that of all unknown tokens.
  Constant<int32_t> head_rows;
  static auto members(auto& w) { return std::tie(w.projection, w.embedding_norm, w.hidden_norm, w.head_rows); }
};

// One layer; what its kind does not have is empty.
struct DecoderLayer {
  Norm attention_norm, mlp_norm;            // before the mixer and the feed-forward part
  Norm post_attention_norm, post_mlp_norm;  // of their outputs
  AttentionWeights attention;
  MlaWeights mla;
  RecurrentWeights recurrent;
  MlpWeights mlp;
  MoeWeights moe;
  PerLayerInputWeights per_layer_input;
  float scalar = 1;
  static auto members(auto& w) {
    return std::tie(w.attention_norm, w.mlp_norm, w.post_attention_norm, w.post_mlp_norm, w.attention, w.mla,
                    w.recurrent, w.mlp, w.moe, w.per_layer_input);
  }
};

struct DecoderWeights {
  Packed embedding;  // [vocab, hidden]
  // Encoders: tables of positions and of token types, the norm of the embeddings, and the bias of a score at distance
  // d, column d + max_distance of [heads, 2 * max_distance + 1].
  Packed positions, token_types;
  Norm embedding_norm;
  Floats distance_bias;
  std::vector<DecoderLayer> layers;
  Norm final_norm;  // [hidden]
  Linear head;      // [vocab, hidden]; shares the embedding when tied
  // Gemma 4: [vocab, layers * dim], and the projection of the main embedding that is added to it.
  Packed per_layer_embedding;
  Linear per_layer_projection;
  Norm per_layer_norm;
  AheadWeights ahead;
  DType main_dtype = DType::kF32;
  DType activation = DType::kF32;

  size_t bytes() const;
  // Puts all vectors into the backend's memory. The matrices are there already.
  Status place(Backend& backend);
  static auto members(auto& w) {
    return std::tie(w.embedding, w.positions, w.token_types, w.embedding_norm, w.distance_bias, w.layers, w.final_norm,
                    w.head, w.per_layer_embedding, w.per_layer_projection, w.per_layer_norm, w.ahead);
  }
};

// Calls visit(weight) for each Linear, Floats, Packed and ExpertMatrices in `weights`.
template <typename Weights, typename Visitor>
void for_each_weight(Weights& weights, const Visitor& visit) {
  if constexpr (requires { Weights::members(weights); }) {
    std::apply([&](auto&... member) { (for_each_weight(member, visit), ...); }, Weights::members(weights));
  } else if constexpr (requires { weights.begin(); }) {
    for (auto& element : weights) for_each_weight(element, visit);
  } else {
    visit(weights);
  }
}

}  // namespace quire::model
