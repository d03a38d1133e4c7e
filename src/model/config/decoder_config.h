// SPDX-License-Identifier: Apache-2.0
// DecoderConfig: everything that the arithmetic of a decoder-only transformer depends on, whichever file it comes from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config/share.h"
#include "ops/activation.h"
#include "ops/dtype.h"
#include "ops/moe.h"

namespace quire::model {

// What a file may say at most, so that products of sizes stay far from an overflow.
constexpr int64_t kMaxSize = int64_t{1} << 24;  // hidden, intermediate, vocabulary
constexpr int64_t kMaxPositions = int64_t{1} << 30;

enum class RopeType {
  kDefault,
  kLinear,
  kDynamic,
  kYarn,
  kLlama3,
  kLongRope,
  kProportional,  // Gemma 4: the first `partial` of the pairs rotate as in a full head, the others not at all
};

// How positions become angles. The frequencies are fixed at load and do not depend on a request.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double partial = 1.0;      // the share of a head that rotates; complete() derives rot_dim from it if that is 0
  int64_t rot_dim = 0;       // elements per head that rotate; even
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + rot/2)
  double factor = 1.0;
  int64_t original_max_position = 0;
  int64_t config_max_position = 0;  // max_position in the file, before complete() extends it
  double attention_factor = 0;      // 0: the type's default
  // yarn
  double beta_fast = 32, beta_slow = 1;
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  // longrope: divisors of the frequencies, [rot/2], and the attention factor beside each (0: attention_factor)
  std::vector<double> short_factors, long_factors;
  double short_mscale = 0, long_mscale = 0;
  // GGUF's rope_freqs tensor: divisors of the frequencies, [rot/2]; empty: none
  std::vector<double> freq_factors;
};

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,         // RMS norm of each head, with one weight for all heads
  kWhole,           // RMS norm of all heads together
  kPerHeadWeights,  // LayerNorm of each head, with one weight per head (Cohere)
};
enum class NormKind : uint8_t { kRms, kLayer, kLayerWithBias };
enum class NormPlacement : uint8_t {
  kPre,       // norm before attention and before the MLP
  kPost,      // norm of their outputs, none before (OLMo-2)
  kSandwich,  // both (GLM-4, Gemma)
  kParallel,  // one norm before both, which run in parallel (Cohere)
  kAfterAdd,  // norm of the residual stream after each addition (BERT)
};

// What a layer mixes tokens with. Each kind except kNone has a row in layers/mixer.cc.
enum class Mixer : uint8_t { kAttention, kMla, kGatedDeltaNet, kMamba2, kShortConv, kNone };
// What follows the mixer.
enum class FeedForward : uint8_t {
  kGated,  // down(act(gate) * up)
  kPlain,  // down(act(up))
  kMoe,
  kNone,
};
enum class RopeUse : uint8_t { kNone, kMain, kLocal };

// What can differ between layers. A size of 0 means that of the model.
struct LayerConfig {
  Mixer mixer = Mixer::kAttention;
  FeedForward feed_forward = FeedForward::kGated;
  RopeUse rope = RopeUse::kMain;
  int64_t window = 0;  // 0: full attention
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t shared_with = -1;    // >= 0: an earlier layer whose K and V this layer reads, instead of its own
  bool v_is_k = false;         // V is K before its norm and rotation (Gemma 4)
  bool no_input_norm = false;  // nothing before the mixer (the first layer of ModernBERT)
};

// Multi-head latent attention: K and V are projections of one latent vector per token.
struct MlaConfig {
  int64_t q_rank = 0;  // 0: queries are projected directly
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;  // elements per head without position
  int64_t rope_dim = 0;
  int64_t v_dim = 0;
};

struct MoeConfig {
  int64_t experts = 0;
  int64_t k = 0;
  int64_t intermediate = 0;
  bool gated = true;
  int64_t shared_intermediate = 0;  // 0: no shared expert
  bool shared_gate = false;         // multiplies the shared expert's output by sigmoid(x . w)
  MoeScore score = MoeScore::kSoftmax;
  bool normalise = false;
  float sum_epsilon = 0;
  float scale = 1;
  int64_t groups = 1, groups_kept = 1;
  MoeGroupScore group_score = MoeGroupScore::kMax;
  bool choice_bias = false, router_bias = false, expert_bias = false;
  float limit = 0;          // of the clamped activation (GPT-OSS)
  float jitter = 0;         // kSparseMixer
  bool beside_mlp = false;  // Gemma 4: each layer has experts and an MLP, each with its own norms
};

struct GatedDeltaNetConfig {
  int64_t key_heads = 0, value_heads = 0;
  int64_t dk = 0, dv = 0;
  int64_t kernel = 0;
  bool by_key_head = false;        // the rows of the projections are grouped by key head (Qwen3-Next)
  bool tiled_value_heads = false;  // GGUF: value head v of the file belongs to key head v % key_heads
  bool chunked = false;            // states are kept in chunks; choose_states() asks the backend
};

struct Mamba2Config {
  int64_t heads = 0, head_dim = 0;
  int64_t groups = 0, state_size = 0;
  int64_t kernel = 0;
  bool conv_bias = true, proj_bias = false;
  float dt_min = 0, dt_max = 0;
  int64_t norm_group = 0;  // columns per group of the gated norm; 0: all
  bool chunked = false;    // as in GatedDeltaNetConfig
};

struct ShortConvConfig {
  int64_t kernel = 0;
  bool bias = false;
};

// Gemma 4: every layer adds its own small embedding of the token.
struct PerLayerInputConfig {
  int64_t dim = 0;  // 0: none
  int64_t vocab_size = 0;
};

// Multi-token prediction: a layer after the last one that predicts the token after the next from the hidden state of a
// token and the next token. Nothing but speculation needs it (load/layer_ahead.cc).
struct AheadConfig {
  int64_t layers = 0;       // that the file has; the first one is used
  bool zero_first = false;  // the embedding at position 0 counts as zero (DeepSeek, GLM)
  bool is_layer = false;    // this config describes that layer alone
  std::string prefix;       // of the names that begin with "mtp."
  // EAGLE-3: a layer with files of its own, for a dense target. Instead of the target's last hidden state it sees a
  // projection of several, each from before one of the target's layers.
  bool eagle = false;
  std::vector<int64_t> taps;  // those layers; empty in the file: the usual ones
  int64_t draft_vocab = 0;    // tokens that its head knows
};

// An encoder: every token sees its whole sequence, which is computed in one step and keeps nothing. Its embeddings may
// add tables of positions and of token types, and go through a norm.
struct EncoderConfig {
  bool on = false;
  int64_t positions = 0;       // rows of the table of positions; 0: none
  int64_t first_position = 0;  // the row of the first token (RoBERTa: 2)
  int64_t token_types = 0;     // rows of the table of token types; 0: none
  bool embedding_norm = false;
  // MPNet: scores get a bias by the distance of the two tokens, in so many buckets up to a distance.
  int64_t distance_buckets = 0, max_distance = 0;
};

struct DecoderConfig {
  std::string family;                  // the name in the registry: "llama", "qwen3", ...
  std::string architecture;            // as in the file
  std::string text_prefix = "model.";  // of Hugging Face names; differs in models with vision or audio
  std::string head_prefix;             // of the name of the LM head, in some of these models
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;         // from the config, else from k_proj's shape, else hidden / heads
  bool head_dim_given = false;  // it is in the config
  int64_t intermediate = 0;
  int64_t max_position = 0;    // the longest sequence: the number in the file, times the factor of a rope scaling
  int64_t sliding_window = 0;  // of every layer, if complete() fills per_layer
  int64_t first_layer = 0;     // the number of layer 0 in the names of tensors
  std::string layer_prefix;    // what "model.layers." is in Hugging Face names; "": just that
  std::vector<LayerConfig> per_layer;  // [layers] after complete(); a family may leave it empty if all layers are alike
  float norm_eps = 1e-5f;
  NormKind norm_kind = NormKind::kRms;
  bool norm_plus_one = false;  // files hold the weights of norms minus 1 (not GGUF)
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  bool fused_qkv = false, fused_gate_up = false;  // they are one tensor in the file
  QkNorm qk_norm = QkNorm::kNone;
  bool v_norm = false;       // an RMS norm without a weight on each head of V (Gemma 4)
  bool output_gate = false;  // q_proj has a gate after each head of q; its sigmoid multiplies the output
  bool sinks = false;
  float attention_soft_cap = 0, logits_soft_cap = 0;
  NormPlacement norms = NormPlacement::kPre;
  RopeConfig rope, local_rope;       // local_rope: for layers with RopeUse::kLocal
  std::vector<uint8_t> rope_layers;  // [layers]: 0 for layers without positions (NoPE); empty: all have them
  bool extend_context = true;        // a rope scaling extends max_position; false if the file's number includes it
  // Attention temperature tuning (Llama 4, Ministral 3): a query at position p is multiplied by
  // 1 + temperature * ln(1 + floor(p / length)). 0: it is not.
  float attention_temperature = 0;
  int64_t attention_temperature_length = 0;
  // Multipliers (Granite and others). attention_scale 0 means 1/sqrt(head_dim).
  float embedding_scale = 1, attention_scale = 0, residual_scale = 1, logits_scale = 1;
  bool layer_scalars = false;  // each layer ends with a multiplication of the residual stream by a number (Gemma 4)
  MlaConfig mla;
  MoeConfig moe;
  GatedDeltaNetConfig gdn;
  Mamba2Config mamba2;
  ShortConvConfig short_conv;
  PerLayerInputConfig per_layer_input;
  AheadConfig ahead;
  EncoderConfig encoder;
  Share share;           // the part of the model that this config describes; the sizes above are those of the part
  bool has_head = true;  // false: the file has no LM head; the model makes embeddings or scores
  // GGUF files of the family have the rows of each head of q and k interleaved; loading undoes it.
  bool gguf_permuted = false;
  // The main type of the checkpoint: that in config.json, else that of most plain weights. In GGUF: the embedding's.
  DType dtype = DType::kF32;
  bool dtype_given = false;  // it is in config.json
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1;

  int64_t kv_heads_of(const LayerConfig& layer) const { return layer.kv_heads > 0 ? layer.kv_heads : kv_heads; }
  int64_t head_dim_of(const LayerConfig& layer) const { return layer.head_dim > 0 ? layer.head_dim : head_dim; }
  // Columns that the mixer of a layer sees: an EAGLE-3 layer gets the embedding and the hidden state side by side.
  int64_t mixer_columns() const { return ahead.eagle ? 2 * hidden : hidden; }
  int64_t intermediate_of(const LayerConfig& layer) const {
    return layer.intermediate > 0 ? layer.intermediate : intermediate;
  }
};

// Derives head_dim from the shape of a weight if it is missing (k_rows is the number of rows of k_proj, 0 if unknown),
// and the rotary dimension; fills per_layer if the family left it empty; checks that the sizes are consistent.
Status complete(DecoderConfig& config, int64_t k_rows);

}  // namespace quire::model
