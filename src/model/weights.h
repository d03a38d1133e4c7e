// SPDX-License-Identifier: Apache-2.0
// The weights of a decoder as its layers use them: packed matrices and plain vectors, made once at load.
#pragma once

#include <memory>
#include <vector>

#include "model/linear.h"

namespace quire::model {

using Packed = std::shared_ptr<const PackedMatrix>;

// A norm's vectors; `weight` is empty where there is no norm.
struct Norm {
  Floats weight, bias;
  bool empty() const { return weight.empty(); }
};

struct AttentionWeights {
  Linear qkv;  // q, then k and v where the layer has its own, then the output gate
  Norm q_norm, k_norm;
  Floats sinks;  // [heads]
  Linear o;
};

// Absorbed: a query meets the latent keys through k_up, the latent output becomes values through v_up.
struct MlaWeights {
  Linear q_a;  // empty where queries are projected directly
  Norm q_a_norm;
  Linear q;     // [heads * (nope + rope)]
  Linear kv_a;  // [kv_rank + rope]
  Norm kv_norm;
  std::vector<Packed> k_up;  // [heads]: [kv_rank, nope]
  std::vector<Packed> v_up;  // [heads]: [v, kv_rank]
  Linear o;
};

// Gated delta net, Mamba-2 and short convolution.
struct RecurrentWeights {
  Linear in, out;
  Floats conv, conv_bias;  // [channels, kernel], [channels]
  Floats decay;            // [heads]: -exp(A_log)
  Floats dt_bias, skip;    // [heads]
  Floats norm;
};

struct MlpWeights {
  Linear gate_up, down;  // Feed::kPlain: gate_up is up alone
};

struct MoeWeights {
  Linear router;
  Floats choice_bias;
  std::vector<Packed> gate_up, down;                           // [experts]
  Floats gate_up_bias, down_bias;                              // [experts, n]
  std::vector<const PackedMatrix*> gate_up_views, down_views;  // the same, as the op takes them
  std::vector<const float*> gate_up_bias_views, down_bias_views;
  MlpWeights shared;
  Linear shared_gate;
  // Gemma 4, where the MLP stands beside: the router's own norm (with its scale), the experts' weights' scale, the
  // norms of the MLP's output and of the experts' input and output.
  Norm router_norm, mlp_out_norm, norm, out_norm;
  Floats expert_scale;
};

// Gemma 4's small embedding of a layer.
struct PerLayerInputWeights {
  Linear gate, projection;
  Norm norm;
};

// One layer; what its kind does not have is empty.
struct DecoderLayer {
  Norm attention_norm, mlp_norm;            // before
  Norm post_attention_norm, post_mlp_norm;  // after
  AttentionWeights attention;
  MlaWeights mla;
  RecurrentWeights recurrent;
  MlpWeights mlp;
  MoeWeights moe;
  PerLayerInputWeights per_layer_input;
  float scalar = 1;

  // Widens `sizes` to this layer's products.
  void measure(WorkspaceLimits& sizes) const;
};

struct DecoderWeights {
  Packed embedding;  // [vocab, hidden]
  std::vector<DecoderLayer> layers;
  Norm final_norm;  // [hidden]
  Linear head;      // [vocab, hidden]; shares the embedding when tied
  // Gemma 4: [vocab, layers * dim], and the projection of the embedding beside it.
  Packed per_layer_embedding;
  Linear per_layer_projection;
  Norm per_layer_norm;
  DType main_dtype = DType::kF32;
  DType activation = DType::kF32;

  size_t bytes() const;
  // Puts all vectors into the backend's memory, and says which matrices are experts.
  Status place(Backend& backend);
};

}  // namespace quire::model
