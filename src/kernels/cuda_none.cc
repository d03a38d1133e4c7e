// SPDX-License-Identifier: Apache-2.0
// The empty list of CUDA binaries, for builds without nvcc.
#include "kernels/embedded.h"

namespace quire::kernels {

std::span<const EmbeddedBinary> cuda_binaries() {
  return {};
}

}  // namespace quire::kernels
