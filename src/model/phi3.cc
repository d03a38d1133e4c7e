// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: q, k, v and gate, up are one tensor each; longrope and partial rotation in some.
#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace quire::model {
namespace {

Result<DecoderConfig> from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"sliding_window", "partial_rotary_factor"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(out.sliding_window, read_sliding_window(config));
  out.fused_qkv = out.fused_gate_up = true;
  return out;
}

Result<DecoderConfig> from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  // Converters write a window into every Phi-3 file, also those of models without one; llama.cpp ignores the key too.
  constexpr std::string_view kHandled[] = {"attention.sliding_window"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  out.fused_qkv = out.fused_gate_up = true;
  return out;
}

constexpr const char* kHf[] = {"Phi3ForCausalLM"};
constexpr const char* kGguf[] = {"phi3"};

}  // namespace

const Family kPhi3Family = {"phi3", kHf, kGguf, from_hf, from_gguf};

}  // namespace quire::model
