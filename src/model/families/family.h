// SPDX-License-Identifier: Apache-2.0
// A model family: how to read its config from either format, and what its weights are called.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "model/config/decoder_config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// The parts of a layer and of the whole that have weights.
enum class Part {
  // The whole.
  kEmbedding,
  kFinalNorm,
  kHead,
  kPerLayerEmbedding,
  kPerLayerModelProjection,
  kPerLayerNorm,
  // A layer's norms: before, and after (post).
  kAttentionNorm,
  kMlpNorm,
  kPostAttentionNorm,
  kPostMlpNorm,
  // Attention.
  kQ,
  kK,
  kV,
  kQkv,
  kO,
  kQNorm,
  kKNorm,
  kSinks,
  // Latent attention.
  kQA,
  kQANorm,
  kQB,
  kKvA,
  kKvANorm,
  kKvB,
  kKUp,  // kv_b's two halves where they stand apart
  kVUp,
  // Recurrent layers.
  kGdnQkv,
  kGdnZ,
  kGdnB,
  kGdnA,
  kGdnQkvz,
  kGdnBa,
  kConv,
  kDecay,
  kDtBias,
  kSkip,
  kStateIn,
  kStateNorm,
  kStateOut,
  // MLP.
  kGate,
  kUp,
  kGateUp,
  kDown,
  // Experts: each in tensors of its own, or all in one.
  kRouter,
  kChoiceBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertsGate,
  kExpertsUp,
  kExpertsGateUp,
  kExpertsDown,
  kSwitchGate,  // all in one, as MLX names them
  kSwitchUp,
  kSwitchDown,
  kExpertsTransposed,  // a mark, no tensor: stacked experts are [in, out]
  kExpertsBare,        // a mark: their names have no ".weight"
  kSharedGate,
  kSharedUp,
  kSharedGateUp,
  kSharedDown,
  kSharedExpertGate,
  // Gemma 4.
  kPerLayerGate,
  kPerLayerProjection,
  kPerLayerPostNorm,
  kLayerScalar,
  kRouterScale,
  kExpertScale,
  kMlpOutNorm,  // where MLP and experts stand side by side
  kExpertsNorm,
  kExpertsOutNorm,
};

// One row of a family's table of names: the first "{}" stands for the layer, a second one for the expert.
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
  std::string name_of(Part part, int64_t layer, bool gguf, int64_t expert = 0) const;
  // The family's own table names this part.
  bool has_part(Part part) const;
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

// A tensor that a checkpoint may have and text generation does not need: layers that predict several tokens ahead, and
// what sees or hears.
bool is_ignored(std::string_view tensor, const DecoderConfig& config);

extern const Family kLlamaFamily, kSmolLm3Family, kMistralFamily, kMinistralFamily, kMinistral3Family, kMixtralFamily,
    kQwen2Family, kQwen3Family, kQwen3MoeFamily, kQwen3NextFamily, kQwen35Family, kQwen35MoeFamily, kPhi3Family,
    kPhimoeFamily, kGlmFamily, kGlm4Family, kGlm4MoeFamily, kGlm4MoeLiteFamily, kGraniteFamily, kGraniteHybridFamily,
    kOlmo2Family, kOlmo3Family, kGemma2Family, kGemma3Family, kGemma4Family, kGptOssFamily, kDeepseekV2Family,
    kDeepseekV3Family, kMiniCpm3Family, kNemotronHFamily, kLfm2Family, kLfm2MoeFamily, kCohereFamily, kCohere2Family;

}  // namespace quire::model
