// SPDX-License-Identifier: Apache-2.0
// Reading a decoder's config from GGUF metadata.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "model/config/decoder_config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// Sizes, norms, rope and token ids under "{architecture}."; keys that change the maths and are not in `handled` (given
// without the prefix) are an error. The type of rope pairs is the family's matter.
Result<DecoderConfig> read_common_gguf(const weights::GgufMetadata& metadata, std::string_view architecture,
                                       std::span<const std::string_view> handled = {});

// `handled` may also name keys that have a number for each layer, or numbers that differ, where a family knows them:
//   attention.head_count_kv  per_layer has each layer's heads of keys, -1 where there are none
//   feed_forward_length      per_layer has each layer's width, -1 where there is none
//   attention.value_length   values may have another size than keys; the family reads it

// expert_count, expert_used_count, expert_feed_forward_length: every layer has experts, from `first` on.
Status read_gguf_experts(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out,
                         int64_t first = 0);

// The above, for families whose files also say from which layer on, how experts are scored, and of shared ones.
Status read_gguf_routing(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out);

// attention.sliding_window in the layers that attention.sliding_window_pattern names; without that key in all but every
// `full_every`-th. A window of 0 (or no key): none has one.
Status read_gguf_windows(const weights::GgufMetadata& metadata, std::string_view architecture, int64_t full_every,
                         DecoderConfig& out);

// rope.freq_base_swa, for the layers with a window; they turn as the others do where it is missing, but unscaled.
Status read_gguf_local_rope(const weights::GgufMetadata& metadata, std::string_view architecture, double theta,
                            DecoderConfig& out);

// ssm.*: a Mamba-2 layer's sizes.
Status read_gguf_mamba2(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out);

// Layers at the end that predict several tokens ahead are counted in the file, but are no part of the model.
Status drop_gguf_layers_ahead(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out);

// A key of a positive number that fits a float.
Result<float> read_gguf_factor(const weights::GgufMetadata& metadata, const std::string& key, double fallback);

}  // namespace quire::model
