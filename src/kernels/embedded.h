// SPDX-License-Identifier: Apache-2.0
// What the build embeds for GPUs: the flat Metal text and the CUDA binaries, by name. The lists may be empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kernels {

// One Metal source, compiled on the user's machine; `name` is that of its file in src/kernels, without ".h".
struct EmbeddedText {
  std::string_view name;
  std::string_view text;
};

// One fatbin for the CUDA driver to load; `hopper` ones hold src/kernels/cuda, for sm_90a alone.
struct EmbeddedBinary {
  std::string_view name;
  std::span<const uint8_t> bytes;
  bool hopper = false;
};

std::span<const EmbeddedText> metal_texts();
std::span<const EmbeddedBinary> cuda_binaries();

}  // namespace quire::kernels
