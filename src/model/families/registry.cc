// SPDX-License-Identifier: Apache-2.0
// The table of families, and the names that most of them share.
#include "model/families/family.h"

#include <algorithm>

#include "base/utf8.h"

namespace quire::model {
namespace {

constexpr const Family* kFamilies[] = {
    &kLlamaFamily,   &kSmolLm3Family,    &kMistralFamily,     &kMinistralFamily,  &kMinistral3Family,
    &kMixtralFamily, &kQwen2Family,      &kQwen3Family,       &kQwen3MoeFamily,   &kQwen3NextFamily,
    &kQwen35Family,  &kQwen35MoeFamily,  &kPhi3Family,        &kPhimoeFamily,     &kGlmFamily,
    &kGlm4Family,    &kGlm4MoeFamily,    &kGlm4MoeLiteFamily, &kGraniteFamily,    &kGraniteHybridFamily,
    &kOlmo2Family,   &kOlmo3Family,      &kGemma2Family,      &kGemma3Family,     &kGemma4Family,
    &kGptOssFamily,  &kDeepseekV2Family, &kDeepseekV3Family,  &kMiniCpm3Family,   &kNemotronHFamily,
    &kLfm2Family,    &kLfm2MoeFamily,    &kCohereFamily,      &kCohere2Family,    &kBertFamily,
    &kRobertaFamily, &kMpnetFamily,      &kNomicBertFamily,   &kModernBertFamily,
};

constexpr PartName kCommonNames[] = {
    {Part::kEmbedding, "model.embed_tokens", "token_embd"},
    {Part::kFinalNorm, "model.norm", "output_norm"},
    {Part::kHead, "lm_head", "output"},
    {Part::kPositionEmbedding, "model.embeddings.position_embeddings", "position_embd"},
    {Part::kTypeEmbedding, "model.embeddings.token_type_embeddings", "token_types"},
    {Part::kEmbeddingNorm, "model.embeddings.LayerNorm", "token_embd_norm"},
    {Part::kDistanceBias, "model.encoder.relative_attention_bias", ""},
    {Part::kAttentionNorm, "model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
    {Part::kMlpNorm, "model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
    {Part::kPostAttentionNorm, "model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
    {Part::kPostMlpNorm, "model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"},
    {Part::kQ, "model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"},
    {Part::kK, "model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"},
    {Part::kV, "model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
    {Part::kQkv, "model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"},
    {Part::kO, "model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"},
    {Part::kQNorm, "model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"},
    {Part::kKNorm, "model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"},
    {Part::kGate, "model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"},
    {Part::kUp, "model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"},
    {Part::kGateUp, "model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"},
    {Part::kDown, "model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"},
    {Part::kSinks, "model.layers.{}.self_attn.sinks", "blk.{}.attn_sinks"},
    {Part::kQA, "model.layers.{}.self_attn.q_a_proj", "blk.{}.attn_q_a"},
    {Part::kQANorm, "model.layers.{}.self_attn.q_a_layernorm", "blk.{}.attn_q_a_norm"},
    {Part::kQB, "model.layers.{}.self_attn.q_b_proj", "blk.{}.attn_q_b"},
    {Part::kKvA, "model.layers.{}.self_attn.kv_a_proj_with_mqa", "blk.{}.attn_kv_a_mqa"},
    {Part::kKvANorm, "model.layers.{}.self_attn.kv_a_layernorm", "blk.{}.attn_kv_a_norm"},
    {Part::kKvB, "model.layers.{}.self_attn.kv_b_proj", "blk.{}.attn_kv_b"},
    {Part::kKUp, "", "blk.{}.attn_k_b"},
    {Part::kVUp, "", "blk.{}.attn_v_b"},
    {Part::kGdnQkv, "model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"},
    {Part::kGdnZ, "model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"},
    {Part::kGdnB, "model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"},
    {Part::kGdnA, "model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha"},
    {Part::kGdnQkvz, "model.layers.{}.linear_attn.in_proj_qkvz", "blk.{}.ssm_in"},
    {Part::kGdnBa, "model.layers.{}.linear_attn.in_proj_ba", "blk.{}.ssm_ba"},
    {Part::kConv, "model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d"},
    {Part::kDecay, "model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"},
    {Part::kDtBias, "model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt"},
    {Part::kSkip, "model.layers.{}.mamba.D", "blk.{}.ssm_d"},
    {Part::kStateIn, "model.layers.{}.mamba.in_proj", "blk.{}.ssm_in"},
    {Part::kStateNorm, "model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"},
    {Part::kStateOut, "model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"},
    {Part::kRouter, "model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"},
    {Part::kChoiceBias, "model.layers.{}.mlp.gate.e_score_correction_bias", "blk.{}.exp_probs_b"},
    {Part::kExpertGate, "model.layers.{}.mlp.experts.{}.gate_proj", ""},
    {Part::kExpertUp, "model.layers.{}.mlp.experts.{}.up_proj", ""},
    {Part::kExpertDown, "model.layers.{}.mlp.experts.{}.down_proj", ""},
    {Part::kExpertsGate, "", "blk.{}.ffn_gate_exps"},
    {Part::kExpertsUp, "", "blk.{}.ffn_up_exps"},
    {Part::kExpertsGateUp, "model.layers.{}.mlp.experts.gate_up_proj", "blk.{}.ffn_gate_up_exps"},
    {Part::kExpertsDown, "model.layers.{}.mlp.experts.down_proj", "blk.{}.ffn_down_exps"},
    {Part::kSwitchGate, "model.layers.{}.mlp.switch_mlp.gate_proj", ""},
    {Part::kSwitchUp, "model.layers.{}.mlp.switch_mlp.up_proj", ""},
    {Part::kSwitchDown, "model.layers.{}.mlp.switch_mlp.down_proj", ""},
    {Part::kSharedGate, "model.layers.{}.mlp.shared_experts.gate_proj", "blk.{}.ffn_gate_shexp"},
    {Part::kSharedUp, "model.layers.{}.mlp.shared_experts.up_proj", "blk.{}.ffn_up_shexp"},
    {Part::kSharedDown, "model.layers.{}.mlp.shared_experts.down_proj", "blk.{}.ffn_down_shexp"},
    {Part::kSharedExpertGate, "model.layers.{}.mlp.shared_expert_gate", "blk.{}.ffn_gate_inp_shexp"},
    {Part::kPerLayerEmbedding, "model.embed_tokens_per_layer", "per_layer_token_embd"},
    {Part::kPerLayerModelProjection, "model.per_layer_model_projection", "per_layer_model_proj"},
    {Part::kPerLayerNorm, "model.per_layer_projection_norm", "per_layer_proj_norm"},
    {Part::kPerLayerGate, "model.layers.{}.per_layer_input_gate", "blk.{}.inp_gate"},
    {Part::kPerLayerProjection, "model.layers.{}.per_layer_projection", "blk.{}.proj"},
    {Part::kPerLayerPostNorm, "model.layers.{}.post_per_layer_input_norm", "blk.{}.post_norm"},
    {Part::kLayerScalar, "model.layers.{}.layer_scalar", "blk.{}.layer_output_scale"},
    {Part::kRouterScale, "model.layers.{}.router.scale", "blk.{}.ffn_gate_inp.scale"},
    {Part::kExpertScale, "model.layers.{}.router.per_expert_scale", "blk.{}.ffn_down_exps.scale"},
    {Part::kMlpOutNorm, "model.layers.{}.post_feedforward_layernorm_1", "blk.{}.post_ffw_norm_1"},
    {Part::kExpertsNorm, "model.layers.{}.pre_feedforward_layernorm_2", "blk.{}.pre_ffw_norm_2"},
    {Part::kExpertsOutNorm, "model.layers.{}.post_feedforward_layernorm_2", "blk.{}.post_ffw_norm_2"},
    {Part::kAheadProjection, "model.layers.{}.eh_proj", "blk.{}.nextn.eh_proj"},
    {Part::kAheadEmbeddingNorm, "model.layers.{}.enorm", "blk.{}.nextn.enorm"},
    {Part::kAheadHiddenNorm, "model.layers.{}.hnorm", "blk.{}.nextn.hnorm"},
    {Part::kAheadNorm, "model.layers.{}.shared_head.norm", "blk.{}.nextn.shared_head_norm"},
};

std::string fill(std::string_view pattern, int64_t layer, int64_t expert) {
  std::string out;
  for (const int64_t number : {layer, expert}) {
    const size_t hole = pattern.find("{}");
    if (hole == std::string_view::npos) break;
    out += std::string(pattern.substr(0, hole)) + std::to_string(number);
    pattern.remove_prefix(hole + 2);
  }
  return out + std::string(pattern);
}

// "Qwen3ForCausalLM" for the names of the same decoder without its head; "" for other names.
std::string decoder_class(std::string_view architecture) {
  for (const std::string_view ending : {"ForSequenceClassification", "TextModel", "Model"}) {
    if (architecture.ends_with(ending)) {
      return std::string(architecture.substr(0, architecture.size() - ending.size())) + "ForCausalLM";
    }
  }
  return "";
}

Result<const Family*> find_family(std::string_view architecture, bool gguf) {
  std::string known;
  for (const Family* family : kFamilies) {
    for (const char* name : gguf ? family->gguf_architectures : family->hf_architectures) {
      if (architecture == name) return family;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
  }
  return unsupported(
      {"architecture '", utf8::beginning(architecture, 100), "' is not one that quire runs (", known, ")"});
}

}  // namespace

bool Family::has_name(Part part) const {
  const auto is_part = [&](const PartName& row) { return row.part == part; };
  return std::ranges::any_of(names, is_part) || std::ranges::any_of(kCommonNames, is_part);
}

std::string Family::name_of(Part part, int64_t layer, bool gguf, int64_t expert) const {
  for (const std::span<const PartName> table : {names, std::span<const PartName>(kCommonNames)}) {
    for (const PartName& row : table) {
      if (row.part == part) return fill(gguf ? row.gguf : row.hf, layer, expert);
    }
  }
  QUIRE_CHECK(false, "every part has a common name");
  return {};
}

bool is_ignored(std::string_view tensor, const DecoderConfig& config) {
  if (!config.has_head && tensor.rfind("lm_head.", 0) == 0) return true;
  if (config.encoder.on) {  // the heads that pretraining uses, and a list of numbers
    const std::string pooler = config.text_prefix + "pooler.";
    if (tensor.ends_with("position_ids") || tensor.starts_with(pooler) || tensor.starts_with("cls.predictions") ||
        tensor.starts_with("cls.seq_relationship") || tensor.starts_with("head.") || tensor.starts_with("decoder.")) {
      return true;
    }
  }
  const std::string& prefix = config.text_prefix;
  if (tensor.rfind("mtp.", 0) == 0 || tensor.rfind(prefix + "mtp.", 0) == 0) return true;
  if (prefix != "model." && tensor.rfind(prefix, 0) != 0 && tensor.rfind("lm_head.", 0) != 0) return true;
  for (const std::string& layers : {prefix + "layers.", std::string("blk.")}) {
    if (tensor.rfind(layers, 0) != 0) continue;
    const std::string_view rest = tensor.substr(layers.size());
    int64_t index = 0;
    for (size_t i = 0; i < rest.size() && rest[i] >= '0' && rest[i] <= '9' && index < config.layers; ++i) {
      index = index * 10 + (rest[i] - '0');
    }
    if (index >= config.layers) return true;
  }
  return false;
}

std::span<const Family* const> families() {
  return kFamilies;
}
bool is_headless(std::string_view architecture) {
  return !decoder_class(architecture).empty();
}
Result<const Family*> find_hf_family(std::string_view architecture) {
  for (const char* name : kEagle3Family.hf_architectures) {  // no model of its own, so not in the table
    if (architecture == name) return &kEagle3Family;
  }
  auto found = find_family(architecture, false);
  if (found.ok() || !is_headless(architecture)) return found;
  auto decoder = find_family(decoder_class(architecture), false);
  return decoder.ok() ? std::move(decoder) : std::move(found);
}
Result<const Family*> find_gguf_family(std::string_view architecture) {
  return find_family(architecture, true);
}

}  // namespace quire::model
