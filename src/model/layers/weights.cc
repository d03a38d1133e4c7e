// SPDX-License-Identifier: Apache-2.0
// The size of a decoder's weights, and their move to the backend's memory.
#include "model/layers/weights.h"

#include <type_traits>

namespace quire::model {

size_t ExpertMatrices::bytes() const {
  size_t total = 0;
  for (const Packed& matrix : matrices) total += matrix->bytes();
  return total;
}

Status ExpertMatrices::place(Backend& backend) {
  QUIRE_TRY(bias.place(backend));
  views.clear();
  bias_views.clear();
  for (const Packed& matrix : matrices) views.push_back(matrix.get());
  for (size_t e = 0; e < matrices.size() && !bias.empty(); ++e) {
    bias_views.push_back(bias.data() + e * (bias.size() / matrices.size()));
  }
  return backend.stack(views);
}

size_t DecoderWeights::bytes() const {
  size_t total = 0;
  for_each_weight(*this, [&]<typename W>(const W& weight) {
    if constexpr (std::is_same_v<W, Packed>) {
      total += weight == nullptr ? 0 : weight->bytes();
    } else if constexpr (requires { weight.bytes(); }) {
      total += weight.bytes();
    }
  });
  return !head.empty() && &head.first() == embedding.get() ? total - head.bytes() : total;
}

Status DecoderWeights::place(Backend& backend) {
  Status status;
  for_each_weight(*this, [&](auto& weight) {
    if constexpr (requires { weight.place(backend); }) {
      if (status.ok()) status = weight.place(backend);
    }
  });
  return status;
}

}  // namespace quire::model
