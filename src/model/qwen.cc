// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5 (biases on q, k and v) and Qwen3 (norms on q and k instead).
#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace quire::model {
namespace {

constexpr std::string_view kHandled[] = {"sliding_window", "use_sliding_window", "attention_bias"};

// use_sliding_window is false in every released file; max_window_layers then means nothing.
Status refuse_sliding_window(const json::Value& config) {
  QUIRE_ASSIGN(const bool slides, json::get_bool_or(config, "use_sliding_window", false));
  if (slides) return unsupported("field 'use_sliding_window' is true, which quire does not have for Qwen");
  return {};
}

Result<DecoderConfig> qwen2_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_TRY(refuse_sliding_window(config));
  out.qkv_bias = true;
  return out;
}

Result<DecoderConfig> qwen2_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.qkv_bias = true;
  return out;
}

Result<DecoderConfig> qwen3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_TRY(refuse_sliding_window(config));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  out.qk_norm = QkNorm::kPerHead;
  return out;
}

Result<DecoderConfig> qwen3_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.qk_norm = QkNorm::kPerHead;
  return out;
}

constexpr const char* kQwen2Hf[] = {"Qwen2ForCausalLM"};
constexpr const char* kQwen2Gguf[] = {"qwen2"};
constexpr const char* kQwen3Hf[] = {"Qwen3ForCausalLM"};
constexpr const char* kQwen3Gguf[] = {"qwen3"};

}  // namespace

const Family kQwen2Family = {"qwen2", kQwen2Hf, kQwen2Gguf, qwen2_from_hf, qwen2_from_gguf};
const Family kQwen3Family = {"qwen3", kQwen3Hf, kQwen3Gguf, qwen3_from_hf, qwen3_from_gguf};

}  // namespace quire::model
