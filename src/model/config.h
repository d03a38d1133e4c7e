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

namespace quire::model {

enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3, kLongRope };

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

enum class QkNorm { kNone, kPerHead, kWhole };
enum class NormPlacement {
  kPre,       // norm before attention and before the MLP
  kPost,      // norm of what they put out, none before (OLMo-2)
  kSandwich,  // both (GLM-4)
};

struct DecoderConfig {
  std::string family;        // "llama", "qwen3", ...: the registry's name
  std::string architecture;  // as the file says it
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;         // from the config, else from k_proj's shape, else hidden / heads
  bool head_dim_given = false;  // the config says it
  int64_t intermediate = 0;
  int64_t max_position = 0;    // longest sequence: what the file says, times the factor of a scaling that extends it
  int64_t sliding_window = 0;  // 0: full attention
  float norm_eps = 1e-5f;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool fused_qkv = false, fused_gate_up = false;  // one tensor in the file
  QkNorm qk_norm = QkNorm::kNone;
  NormPlacement norms = NormPlacement::kPre;
  RopeConfig rope;
  std::vector<uint8_t> rope_layers;  // [layers]: 0 where a layer has no positions (NoPE); empty: all have
  // Multipliers (Granite); 1 elsewhere. attention_scale 0: 1/sqrt(head_dim).
  float embedding_scale = 1, attention_scale = 0, residual_scale = 1, logits_scale = 1;
  // GGUF stores q and k with each head's rows interleaved for these families; loading undoes it.
  bool gguf_permuted = false;
  DType dtype = DType::kF32;  // the checkpoint's main type
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1;
};

// Settles what depends on a weight's shape: head_dim (k_rows is k_proj's row count, 0 when unknown) and the rotary
// dimension; then checks that the sizes go together.
Status complete(DecoderConfig& config, int64_t k_rows);

}  // namespace quire::model
