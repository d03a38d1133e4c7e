// SPDX-License-Identifier: Apache-2.0
// Ops by the kernels of sm_90a (kernels/cuda). They give the same bits as the portable kernels.
#pragma once

#include "backend/backend.h"
#include "backend/gpu/linear.h"

namespace quire::gpu::hopper {

// Queues attention and returns true, or returns false where these kernels do not serve it. `by_shape`: the step may be
// recorded, so that its launches depend on its shape alone.
bool attention(GpuBackend& gpu, const AttentionArgs& args, bool by_shape);
// The most bytes that it needs between its launches.
size_t attention_scratch(const GpuBackend& gpu, const WorkspaceLimits& sizes);

// The products of experts, whose weights lie one after another, for some tokens. Returns false where these kernels do
// not serve them. With `choices`, the output of each choice goes there, and nothing is summed (MoeChoicesArgs).
struct Experts {
  const WeightParams& weight;  // of one expert
  const float* bias;           // of all experts, or null
};
bool moe_experts(GpuBackend& gpu, const MoeExpertsArgs& args, const Experts& gate_up, const Experts& down,
                 const Tensor& choices);
// The most bytes that it needs between its launches, for so many choices at once.
size_t moe_scratch(const GpuBackend& gpu, const WorkspaceLimits& sizes, int64_t choices);

// The sums of a product with a bias, the second product of adapters (LinearArgs::lora), and what follows them.
bool finishes_with_adapters(const LinearProduct& product);
void finish_with_adapters(GpuBackend& gpu, const LinearProduct& product, const Tensor& sums);

extern const LinearPath kTallBeforeLibrary;  // narrow tiles of W in one wave, up to 256 rows: if that beats the library
extern const LinearPath kTall;               // the same, wherever it can run
extern const LinearPath kNormAndTall;        // a norm in a launch of its own, and then the same
extern const LinearPath kFewRows;            // up to 32 rows
extern const LinearPath kNormAndFew;         // a norm in a launch of its own, and then the same
extern const LinearPath kQuantisedFew;       // quantised weights, up to 8 rows
extern const LinearPath kQuantisedWide;      // the same, up to 256 rows

}  // namespace quire::gpu::hopper
