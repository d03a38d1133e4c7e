// SPDX-License-Identifier: Apache-2.0
// Any bytes as a config.json: a clear error, or sizes within their bounds and finite rotary frequencies.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/family.h"
#include "model/rope_table.h"

namespace {

using namespace quire;

void check_completed(const model::DecoderConfig& c) {
  QUIRE_CHECK(c.layers >= 1 && c.heads >= 1 && c.kv_heads >= 1 && c.heads % c.kv_heads == 0);
  QUIRE_CHECK(c.hidden >= 1 && c.intermediate >= 1 && c.vocab_size >= 1);
  QUIRE_CHECK(c.head_dim >= 1 && c.head_dim <= 256 && c.rope.rot_dim >= 2 && c.rope.rot_dim <= c.head_dim);
  QUIRE_CHECK(c.max_position >= 1 && c.max_position <= int64_t{1} << 30);
  QUIRE_CHECK(c.rope_layers.empty() || c.rope_layers.size() == static_cast<size_t>(c.layers));
  for (const float scale : {c.embedding_scale, c.attention_scale, c.residual_scale, c.logits_scale, c.norm_eps}) {
    QUIRE_CHECK(std::isfinite(scale), "a scale that was accepted is finite");
  }
  for (const int64_t length : {int64_t{1}, c.max_position}) {
    const model::RopeFrequencies rope = model::rope_frequencies(c.rope, length);
    QUIRE_CHECK(rope.inv_freq.size() == static_cast<size_t>(c.rope.rot_dim / 2));
    QUIRE_CHECK(std::isfinite(rope.attention_factor) && rope.attention_factor > 0, "the rope factor is a number");
    for (const float frequency : rope.inv_freq) {
      QUIRE_CHECK(std::isfinite(frequency) && frequency >= 0, "a frequency is a number");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = json::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto read = model::parse_hf_config(*parsed);
  if (!read.ok()) {
    QUIRE_CHECK(!read.error().message.empty(), "an error says what was wrong");
    return 0;
  }
  // As a folder without weights, and with a k_proj of some rows.
  for (const int64_t k_rows : {int64_t{0}, read->config.kv_heads * 64, int64_t{7}}) {
    model::DecoderConfig config = read->config;
    if (model::complete(config, k_rows).ok()) check_completed(config);
  }
  return 0;
}
