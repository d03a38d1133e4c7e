// SPDX-License-Identifier: Apache-2.0
// The kinds of mixers (LayerConfig::mixer): what the decoder, the loader and the KV cache need to know about each.
#pragma once

#include "kv/cache_layout.h"
#include "model/layers/decoder.h"

namespace quire::model {

class Loader;

// One kind of mixer. Static data: a kind is one file in layers/ that fills it in, and one row in mixer.cc.
struct MixerKind {
  // What a layer keeps per sequence.
  kv::LayerCache (*cache)(const DecoderConfig& config, const LayerConfig& layer);
  // Reads the weights of layer `index`.
  Status (*load)(Loader& loader, const LayerConfig& layer, int64_t index, DecoderLayer& out);
  // Takes the memory that run() needs for a step of `tokens` tokens.
  void (*reserve)(const DecoderModel& model, const LayerConfig& layer, int64_t tokens, ScratchAllocator& scratch);
  // Runs the mixer; returns whether the output was added to the residual stream (LayerOutput).
  bool (*run)(DecoderModel& model, const LayerContext& layer, const LayerInput& input, const LayerOutput& output);
  // Floats per token that the op of a recurrence keeps (WorkspaceLimits::state_columns); null: none.
  int64_t (*state_columns)(const DecoderConfig& config) = nullptr;
};

// REQUIRES: mixer is not Mixer::kNone.
const MixerKind& mixer_kind(Mixer mixer);

extern const MixerKind kAttentionMixer, kMlaMixer, kGatedDeltaNetMixer, kMamba2Mixer, kShortConvMixer;

}  // namespace quire::model
