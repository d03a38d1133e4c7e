// SPDX-License-Identifier: Apache-2.0
// A model family: how to read its config from either format, and what its weights are called.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "model/config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// The parts of a layer and of the whole that have weights.
enum class Part {
  kEmbedding,
  kFinalNorm,
  kHead,  // the whole
  kAttentionNorm,
  kMlpNorm,
  kPostAttentionNorm,
  kPostMlpNorm,  // a layer's norms: before, and after (post)
  kQ,
  kK,
  kV,
  kQkv,
  kO,
  kQNorm,
  kKNorm,
  kGate,
  kUp,
  kGateUp,
  kDown,  // a layer
};

// One row of a family's table of names: "{}" stands for the layer.
struct PartName {
  Part part;
  const char* hf;
  const char* gguf;
};

// One family. Static data: a row of the registry's table; a family is one file that fills it in.
struct Family {
  const char* name;
  std::span<const char* const> hf_architectures;    // "LlamaForCausalLM", ...
  std::span<const char* const> gguf_architectures;  // "llama", ...
  // Both start from the fields all families share (read_common_*) and add or check their own.
  Result<DecoderConfig> (*from_hf)(const json::Value& config);
  Result<DecoderConfig> (*from_gguf)(const weights::GgufMetadata& metadata, std::string_view architecture);
  std::span<const PartName> names = {};  // what differs from the common names

  // The name of a part's tensor (without ".weight"), in one format.
  std::string name_of(Part part, int64_t layer, bool gguf) const;
};

// All families, in one table.
std::span<const Family* const> families();
Result<const Family*> find_hf_family(std::string_view architecture);
Result<const Family*> find_gguf_family(std::string_view architecture);

// A config.json, its family found. (Also what the fuzz target calls: nothing but the text is trusted less.)
struct HfConfig {
  const Family* family = nullptr;
  DecoderConfig config;
};
Result<HfConfig> parse_hf_config(const json::Value& config);

extern const Family kLlamaFamily, kSmolLm3Family, kMistralFamily, kQwen2Family, kQwen3Family, kPhi3Family, kGlmFamily,
    kGlm4Family, kGraniteFamily, kOlmo2Family;

}  // namespace quire::model
