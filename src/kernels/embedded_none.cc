// SPDX-License-Identifier: Apache-2.0
// The lists of a build that embeds nothing.
#include "kernels/embedded.h"

namespace quire::kernels {

std::span<const EmbeddedText> metal_texts() {
  return {};
}
std::span<const EmbeddedBinary> cuda_binaries() {
  return {};
}

}  // namespace quire::kernels
