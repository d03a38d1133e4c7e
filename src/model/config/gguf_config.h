// SPDX-License-Identifier: Apache-2.0
// Reading a decoder's config from GGUF metadata.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "model/config/decoder_config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// Reads sizes, norms, rope and token ids under "{architecture}.". Keys that change the results and are not in `handled`
// (without the prefix) are an error. The family sets RopeConfig::interleaved.
Result<DecoderConfig> read_common_gguf(const weights::GgufMetadata& metadata, std::string_view architecture,
                                       std::span<const std::string_view> handled = {});

// `handled` may also name keys with one number per layer, or that most families do not have:
//   attention.head_count_kv  sets kv_heads in per_layer, -1 where a layer has none
//   feed_forward_length      sets intermediate in per_layer, -1 where a layer has no MLP
//   attention.value_length   V may have another size than K; the family reads it

// Reads expert_count, expert_used_count and expert_feed_forward_length. All layers from `first` on have experts.
Status read_gguf_experts(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out,
                         int64_t first = 0);

// The same, for files that also have the first layer with experts, the scoring and shared experts.
Status read_gguf_routing(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out);

// Sets attention.sliding_window in the layers that attention.sliding_window_pattern names; without that key, in all
// layers except every `full_every`-th. If the window is 0 or missing, no layer has one.
Status read_gguf_windows(const weights::GgufMetadata& metadata, std::string_view architecture, int64_t full_every,
                         DecoderConfig& out);

// Reads rope.freq_base_swa, for the layers with a window. `theta` is the default. Their rope is not scaled.
Status read_gguf_local_rope(const weights::GgufMetadata& metadata, std::string_view architecture, double theta,
                            DecoderConfig& out);

// Reads ssm.*: the sizes of Mamba-2 layers.
Status read_gguf_mamba2(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out);

// Subtracts the multi-token prediction layers at the end, which the file counts, from out.layers.
Status drop_gguf_layers_ahead(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out);

// Reads a positive number that fits into a float.
Result<float> read_gguf_factor(const weights::GgufMetadata& metadata, const std::string& key, double fallback);

}  // namespace quire::model
