// SPDX-License-Identifier: Apache-2.0
// PageMemory: zeroed memory straight from the system, committed page by page when first touched.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace quire::cpu {

// Owns one anonymous mapping; moves, never copies. Asks for huge pages, without which streaming weights loses a tenth
// or more of the bandwidth to TLB misses.
class PageMemory {
 public:
  PageMemory() = default;
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();
  static Result<PageMemory> allocate(size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;   // as asked for
  size_t mapped_ = 0;  // whole pages
};

}  // namespace quire::cpu
