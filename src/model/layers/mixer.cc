// SPDX-License-Identifier: Apache-2.0
// The table of mixers, and what the layers of a model keep per sequence.
#include "model/layers/mixer.h"

#include <iterator>

namespace quire::model {
namespace {

// In the order of Mixer; kNone comes last and has no row.
constexpr const MixerKind* kKinds[] = {&kAttentionMixer, &kMlaMixer, &kGatedDeltaNetMixer, &kMamba2Mixer,
                                       &kShortConvMixer};
static_assert(std::size(kKinds) == static_cast<size_t>(Mixer::kNone));

}  // namespace

const MixerKind& mixer_kind(Mixer mixer) {
  QUIRE_CHECK(mixer != Mixer::kNone);
  return *kKinds[static_cast<size_t>(mixer)];
}

void choose_states(const Backend& backend, DType activation, DecoderConfig& config) {
  config.gdn.chunked = config.gdn.dk > 0 && backend.chunks_delta_net(config.gdn.dk, config.gdn.dv, activation);
  Mamba2Config& mamba2 = config.mamba2;
  mamba2.chunked = mamba2.heads > 0 && backend.chunks_mamba2(mamba2.state_size, mamba2.head_dim, activation);
}

std::vector<kv::LayerCache> cache_layers(const DecoderConfig& config) {
  std::vector<kv::LayerCache> out;
  for (const LayerConfig& layer : config.per_layer) {
    const bool mixes = layer.mixer != Mixer::kNone;
    out.push_back(mixes ? mixer_kind(layer.mixer).cache(config, layer) : kv::LayerCache{kv::CacheKind::kNone});
  }
  return out;
}

}  // namespace quire::model
