// SPDX-License-Identifier: Apache-2.0
// LinearPath: the ways to run a matrix product on a GPU. Which one is taken is a matter of speed alone: with 16-bit
// activations all of them run one chain of k16 steps for each sum, so that their results are equal by memcmp.
#pragma once

#include "backend/gpu/weight_layout.h"

namespace quire::gpu {

class GpuBackend;

// A product as its paths see it.
struct LinearProduct {
  const LinearArgs& args;
  const GpuMatrix& weight;
  DType type;  // of the activations that are multiplied: after a norm not x's own
};

// Paths are asked in the order of a list (linear.cc); the first that serves the product runs it.
struct LinearPath {
  bool (*serves)(GpuBackend& gpu, const LinearProduct& product);
  void (*run)(GpuBackend& gpu, const LinearProduct& product);
};

// What becomes of the sums (kernels/params/linear.h).
LinearEpilogue linear_epilogue(const LinearArgs& args);

// Launches the first product of a product's adapters.
void run_first_product(GpuBackend& gpu, const LinearProduct& product);

}  // namespace quire::gpu
