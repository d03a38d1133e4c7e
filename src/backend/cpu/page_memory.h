// SPDX-License-Identifier: Apache-2.0
// PageMemory: zeroed memory straight from the system, committed page by page when first touched.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/result.h"

namespace quire::cpu {

// Owns one anonymous mapping, or a piece of one; moves, never copies. Asks for huge pages, without which streaming
// weights loses a tenth or more of the bandwidth to TLB misses. What is committed is what was touched, in units of a
// huge page inside the mapping and never past its end.
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
  // A mapping of its own, which goes back to the system with this object.
  static Result<PageMemory> allocate(size_t bytes);
  // A piece of a mapping that many share, so that matrices smaller than a huge page get huge pages too and none pays
  // for a whole one at its end. For what lives as long as the model: the mapping goes back when its last piece dies.
  // Begins on a 4 KiB boundary. Any thread.
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
