// SPDX-License-Identifier: Apache-2.0
// The table of families, and the names that most of them share.
#include <algorithm>

#include "model/family.h"

namespace quire::model {
namespace {

constexpr const Family* kFamilies[] = {&kLlamaFamily, &kSmolLm3Family, &kMistralFamily, &kQwen2Family,   &kQwen3Family,
                                       &kPhi3Family,  &kGlmFamily,     &kGlm4Family,    &kGraniteFamily, &kOlmo2Family};

constexpr PartName kCommonNames[] = {
    {Part::kEmbedding, "model.embed_tokens", "token_embd"},
    {Part::kFinalNorm, "model.norm", "output_norm"},
    {Part::kHead, "lm_head", "output"},
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
};

std::string fill(std::string_view pattern, int64_t layer) {
  const size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return std::string(pattern);
  return std::string(pattern.substr(0, hole)) + std::to_string(layer) + std::string(pattern.substr(hole + 2));
}

Result<const Family*> find_family(std::string_view architecture, bool gguf) {
  std::string known;
  for (const Family* family : kFamilies) {
    for (const char* name : gguf ? family->gguf_architectures : family->hf_architectures) {
      if (architecture == name) return family;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
  }
  return unsupported("architecture '" + std::string(architecture.substr(0, 100)) + "' is not one that quire runs (" +
                     known + ")");
}

}  // namespace

std::string Family::name_of(Part part, int64_t layer, bool gguf) const {
  for (const std::span<const PartName> table : {names, std::span<const PartName>(kCommonNames)}) {
    for (const PartName& row : table) {
      if (row.part == part) return fill(gguf ? row.gguf : row.hf, layer);
    }
  }
  QUIRE_CHECK(false, "every part has a common name");
  return {};
}

std::span<const Family* const> families() {
  return kFamilies;
}
Result<const Family*> find_hf_family(std::string_view architecture) {
  return find_family(architecture, false);
}
Result<const Family*> find_gguf_family(std::string_view architecture) {
  return find_family(architecture, true);
}

}  // namespace quire::model
