// SPDX-License-Identifier: Apache-2.0
// Packing: converts the rows of a file to the panels of packed.h.
#pragma once

#include <memory>
#include <span>

#include "backend/cpu/packed.h"
#include "backend/cpu/page_memory.h"
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
  // Whether LinearKernels::prepare runs on the rows of x first; otherwise the product takes floats.
  bool prepares_rows() const { return prepares_rows_; }

 private:
  PackedView view_;
  bool prepares_rows_;
  PageMemory memory_;
};

// `packings` are those of the ISA level's product.
Result<std::unique_ptr<CpuMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options,
                                        const Packings& packings, ThreadPool& pool);

}  // namespace quire::cpu
