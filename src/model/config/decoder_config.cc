// SPDX-License-Identifier: Apache-2.0
// The last checks of a config, whichever file it comes from.
#include "model/config/decoder_config.h"

#include <algorithm>
#include <cmath>

#include "model/layers/rope_table.h"
#include "ops/attention.h"
#include "ops/recurrent.h"

namespace quire::model {
namespace {

// Settings that are each in range may together still give a frequency that is not a number (yarn with a theta of 1).
Status check_frequencies(const RopeConfig& rope, int64_t longest) {
  for (const int64_t length : {int64_t{1}, longest}) {
    const RopeFrequencies frequencies = rope_frequencies(rope, length);
    const bool plain = std::all_of(frequencies.inv_freq.begin(), frequencies.inv_freq.end(),
                                   [](float f) { return f >= 0 && std::isfinite(f); });
    if (!plain || !(frequencies.attention_factor > 0) || !std::isfinite(frequencies.attention_factor)) {
      return invalid_argument({"the rope settings (theta ", std::to_string(rope.theta), ", factor ",
                               std::to_string(rope.factor), ") give frequencies that are not numbers"});
    }
  }
  return {};
}

}  // namespace

namespace {

Status check_rope(const RopeConfig& rope, int64_t head_dim, int64_t longest) {
  if (rope.rot_dim < 2 || rope.rot_dim % 2 != 0 || rope.rot_dim > head_dim) {
    return invalid_argument({"the rotary dimension is ", rope.rot_dim,
                             "; it must be even, at least 2 and at most the head size ", head_dim});
  }
  const size_t half = static_cast<size_t>(rope.rot_dim / 2);
  for (const auto* factors : {&rope.short_factors, &rope.long_factors, &rope.freq_factors}) {
    if (!factors->empty() && factors->size() != half) {
      return invalid_argument(
          {"a list of rope factors has ", factors->size(), " numbers, but half of the rotary dimension is ", half});
    }
  }
  if (rope.type == RopeType::kLongRope && (rope.short_factors.empty() || rope.long_factors.empty())) {
    return invalid_argument("longrope needs its short and long factors");
  }
  return check_frequencies(rope, longest);
}

// Elements per head that rotate in the layers with this rope; 0: no layer has it.
int64_t rotating_head_dim(const DecoderConfig& config, RopeUse use) {
  for (const LayerConfig& layer : config.per_layer) {
    if (layer.rope != use) continue;
    if (layer.mixer == Mixer::kMla) return config.mla.rope_dim;
    if (layer.mixer == Mixer::kAttention) return config.head_dim_of(layer);
  }
  return 0;
}

Status complete_rope(RopeConfig& rope, int64_t head_dim, int64_t longest) {
  if (head_dim == 0) {
    rope = RopeConfig{};
    return {};
  }
  if (rope.rot_dim == 0) {
    const double part = rope.type == RopeType::kProportional ? 1.0 : rope.partial;
    rope.rot_dim = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  }
  return check_rope(rope, head_dim, longest);
}

Status check_layer(const DecoderConfig& config, const LayerConfig& layer, int64_t index) {
  const auto in_layer = [&](const std::string& what) { return unsupported({"layer ", index, ": ", what}); };
  const int64_t kv_heads = config.kv_heads_of(layer);
  const int64_t head_dim = config.head_dim_of(layer);
  const int64_t kernel = layer.mixer == Mixer::kGatedDeltaNet ? config.gdn.kernel
                         : layer.mixer == Mixer::kMamba2      ? config.mamba2.kernel
                         : layer.mixer == Mixer::kShortConv   ? config.short_conv.kernel
                                                              : 0;
  if (kernel > kMaxConvKernel) {
    return in_layer("its convolution spans " + std::to_string(kernel) + " tokens; quire has at most " +
                    std::to_string(kMaxConvKernel));
  }
  switch (layer.mixer) {
    case Mixer::kAttention:
      if (head_dim < 1 || head_dim > kMaxHeadDim) {
        return in_layer("the head size is " + std::to_string(head_dim) + "; quire has 1 to " +
                        std::to_string(kMaxHeadDim));
      }
      if (config.heads > (int64_t{1} << 24) / head_dim) {  // no matrix has so many rows
        return in_layer(std::to_string(config.heads) + " heads of " + std::to_string(head_dim) + " are too many");
      }
      if (kv_heads < 1 || config.heads % kv_heads != 0) {
        return in_layer(std::to_string(config.heads) + " heads are no multiple of " + std::to_string(kv_heads) +
                        " heads of keys");
      }
      if (layer.shared_with >= index) return in_layer("it can read only an earlier layer's keys");
      break;
    case Mixer::kMla:
      if (config.mla.kv_rank + config.mla.rope_dim > kMaxHeadDim) {
        return in_layer("the latent vector has " + std::to_string(config.mla.kv_rank + config.mla.rope_dim) +
                        " elements; quire has at most " + std::to_string(kMaxHeadDim));
      }
      break;
    case Mixer::kGatedDeltaNet: {
      const GatedDeltaNetConfig& c = config.gdn;
      if (c.key_heads < 1 || c.value_heads < 1 || c.value_heads % c.key_heads != 0 || c.kernel < 1) {
        return in_layer("a gated delta net needs value heads that are a multiple of its key heads, and a kernel");
      }
      if (c.dk < 1 || c.dv < 1 || c.dk > kMaxStateDim || c.dv > kMaxStateDim) {
        return in_layer("the gated delta net's heads are " + std::to_string(c.dk) + " and " + std::to_string(c.dv) +
                        " wide; quire has 1 to " + std::to_string(kMaxStateDim));
      }
      break;
    }
    case Mixer::kMamba2: {
      const Mamba2Config& c = config.mamba2;
      if (c.heads < 1 || c.groups < 1 || c.heads % c.groups != 0 || c.kernel < 1) {
        return in_layer("Mamba-2 needs heads that are a multiple of its groups, and a kernel");
      }
      if (c.head_dim < 1 || c.state_size < 1 || c.head_dim > kMaxStateDim || c.state_size > kMaxStateDim) {
        return in_layer("Mamba-2's state is " + std::to_string(c.head_dim) + " x " + std::to_string(c.state_size) +
                        "; quire has 1 to " + std::to_string(kMaxStateDim) + " in both");
      }
      break;
    }
    case Mixer::kShortConv:
      if (config.short_conv.kernel < 2) return in_layer("a short convolution needs a kernel of at least 2");
      break;
    case Mixer::kNone:
      break;
  }
  if (layer.feed_forward == FeedForward::kMoe || config.moe.beside_mlp) {
    const MoeConfig& c = config.moe;
    if (c.experts < 1 || c.k < 1 || c.k > c.experts || c.intermediate < 1 || c.groups < 1 ||
        c.experts % c.groups != 0 || c.groups_kept < 1 || c.groups_kept > c.groups ||
        c.k > c.experts / c.groups * c.groups_kept ||
        (c.groups_kept < c.groups && c.group_score == MoeGroupScore::kTopTwoSum && c.experts / c.groups < 2)) {
      return in_layer("the numbers of experts (" + std::to_string(c.experts) + "), choices (" + std::to_string(c.k) +
                      ") and groups (" + std::to_string(c.groups) + ") do not go together");
    }
  }
  return {};
}

// Layers with the same rope must rotate equally many elements, and a layer that reads the K of another layer must have
// the same head size.
Status check_layers_agree(const DecoderConfig& config) {
  for (size_t i = 0; i < config.per_layer.size(); ++i) {
    const LayerConfig& layer = config.per_layer[i];
    if (layer.mixer != Mixer::kAttention) continue;
    const auto in_layer = [&](const std::string& what) { return invalid_argument({"layer ", i, ": ", what}); };
    const RopeConfig& rope = layer.rope == RopeUse::kLocal ? config.local_rope : config.rope;
    if (layer.rope != RopeUse::kNone && rope.rot_dim > config.head_dim_of(layer)) {
      return in_layer("its heads of " + std::to_string(config.head_dim_of(layer)) + " are smaller than the " +
                      std::to_string(rope.rot_dim) + " elements that rotate");
    }
    if (layer.shared_with < 0) continue;
    const LayerConfig& owner = config.per_layer[static_cast<size_t>(layer.shared_with)];
    if (owner.mixer != Mixer::kAttention || owner.shared_with >= 0 ||
        config.head_dim_of(owner) != config.head_dim_of(layer) ||
        config.kv_heads_of(owner) != config.kv_heads_of(layer) || owner.window != layer.window) {
      return in_layer("layer " + std::to_string(layer.shared_with) +
                      ", whose keys it reads, has heads of another kind");
    }
  }
  return {};
}

}  // namespace

Status complete(DecoderConfig& config, int64_t k_rows) {
  if (!config.head_dim_given) {
    if (k_rows > 0 && k_rows % config.kv_heads == 0) {
      config.head_dim = k_rows / config.kv_heads;
    } else if (config.hidden % config.heads == 0) {
      config.head_dim = config.hidden / config.heads;
    } else {
      return invalid_argument({"field 'head_dim' is missing, and hidden size ", config.hidden, " is no multiple of ",
                               config.heads, " heads"});
    }
  }
  if (!config.rope_layers.empty() && config.rope_layers.size() != static_cast<size_t>(config.layers)) {
    return invalid_argument("the list of layers without positions does not have one entry per layer");
  }
  if (config.per_layer.empty()) {
    LayerConfig layer;
    layer.window = config.sliding_window;
    config.per_layer.assign(static_cast<size_t>(config.layers), layer);
  }
  if (config.per_layer.size() != static_cast<size_t>(config.layers)) {
    return invalid_argument(
        {"the list of layers has ", config.per_layer.size(), " entries, but ", config.layers, " layers are announced"});
  }
  for (size_t i = 0; i < config.rope_layers.size(); ++i) {
    if (config.rope_layers[i] == 0) config.per_layer[i].rope = RopeUse::kNone;
  }
  for (size_t i = 0; i < config.per_layer.size(); ++i) {
    QUIRE_TRY(check_layer(config, config.per_layer[i], static_cast<int64_t>(i)));
  }
  RopeConfig& rope = config.rope;
  if (config.gguf_permuted && rope.rot_dim != 0 && rope.rot_dim != config.head_dim) {
    return unsupported("heads that rotate only in part are not known in GGUF files of this architecture");
  }
  // As in vLLM: linear and dynamic scaling extend the length in the file, yarn extends the original length.
  rope.config_max_position = config.max_position;
  const bool extends = config.extend_context && (rope.type == RopeType::kLinear || rope.type == RopeType::kDynamic ||
                                                 rope.type == RopeType::kYarn);
  if (extends) {
    const int64_t base = rope.type == RopeType::kYarn ? rope.original_max_position : config.max_position;
    const double extended = static_cast<double>(base) * rope.factor;
    config.max_position = static_cast<int64_t>(std::clamp(extended, 1.0, 1073741824.0));
  }
  QUIRE_TRY(complete_rope(rope, rotating_head_dim(config, RopeUse::kMain), config.max_position));
  QUIRE_TRY(complete_rope(config.local_rope, rotating_head_dim(config, RopeUse::kLocal), config.max_position));
  return check_layers_agree(config);
}

}  // namespace quire::model
