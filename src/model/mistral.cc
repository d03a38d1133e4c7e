// SPDX-License-Identifier: Apache-2.0
// Mistral with full attention; a sliding window bounds the context instead (its files in GGUF are "llama").
#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace quire::model {
namespace {

Result<DecoderConfig> from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"sliding_window"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(out.sliding_window, read_sliding_window(config));
  return out;
}

Result<DecoderConfig> from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.gguf_permuted = true;
  return out;
}

constexpr const char* kHf[] = {"MistralForCausalLM"};

}  // namespace

const Family kMistralFamily = {"mistral", kHf, {}, from_hf, from_gguf};

}  // namespace quire::model
