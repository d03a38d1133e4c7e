// SPDX-License-Identifier: Apache-2.0
// Packing: from the rows of a file to the panels of packed.h.
#pragma once

#include <memory>
#include <span>

#include "backend/cpu/page_memory.h"
#include "backend/cpu/packed.h"
#include "backend/cpu/thread_pool.h"
#include "base/result.h"
#include "ops/linear.h"

namespace quire::cpu {

// A packed weight and its memory. Immutable after pack(); any thread may read it.
class CpuMatrix final : public PackedMatrix {
 public:
  CpuMatrix(const PackedView& view, bool prepares_rows, PageMemory memory)
      : PackedMatrix(view.dtype, view.n, view.k),
        view_(view),
        prepares_rows_(prepares_rows),
        memory_(std::move(memory)) {}
  size_t bytes() const override { return memory_.bytes(); }
  const PackedView& view() const { return view_; }
  // Its rows of x are made ready first (LinearKernels::prepare); else they meet it as floats.
  bool prepares_rows() const { return prepares_rows_; }

 private:
  PackedView view_;
  bool prepares_rows_;
  PageMemory memory_;
};

// `packings` is what the level's product wants of weights that it takes.
Result<std::unique_ptr<CpuMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options,
                                        const Packings& packings, ThreadPool& pool);

}  // namespace quire::cpu
