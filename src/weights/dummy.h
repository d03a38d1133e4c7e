// SPDX-License-Identifier: Apache-2.0
// Seeded random weights (--load-format dummy): a tensor's values depend only on seed, name and shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

// The formula, so that a test in another language can compute the same values. For element i of the row-major tensor:
//   key = seed XOR fnv1a64(name); word = Philox4x32-10(key, counter = i / 4 in the low 64 bits)[i % 4]
//   u = (word >> 8) * 2^-24; v = 2u - 1, both exact in a float
//   two or more dimensions: v * a with a = float(sqrt(3.0 / last_dim)), which keeps the variance of x W^T near x's
//   fewer dimensions, a name that ends in ".bias": v * 0.1f; any other: 1 + v * 0.1f
// in float32, each operation rounded; for F16 and BF16 the result is then rounded to nearest even.
void fill_dummy(uint64_t seed, std::string_view name, std::span<const int64_t> shape, int64_t begin,
                std::span<float> values);

// The same for a recipe that a source gave (WeightSource::random): elements `begin` and so on of its tensor, not
// rounded to the type that it is stored in.
void fill_random(const RandomElements& random, int64_t begin, std::span<float> values);

// A source that creates any tensor by name and shape when it is first asked for, on all cores, and keeps it until it is
// released. Any thread may call it; the values depend only on seed, name, shape and type.
class DummySource final : public WeightSource {
 public:
  // Every tensor has the type `type`: F32, F16 or BF16. `threads` 0 means all cores.
  DummySource(uint64_t seed, DType type, int threads = 0);

  // The tensor, created if it does not exist yet. An Error if the shape is not positive or is too large, or if the
  // tensor already exists with another shape.
  Result<const TensorRef*> make(std::string_view name, std::span<const int64_t> shape) const;

  // Only tensors that were created and not released.
  const TensorRef* find(std::string_view name) const override;
  Result<const TensorRef*> get(std::string_view name) const override;
  Result<const TensorRef*> require(std::string_view name, std::span<const int64_t> shape) const override {
    return make(name, shape);
  }
  Result<RandomElements> random(std::string_view name, std::span<const int64_t> shape) const override;
  std::vector<std::string> names() const override;
  int64_t total_bytes() const override;
  std::string describe() const override;
  bool is_dummy() const override { return true; }
  void release(const TensorRef& tensor) const override;

 private:
  // The bytes of a tensor, or an Error if it cannot have that shape.
  Result<int64_t> bytes_of(std::string_view name, std::span<const int64_t> shape) const;
  void generate(std::string_view name, std::span<const int64_t> shape, std::span<std::byte> out) const;

  uint64_t seed_;
  DType type_;
  int threads_;
  mutable std::mutex mutex_;  // guards made_
  mutable std::map<std::string, std::unique_ptr<TensorRef>, std::less<>> made_;
};

}  // namespace quire::weights
