// SPDX-License-Identifier: Apache-2.0
// Which part of a model each rank computes.
#include "model/config/share.h"

#include "model/config/decoder_config.h"

namespace quire::model {
namespace {

Failure does_not_divide(const char* what, int64_t count, int64_t ranks, const std::string& rule) {
  return invalid_argument({"--tensor-parallel-size is ", ranks, ", but the model has ", count, " ", what, "; ", rule});
}

Status cut_heads(DecoderConfig& config, int64_t ranks) {
  if (config.heads % ranks != 0) {
    return does_not_divide("attention heads", config.heads, ranks, "choose a size that divides them");
  }
  const bool latent = config.mla.kv_rank > 0;
  const auto cut = [&](int64_t& kv_heads) -> Status {
    if (kv_heads == 0) return {};
    if (kv_heads % ranks != 0 && ranks % kv_heads != 0) {
      return does_not_divide("KV heads", kv_heads, ranks, "choose a size that divides them, or a multiple of them");
    }
    kv_heads = std::max<int64_t>(kv_heads / ranks, 1);
    return {};
  };
  config.heads /= ranks;
  if (latent) return {};  // all heads read one latent vector, which every rank has
  config.share.kv_parts = head_parts(config.kv_heads, ranks);
  QUIRE_TRY(cut(config.kv_heads));
  for (LayerConfig& layer : config.per_layer) QUIRE_TRY(cut(layer.kv_heads));
  return {};
}

// Recurrent layers whose heads do not divide are computed by every rank.
void cut_recurrent(DecoderConfig& config) {
  Share& share = config.share;
  GatedDeltaNetConfig& gdn = config.gdn;
  if (gdn.key_heads > 0 && gdn.key_heads % share.ranks == 0) {
    share.gdn_parts = share.ranks;
    gdn.key_heads /= share.ranks;
    gdn.value_heads /= share.ranks;
  }
  Mamba2Config& mamba2 = config.mamba2;
  const bool groups_divide =
      mamba2.groups > 0 && (mamba2.groups % share.ranks == 0 || share.ranks % mamba2.groups == 0);
  if (groups_divide && mamba2.heads % share.ranks == 0) {
    share.mamba2_parts = share.ranks;
    mamba2.heads /= share.ranks;
    mamba2.groups = std::max<int64_t>(mamba2.groups / share.ranks, 1);
  }
}

Status cut_layers(DecoderConfig& config) {
  Share& share = config.share;
  const int64_t layers = config.layers;
  share.model_layers = layers;
  if (share.stages > layers) {
    return invalid_argument(
        {"--pipeline-parallel-size is ", share.stages, ", but the model has only ", layers, " layers"});
  }
  const int64_t begin = stage_begin(layers, share.stage, share.stages);
  const int64_t end = stage_begin(layers, share.stage + 1, share.stages);
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t other = config.per_layer[static_cast<size_t>(i)].shared_with;
    const auto stage_of = [&](int64_t layer) {
      int64_t stage = 0;
      while (stage_begin(layers, stage + 1, share.stages) <= layer) ++stage;
      return stage;
    };
    if (other < 0 || stage_of(other) == stage_of(i)) continue;
    return unsupported({"--pipeline-parallel-size is ", share.stages, ", but layer ", i,
                        " of this model reads the K and V of layer ", other,
                        ", which would be in another stage; use --tensor-parallel-size instead"});
  }
  share.first_layer = begin;
  config.layers = end - begin;
  config.per_layer = {config.per_layer.begin() + begin, config.per_layer.begin() + end};
  for (LayerConfig& layer : config.per_layer) {
    if (layer.shared_with >= 0) layer.shared_with -= begin;
  }
  return {};
}

}  // namespace

int64_t head_parts(int64_t heads, int64_t ranks) {
  return std::min(heads, ranks);
}

int64_t stage_begin(int64_t layers, int64_t stage, int64_t stages) {
  return layers * stage / stages;
}

Result<DecoderConfig> share_of(const DecoderConfig& whole, Share share) {
  DecoderConfig out = whole;
  out.share = share;
  QUIRE_TRY(cut_layers(out));
  if (!share.split()) return out;
  QUIRE_TRY(cut_heads(out, share.ranks));
  if (whole.hidden % share.ranks != 0) {
    return does_not_divide("columns in its hidden states", whole.hidden, share.ranks,
                           "choose a size that divides them");
  }
  cut_recurrent(out);
  out.intermediate = share.width(out.intermediate);
  for (LayerConfig& layer : out.per_layer) layer.intermediate = share.width(layer.intermediate);
  out.moe.shared_intermediate = share.width(out.moe.shared_intermediate);
  return out;
}

}  // namespace quire::model
