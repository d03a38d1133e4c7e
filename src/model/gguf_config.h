// SPDX-License-Identifier: Apache-2.0
// Reading a decoder's config from GGUF metadata.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "model/config.h"
#include "weights/gguf_metadata.h"

namespace quire::model {

// Sizes, norms, rope and token ids under "{architecture}."; keys that change the maths and are not in `handled` (given
// without the prefix) are an error. The type of rope pairs is the family's matter.
Result<DecoderConfig> read_common_gguf(const weights::GgufMetadata& metadata, std::string_view architecture,
                                       std::span<const std::string_view> handled = {});

// expert_count, expert_used_count, expert_feed_forward_length: every layer has experts, from `first` on.
Status read_gguf_experts(const weights::GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out,
                         int64_t first = 0);

}  // namespace quire::model
