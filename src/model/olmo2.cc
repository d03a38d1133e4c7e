// SPDX-License-Identifier: Apache-2.0
// OLMo-2: norms after attention and MLP instead of before, and over the whole of q and k.
#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace quire::model {
namespace {

Result<DecoderConfig> from_hf(const json::Value& config) {
  HfDefaults defaults;
  defaults.norm_eps = 1e-5;
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, defaults));
  constexpr std::string_view kHandled[] = {"attention_bias"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  out.qk_norm = QkNorm::kWhole;
  out.norms = NormPlacement::kPost;
  return out;
}

Result<DecoderConfig> from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.qk_norm = QkNorm::kWhole;
  out.norms = NormPlacement::kPost;
  return out;
}

constexpr const char* kHf[] = {"Olmo2ForCausalLM"};
constexpr const char* kGguf[] = {"olmo2"};

}  // namespace

const Family kOlmo2Family = {"olmo2", kHf, kGguf, from_hf, from_gguf};

}  // namespace quire::model
