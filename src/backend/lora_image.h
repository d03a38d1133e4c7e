// SPDX-License-Identifier: Apache-2.0
// LoraImage: the bytes of an adapter as a slot holds them (ops/lora.h), made on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/lora.h"

namespace quire {

// The adapter of one matrix among those of a site.
struct LoraPart {
  int64_t column = 0, n = 0;  // of the site's output
  int64_t rank = 0;
  std::span<const float> a;           // [rank, K]; empty: that of the part before, which has the same rank
  std::span<const float> b;           // [rows, rank]; rows is n, or more with a map
  std::span<const int32_t> map = {};  // column i takes row map[i] of b; empty: row i
  float scale = 1;
};

// Made once for an adapter: add() for some of the sites, then take().
class LoraImage {
 public:
  LoraImage(int64_t num_sites, DType dtype);

  void add(int64_t site, int64_t k, std::span<const LoraPart> parts);
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }
  std::vector<std::byte> take() { return std::move(bytes_); }

  // The bytes of the header, and what add() needs for a site: for a slot that is large enough for every adapter.
  static int64_t header_bytes(int64_t num_sites);
  static int64_t site_bytes(DType dtype, int64_t k, int64_t rank, std::span<const LoraPart> parts);

 private:
  int64_t reserve(int64_t bytes);
  // Writes rows x cols floats from get(row, col), in the image's type and in panels.
  template <typename Get>
  int64_t matrix(int64_t rows, int64_t cols, const Get& get);

  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace quire
