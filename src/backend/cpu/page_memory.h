// SPDX-License-Identifier: Apache-2.0
// PageMemory: zeroed memory from mmap, committed page by page on first use.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/result.h"

namespace quire::cpu {

// Owns one anonymous mapping, or a piece of one; movable, not copyable. It asks for huge pages: without them, TLB
// misses cost a tenth or more of the bandwidth when weights are streamed. Memory is committed on first use, in units of
// a huge page inside the mapping and never past its end.
class PageMemory {
 public:
  PageMemory() = default;
  PageMemory(PageMemory&& other) noexcept { *this = std::move(other); }
  PageMemory& operator=(PageMemory&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  // A mapping of its own, which is unmapped with this object.
  static Result<PageMemory> allocate(size_t bytes);
  // A piece of a shared mapping, so that matrices smaller than a huge page are in huge pages too and waste none at
  // their end. For memory that lives as long as the model: the mapping is unmapped with its last piece. Aligned to 4
  // KiB. Thread-safe.
  static Result<PageMemory> allocate_piece(size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as asked for

 private:
  class Mapping;
  std::shared_ptr<Mapping> mapping_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace quire::cpu
