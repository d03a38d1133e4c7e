// SPDX-License-Identifier: Apache-2.0
// Packing: from the rows of a file to the panels of packed.h.
#pragma once

#include <memory>
#include <span>

#include "backend/cpu/memory.h"
#include "backend/cpu/packed.h"
#include "backend/cpu/thread_pool.h"
#include "base/result.h"
#include "ops/linear.h"

namespace quire::cpu {

// A packed weight and its memory. Immutable after pack(); any thread may read it.
class CpuMatrix final : public PackedMatrix {
 public:
  CpuMatrix(const PackedView& view, bool quantise_activations, PageMemory memory)
      : PackedMatrix(view.dtype, view.n, view.k),
        view_(view),
        quantise_activations_(quantise_activations),
        memory_(std::move(memory)) {}
  size_t bytes() const override { return memory_.bytes(); }
  const PackedView& view() const { return view_; }
  bool quantise_activations() const { return quantise_activations_; }

 private:
  PackedView view_;
  bool quantise_activations_;
  PageMemory memory_;
};

Result<std::unique_ptr<CpuMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options, ThreadPool& pool);

}  // namespace quire::cpu
