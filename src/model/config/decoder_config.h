// SPDX-License-Identifier: Apache-2.0
// DecoderConfig: everything about a decoder-only transformer that its arithmetic depends on, whatever file it came
// from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/activation.h"
#include "ops/dtype.h"
#include "ops/moe.h"

namespace quire::model {

enum class RopeType {
  kDefault,
  kLinear,
  kDynamic,
  kYarn,
  kLlama3,
  kLongRope,
  kProportional,  // Gemma 4: `partial` of the pairs rotate as in a whole head, the others not at all
};

// How positions become angles. Frequencies are fixed at load; nothing here depends on a request.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double partial = 1.0;      // the share of a head that rotates; complete() makes rot_dim of it where that is 0
  int64_t rot_dim = 0;       // elements of a head that rotate; even
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + rot/2)
  double factor = 1.0;
  int64_t original_max_position = 0;
  int64_t config_max_position = 0;  // max_position as the file says it, before complete() extends it
  double attention_factor = 0;      // 0: the type's default
  // yarn
  double beta_fast = 32, beta_slow = 1;
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  // longrope: divisors of the frequencies, [rot/2]
  std::vector<double> short_factors, long_factors;
  // GGUF's rope_freqs tensor: divisors of the frequencies, [rot/2]; empty: none
  std::vector<double> freq_factors;
};

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,         // RMS over each head, one weight for all
  kWhole,           // RMS over all heads together
  kPerHeadWeights,  // LayerNorm over each head, a weight for each (Cohere)
};
enum class NormKind : uint8_t { kRms, kLayer, kLayerWithBias };
enum class NormPlacement : uint8_t {
  kPre,       // norm before attention and before the MLP
  kPost,      // norm of what they put out, none before (OLMo-2)
  kSandwich,  // both (GLM-4, Gemma)
  kParallel,  // one norm before both, which run side by side (Cohere)
};

// What a layer mixes tokens with, and what follows.
enum class Mixer : uint8_t { kAttention, kMla, kGatedDeltaNet, kMamba2, kShortConv, kNone };
enum class Feed : uint8_t {
  kGated,  // down(act(gate) * up)
  kPlain,  // down(act(up))
  kMoe,
  kNone,
};
enum class RopeUse : uint8_t { kNone, kMain, kLocal };

// One layer, where layers differ. A size of 0 means the model's.
struct LayerConfig {
  Mixer mixer = Mixer::kAttention;
  Feed feed = Feed::kGated;
  RopeUse rope = RopeUse::kMain;
  int64_t window = 0;  // 0: full attention
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t shared_with = -1;  // an earlier layer whose keys and values it reads, having none of its own
  bool v_is_k = false;       // values are the keys before norm and rotation (Gemma 4)
};

// Multi-head latent attention: keys and values come from one latent vector a token.
struct MlaConfig {
  int64_t q_rank = 0;  // 0: queries are projected directly
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;  // of a head, without position
  int64_t rope_dim = 0;
  int64_t v_dim = 0;
};

struct MoeConfig {
  int64_t experts = 0;
  int64_t k = 0;
  int64_t intermediate = 0;
  bool gated = true;
  int64_t shared_intermediate = 0;  // 0: no shared expert
  bool shared_gate = false;         // the shared expert's output times sigmoid(x . w)
  MoeScore score = MoeScore::kSoftmax;
  bool normalise = false;
  float sum_epsilon = 0;
  float scale = 1;
  int64_t groups = 1, groups_kept = 1;
  MoeGroupScore group_score = MoeGroupScore::kMax;
  bool choice_bias = false, router_bias = false, expert_bias = false;
  float limit = 0;          // of the clamped activation (GPT-OSS)
  float jitter = 0;         // kSparseMixer
  bool beside_mlp = false;  // Gemma 4: experts and MLP side by side, each with norms of its own
};

struct GatedDeltaNetConfig {
  int64_t key_heads = 0, value_heads = 0;
  int64_t dk = 0, dv = 0;
  int64_t kernel = 0;
  bool by_key_head = false;        // the file's projections stand key head by key head (Qwen3-Next)
  bool tiled_value_heads = false;  // GGUF: value head v of the file belongs to key head v % key_heads
};

struct Mamba2Config {
  int64_t heads = 0, head_dim = 0;
  int64_t groups = 0, state_size = 0;
  int64_t kernel = 0;
  bool conv_bias = true, proj_bias = false;
  float dt_min = 0, dt_max = 0;
  int64_t norm_group = 0;  // columns that the gated norm takes together; 0: all
};

struct ShortConvConfig {
  int64_t kernel = 0;
  bool bias = false;
};

// Gemma 4: every layer adds a small embedding of the token, of its own.
struct PerLayerInputConfig {
  int64_t dim = 0;  // 0: none
  int64_t vocab_size = 0;
};

struct DecoderConfig {
  std::string family;                  // "llama", "qwen3", ...: the registry's name
  std::string architecture;            // as the file says it
  std::string text_prefix = "model.";  // of Hugging Face names; others where a model also sees or hears
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;         // from the config, else from k_proj's shape, else hidden / heads
  bool head_dim_given = false;  // the config says it
  int64_t intermediate = 0;
  int64_t max_position = 0;    // longest sequence: what the file says, times the factor of a scaling that extends it
  int64_t sliding_window = 0;  // of every layer, where per_layer is left to complete()
  std::vector<LayerConfig> per_layer;  // [layers] after complete(); a family may leave it empty: all alike
  float norm_eps = 1e-5f;
  NormKind norm_kind = NormKind::kRms;
  bool norm_plus_one = false;  // a norm's weight is stored less 1 (not in GGUF)
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  bool fused_qkv = false, fused_gate_up = false;  // one tensor in the file
  QkNorm qk_norm = QkNorm::kNone;
  bool v_norm = false;       // an RMS norm without a weight over each head of V (Gemma 4)
  bool output_gate = false;  // q_proj has a gate beside each head of q, whose sigmoid multiplies the output
  bool sinks = false;
  float attention_soft_cap = 0, logits_soft_cap = 0;
  NormPlacement norms = NormPlacement::kPre;
  RopeConfig rope, local_rope;       // local_rope: where a layer asks for it
  std::vector<uint8_t> rope_layers;  // [layers]: 0 where a layer has no positions (NoPE); empty: all have
  bool extend_context = true;  // a rope scaling lengthens max_position; false where the file's number counts it already
  // Queries grow with the logarithm of the position (Ministral 3): 1 + beta * ln(1 + floor(p / base)). 0: they do not.
  float query_growth = 0;
  int64_t query_growth_base = 0;
  // Multipliers (Granite and others); 1 elsewhere. attention_scale 0: 1/sqrt(head_dim).
  float embedding_scale = 1, attention_scale = 0, residual_scale = 1, logits_scale = 1;
  bool layer_scalars = false;  // the residual stream is multiplied by a number after each layer (Gemma 4)
  MlaConfig mla;
  MoeConfig moe;
  GatedDeltaNetConfig gdn;
  Mamba2Config mamba2;
  ShortConvConfig short_conv;
  PerLayerInputConfig per_layer_input;
  // GGUF stores q and k with each head's rows interleaved for these families; loading undoes it.
  bool gguf_permuted = false;
  // The checkpoint's main type: what config.json says, else what most of its plain weights are. Of GGUF: the
  // embedding's.
  DType dtype = DType::kF32;
  bool dtype_given = false;  // config.json says it
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1;

  int64_t kv_heads_of(const LayerConfig& layer) const { return layer.kv_heads > 0 ? layer.kv_heads : kv_heads; }
  int64_t head_dim_of(const LayerConfig& layer) const { return layer.head_dim > 0 ? layer.head_dim : head_dim; }
  int64_t intermediate_of(const LayerConfig& layer) const {
    return layer.intermediate > 0 ? layer.intermediate : intermediate;
  }
};

// Settles what depends on a weight's shape: head_dim (k_rows is k_proj's row count, 0 when unknown) and the rotary
// dimension; fills per_layer where the family left it; then checks that the sizes go together.
Status complete(DecoderConfig& config, int64_t k_rows);

}  // namespace quire::model
