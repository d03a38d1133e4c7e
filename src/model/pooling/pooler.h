// SPDX-License-Identifier: Apache-2.0
// Pooler: from the pooled hidden state of a sequence to its embedding or to the scores of its classes, on the host.
//
// Every sum has an order that depends on its length alone: 16 lanes (lane i takes elements i, i + 16, ...), which fold
// 8, 4, 2, 1. So a vector has the same bits whatever was computed beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/pooling/pooler_config.h"

namespace quire::model {

class Loader;

// y = norm(act(x W^T + b)), with a norm only where it has a weight.
struct PoolLayer {
  int64_t in = 0, out = 0;
  std::vector<float> weight = {};  // [out, in]
  std::vector<float> bias = {};    // [out] or empty
  PoolActivation activation = PoolActivation::kNone;
  std::vector<float> norm = {}, norm_bias = {};  // [out] or empty
  float norm_eps = 0;
  bool of_normalised = false;  // its input is normalised first

  std::vector<float> run(std::span<const float> x) const;
};

// Immutable after load; any thread may call it.
class Pooler {
 public:
  // Loads the layers that the config names.
  static Result<Pooler> load(Loader& loader, PoolerConfig config);

  const PoolerConfig& config() const { return config_; }
  // The size of an embedding without a cut.
  int64_t dimensions() const { return dense_.empty() ? hidden_ : dense_.back().out; }
  // Of an embedding whose request does not ask for a size.
  int64_t usual_dimensions() const { return config_.dimensions > 0 ? config_.dimensions : dimensions(); }
  // Dense layers, then the first `dimensions`, then the norm. REQUIRES: check_dimensions() passed.
  std::vector<float> embed(std::span<const float> pooled, std::optional<int64_t> dimensions, bool normalise) const;
  // The scores of the classes, with the activation of the config or as they are.
  std::vector<float> classify(std::span<const float> pooled, bool activate) const;
  // Of one token, with PoolerConfig::token_heads: its vector, as embed() makes one, and its weight (ReLU if activated).
  std::vector<float> token_vector(std::span<const float> hidden, std::optional<int64_t> dimensions,
                                  bool normalise) const;
  float token_weight(std::span<const float> hidden, bool activate) const;
  // Whether embeddings may be cut to this size.
  Status check_dimensions(int64_t dimensions) const;
  size_t bytes() const;

 private:
  PoolerConfig config_;
  int64_t hidden_ = 0;
  std::vector<PoolLayer> dense_, classifier_;
  PoolLayer token_vector_, token_weight_;  // with PoolerConfig::token_heads
};

// The scalar product and the cosine of two vectors of one size.
float dot(std::span<const float> a, std::span<const float> b);
float cosine(std::span<const float> a, std::span<const float> b);
// Late interaction: for each token of the query its best match in the document, summed.
float late_score(std::span<const std::vector<float>> query, std::span<const std::vector<float>> document);
// x / max(|x|, 1e-12)
void normalise(std::span<float> x);

}  // namespace quire::model
