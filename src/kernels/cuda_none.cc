// SPDX-License-Identifier: Apache-2.0
// The list of a build without nvcc: no CUDA binaries.
#include "kernels/embedded.h"

namespace quire::kernels {

std::span<const EmbeddedBinary> cuda_binaries() {
  return {};
}

}  // namespace quire::kernels
