// SPDX-License-Identifier: Apache-2.0
// The last checks of a config, whatever file it came from.
#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "model/rope_table.h"
#include "ops/attention.h"

namespace quire::model {
namespace {

// Settings that are each in range may still go together to a frequency that is no number (a theta of 1 under yarn).
Status check_frequencies(const RopeConfig& rope, int64_t longest) {
  for (const int64_t length : {int64_t{1}, longest}) {
    const RopeFrequencies frequencies = rope_frequencies(rope, length);
    const bool plain = std::all_of(frequencies.inv_freq.begin(), frequencies.inv_freq.end(),
                                   [](float f) { return f >= 0 && std::isfinite(f); });
    if (!plain || !(frequencies.attention_factor > 0) || !std::isfinite(frequencies.attention_factor)) {
      return invalid_argument("the rope settings (theta " + std::to_string(rope.theta) + ", factor " +
                              std::to_string(rope.factor) + ") give frequencies that are not numbers");
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
      return invalid_argument("field 'head_dim' is missing, and hidden size " + std::to_string(config.hidden) +
                              " is no multiple of " + std::to_string(config.heads) + " heads");
    }
  }
  if (config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    return unsupported("the head size is " + std::to_string(config.head_dim) + "; quire has 1 to " +
                       std::to_string(kMaxHeadDim));
  }
  RopeConfig& rope = config.rope;
  if (rope.rot_dim == 0) rope.rot_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * rope.partial);
  if (rope.rot_dim < 2 || rope.rot_dim % 2 != 0 || rope.rot_dim > config.head_dim) {
    return invalid_argument("the rotary dimension is " + std::to_string(rope.rot_dim) +
                            "; it must be even, at least 2 and at most the head size " +
                            std::to_string(config.head_dim));
  }
  const size_t half = static_cast<size_t>(rope.rot_dim / 2);
  for (const auto* factors : {&rope.short_factors, &rope.long_factors, &rope.freq_factors}) {
    if (!factors->empty() && factors->size() != half) {
      return invalid_argument("a list of rope factors has " + std::to_string(factors->size()) +
                              " numbers, but half of the rotary dimension is " + std::to_string(half));
    }
  }
  if (rope.type == RopeType::kLongRope && (rope.short_factors.empty() || rope.long_factors.empty())) {
    return invalid_argument("longrope needs its short and long factors");
  }
  if (config.gguf_permuted && rope.rot_dim != config.head_dim) {
    return unsupported("heads that rotate only in part are not known in GGUF files of this architecture");
  }
  if (!config.rope_layers.empty() && config.rope_layers.size() != static_cast<size_t>(config.layers)) {
    return invalid_argument("the list of layers without positions does not have one entry a layer");
  }
  // As vLLM derives it: linear and dynamic extend what the file says, yarn what the model was first trained for.
  rope.config_max_position = config.max_position;
  if (rope.type == RopeType::kLinear || rope.type == RopeType::kDynamic || rope.type == RopeType::kYarn) {
    const int64_t base = rope.type == RopeType::kYarn ? rope.original_max_position : config.max_position;
    const double extended = static_cast<double>(base) * rope.factor;
    config.max_position = static_cast<int64_t>(std::clamp(extended, 1.0, 1073741824.0));
  }
  if (config.sliding_window > 0 && config.sliding_window < config.max_position) {
    config.max_position = config.sliding_window;  // within the window, sliding and full attention are the same
  }
  return check_frequencies(rope, config.max_position);
}

}  // namespace quire::model
