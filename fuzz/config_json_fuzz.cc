// SPDX-License-Identifier: Apache-2.0
// Any bytes as a config.json give an error, or sizes within their bounds and finite rotary frequencies.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/families/family.h"
#include "model/layers/rope_table.h"
#include "ops/attention.h"
#include "ops/recurrent.h"

namespace {

using namespace quire;

void check_rope(const model::RopeConfig& rope, int64_t longest) {
  QUIRE_CHECK(rope.rot_dim >= 0 && rope.rot_dim % 2 == 0 && rope.rot_dim <= kMaxHeadDim);
  for (const int64_t length : {int64_t{1}, longest}) {
    const model::RopeFrequencies frequencies = model::rope_frequencies(rope, length);
    QUIRE_CHECK(frequencies.inv_freq.size() == static_cast<size_t>(rope.rot_dim / 2));
    QUIRE_CHECK(std::isfinite(frequencies.attention_factor) && frequencies.attention_factor > 0,
                "the rope factor is a number");
    for (const float frequency : frequencies.inv_freq) {
      QUIRE_CHECK(std::isfinite(frequency) && frequency >= 0, "a frequency is a number");
    }
  }
}

void check_layer(const model::DecoderConfig& c, const model::LayerConfig& layer, int64_t index) {
  QUIRE_CHECK(layer.window >= 0 && layer.shared_with < index);
  if (layer.mixer == model::Mixer::kAttention) {
    QUIRE_CHECK(c.head_dim_of(layer) >= 1 && c.head_dim_of(layer) <= kMaxHeadDim);
    QUIRE_CHECK(c.kv_heads_of(layer) >= 1 && c.heads % c.kv_heads_of(layer) == 0);
    const model::RopeConfig& rope = layer.rope == model::RopeUse::kLocal ? c.local_rope : c.rope;
    QUIRE_CHECK(layer.rope == model::RopeUse::kNone || rope.rot_dim <= c.head_dim_of(layer));
  }
  if (layer.mixer == model::Mixer::kGatedDeltaNet) QUIRE_CHECK(c.gdn.dk <= kMaxStateDim && c.gdn.dv <= kMaxStateDim);
  if (layer.feed_forward == model::FeedForward::kMoe) QUIRE_CHECK(c.moe.k >= 1 && c.moe.k <= c.moe.experts);
}

void check_completed(const model::DecoderConfig& c) {
  QUIRE_CHECK(c.layers >= 1 && c.heads >= 1 && c.hidden >= 1 && c.vocab_size >= 1);
  QUIRE_CHECK(c.max_position >= 1 && c.max_position <= int64_t{1} << 30);
  QUIRE_CHECK(c.rope_layers.empty() || c.rope_layers.size() == static_cast<size_t>(c.layers));
  for (const float scale : {c.embedding_scale, c.attention_scale, c.residual_scale, c.logits_scale, c.norm_eps,
                            c.attention_soft_cap, c.logits_soft_cap, c.attention_temperature}) {
    QUIRE_CHECK(std::isfinite(scale), "a scale that was accepted is finite");
  }
  QUIRE_CHECK(c.per_layer.size() == static_cast<size_t>(c.layers));
  for (size_t i = 0; i < c.per_layer.size(); ++i) check_layer(c, c.per_layer[i], static_cast<int64_t>(i));
  check_rope(c.rope, c.max_position);
  check_rope(c.local_rope, c.max_position);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = json::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto read = model::parse_hf_config(*parsed);
  if (!read.ok()) {
    QUIRE_CHECK(!read.error().message.empty(), "an error must have a message");
    return 0;
  }
  // As a folder without weights, and with a k_proj of some rows.
  for (const int64_t k_rows : {int64_t{0}, read->config.kv_heads * 64, int64_t{7}}) {
    model::DecoderConfig config = read->config;
    if (model::complete(config, k_rows).ok()) check_completed(config);
  }
  return 0;
}
