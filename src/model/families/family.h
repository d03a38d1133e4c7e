// SPDX-License-Identifier: Apache-2.0
// Family: how to read the config of a model family from either format, and the names of its tensors.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "model/config/decoder_config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// The parts of a model that have weights.
enum class Part {
  // The model as a whole.
  kEmbedding,
  kFinalNorm,
  kHead,
  kPositionEmbedding,
  kTypeEmbedding,
  kEmbeddingNorm,
  kDistanceBias,
  kPerLayerEmbedding,
  kPerLayerModelProjection,
  kPerLayerNorm,
  // The norms of a layer: of inputs, and of outputs (post).
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
  kKUp,  // the two halves of kv_b, as separate tensors
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
  // Experts: kExpert* are tensors of one expert, kExperts* of all experts.
  kRouter,
  kChoiceBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertsGate,
  kExpertsUp,
  kExpertsGateUp,
  kExpertsDown,
  kSwitchGate,  // of all experts, with MLX's names
  kSwitchUp,
  kSwitchDown,
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
  kMlpOutNorm,  // of a layer with both an MLP and experts
  kExpertsNorm,
  kExpertsOutNorm,
  // Multi-token prediction (AheadConfig).
  kAheadProjection,
  kAheadEmbeddingNorm,
  kAheadHiddenNorm,
  kAheadNorm,
};

// A row in a table of names. The first "{}" is the number of the layer, the second one that of the expert.
struct PartName {
  Part part;
  const char* hf;
  const char* gguf;
};

// How the Hugging Face checkpoints of a family store the experts of a layer, where the files themselves cannot answer.
struct ExpertTensors {
  bool fused_gate_up = false;  // gate and up of all experts are one tensor (Part::kExpertsGateUp)
  bool transposed = false;     // [experts, in, out], with gate and up interleaved (GPT-OSS)
  bool bare_names = false;     // the names have no ".weight"
  bool fused_shared = false;   // gate and up of the shared expert are one tensor (Part::kSharedGateUp)
};

// One family. Static data: a family is one file that fills it in, and one row in registry.cc.
struct Family {
  const char* name;
  std::initializer_list<const char*> hf_architectures;    // "LlamaForCausalLM", ...
  std::initializer_list<const char*> gguf_architectures;  // "llama", ...
  // Both start with the fields that all families share (read_common_*) and read or check the others.
  Result<DecoderConfig> (*from_hf)(const json::Value& config);
  Result<DecoderConfig> (*from_gguf)(const weights::GgufMetadata& metadata, std::string_view architecture);
  std::span<const PartName> names = {};  // those that differ from the common names
  ExpertTensors experts = {};

  bool has_name(Part part) const;
  // The name of a part's tensor, without ".weight", in GGUF or Hugging Face files.
  std::string name_of(Part part, int64_t layer, bool gguf, int64_t expert = 0) const;
};

// All families, in one table.
std::span<const Family* const> families();
// Also finds a decoder by the name of its class without a head ("Qwen3Model") or with a score instead of it
// ("Qwen3ForSequenceClassification").
Result<const Family*> find_hf_family(std::string_view architecture);
// Whether the class has no LM head.
bool is_headless(std::string_view architecture);
Result<const Family*> find_gguf_family(std::string_view architecture);

// A parsed config.json with its family. (The fuzz target calls this, too.)
struct HfConfig {
  const Family* family = nullptr;
  DecoderConfig config;
};
Result<HfConfig> parse_hf_config(const json::Value& config);

// Whether text generation does not need a tensor: multi-token prediction layers, and vision and audio parts.
bool is_ignored(std::string_view tensor, const DecoderConfig& config);

extern const Family kLlamaFamily, kSmolLm3Family, kMistralFamily, kMinistralFamily, kMinistral3Family, kMixtralFamily,
    kQwen2Family, kQwen3Family, kQwen3MoeFamily, kQwen3NextFamily, kQwen35Family, kQwen35MoeFamily, kPhi3Family,
    kPhimoeFamily, kGlmFamily, kGlm4Family, kGlm4MoeFamily, kGlm4MoeLiteFamily, kGraniteFamily, kGraniteHybridFamily,
    kOlmo2Family, kOlmo3Family, kGemma2Family, kGemma3Family, kGemma4Family, kGptOssFamily, kDeepseekV2Family,
    kDeepseekV3Family, kMiniCpm3Family, kNemotronHFamily, kLfm2Family, kLfm2MoeFamily, kCohereFamily, kCohere2Family,
    kBertFamily, kRobertaFamily, kMpnetFamily, kNomicBertFamily, kModernBertFamily, kEagle3Family;

}  // namespace quire::model
