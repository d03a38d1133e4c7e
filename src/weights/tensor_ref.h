// SPDX-License-Identifier: Apache-2.0
// What a weight reader hands out: tensors by name, as views of memory that somebody keeps alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/dtype.h"

namespace quire::weights {

// One tensor: a name, a type, a shape and its bytes. Copies are cheap and share the bytes. `data` stays valid while
// `owner` (or the source it came from) lives; it begins at an address that is a multiple of 4, and its size is exactly
// what dtype and shape need, so rows are `row_bytes(dtype, shape.back())` apart.
struct TensorRef {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // row-major, outermost first: a linear weight is [out, in]; empty for a scalar
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner;

  int64_t elements() const;
  // Elements of one row (the last dimension), and how many rows there are. A scalar is one row of one element.
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;
};

// A tensor that the file holds in a type quire has no arithmetic for: listed, and not for use as it is. Readers of
// quantised formats take its bytes, which safetensors files give; their address is a multiple of nothing.
struct UnsupportedTensor {
  std::string name;
  std::string type_name;  // "I64", "IQ2_XXS (ggml type 16)", ...
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  std::span<const std::byte> data = {};
  std::shared_ptr<const void> owner = {};
};

// "[576, 49152]".
std::string shape_string(std::span<const int64_t> shape);

// The tensors of one checkpoint, by the names the file uses (Hugging Face's or GGUF's). Immutable as its users see it
// and safe to read from any thread; the pointers it gives out live as long as the source, unless released.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // The tensor, or null when there is none of that name or its type is unsupported.
  virtual const TensorRef* find(std::string_view name) const = 0;
  // The tensor; an Error that names it and the checkpoint when it is missing or of an unsupported type.
  virtual Result<const TensorRef*> get(std::string_view name) const = 0;
  // The tensor of exactly this shape (leading dimensions of 1 do not count, for GGUF drops them); an Error that names
  // both shapes when it differs. A dummy source makes it, so this is the call for weights that the config promises.
  virtual Result<const TensorRef*> require(std::string_view name, std::span<const int64_t> shape) const;
  // Every tensor's name in file order, those of an unsupported type too.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<UnsupportedTensor> unsupported() const { return {}; }
  // The tensor of an unsupported type, or null.
  virtual const UnsupportedTensor* find_unsupported(std::string_view name) const {
    static_cast<void>(name);
    return nullptr;
  }
  // Bytes of all tensor data, the unsupported included.
  virtual int64_t total_bytes() const = 0;
  // One line for people: format, files, tensors, size.
  virtual std::string describe() const = 0;
  // True when `require` makes up whatever it is asked for, so that a name's absence from `find` says nothing.
  virtual bool is_dummy() const { return false; }
  // The caller has its own copy (repacked) and no one reads these bytes any more: memory may go back. After it the
  // TensorRef pointers of a dummy source are dead; those of a file stay valid and read from disk again.
  virtual void release(const TensorRef& tensor) const = 0;
  // The same for some bytes of the tensor, of which it stays valid.
  virtual void release_part(const TensorRef& tensor, std::span<const std::byte> part) const {
    static_cast<void>(tensor), static_cast<void>(part);
  }
  virtual void release_part(const UnsupportedTensor& tensor, std::span<const std::byte> part) const {
    static_cast<void>(tensor), static_cast<void>(part);
  }

 protected:
  WeightSource() = default;
};

}  // namespace quire::weights
