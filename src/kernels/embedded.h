// SPDX-License-Identifier: Apache-2.0
// The kernels that the build embeds in the program, by name: flattened Metal sources and CUDA binaries. A list may be
// empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kernels {

// One Metal source, compiled on the user's machine. `name` is its file in src/kernels, without ".h".
struct EmbeddedText {
  std::string_view name;
  std::string_view text;
};

// One fatbin for the CUDA driver to load. `hopper`: it was made from src/kernels/cuda and is for sm_90a only.
struct EmbeddedBinary {
  std::string_view name;
  std::span<const uint8_t> bytes;
  bool hopper = false;
};

std::span<const EmbeddedText> metal_texts();
std::span<const EmbeddedBinary> cuda_binaries();

}  // namespace quire::kernels
