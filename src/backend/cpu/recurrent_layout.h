// SPDX-License-Identifier: Apache-2.0
// How the recurrent ops divide their work and lay out a state; shared by the host side and the kernels.
#pragma once

#include <cstdint>

#include "base/math.h"
#include "ops/recurrent.h"

namespace quire::cpu {

// Heads come in groups that share some inputs: a key head's value heads (gated delta net), a group's heads (Mamba-2).
// The units of a group are the slices of its heads' states: unit u is slice u % slices of head u / slices. An item is
// units [begin, end) of one group of one sequence, over all its tokens; no two items write the same state or output.
struct StateItem {
  int64_t sequence, group, begin, end;
};

constexpr int64_t slices_of(int64_t cols) {
  return ceil_div(cols, kStateSlice);
}

constexpr int64_t kStateBlock = 64;          // tokens whose inputs are prepared at a time
constexpr int64_t kShortConvChannels = 256;  // per piece of short_conv

// Floats of scratch that an item needs: two shared inputs, a slice of the head's own, five scalars per token, the taps.
constexpr int64_t kStateScratchFloats =
    kStateBlock * (2 * kMaxStateDim + kStateSlice + 5) + kMaxConvKernel * kMaxStateDim;
constexpr int64_t kShortConvScratchFloats = (kMaxConvKernel - 1 + kStateBlock + kMaxConvKernel) * kShortConvChannels;

// The state in a page; null if the page is -1.
static inline __attribute__((always_inline)) float* state_of(const StateLayer& layer, int32_t page) {
  if (page < 0) return nullptr;
  return reinterpret_cast<float*>(static_cast<char*>(layer.pages) + page * layer.page_stride);
}

}  // namespace quire::cpu
