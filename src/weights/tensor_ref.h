// SPDX-License-Identifier: Apache-2.0
// The interface of weight readers: tensors by name, as views of memory that their owner keeps alive.
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
#include "ops/linear.h"

namespace quire::weights {

// One tensor: a name, a type, a shape and its bytes. Copies are cheap and share the bytes. `data` stays valid while
// `owner` (or the source) is alive. Its address is a multiple of 4, and its size is exactly what dtype and shape need,
// so rows are `row_bytes(dtype, shape.back())` apart.
struct TensorRef {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // row-major, outermost first: a linear weight is [out, in]; empty for a scalar
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner;

  int64_t elements() const;
  // The elements of one row (the last dimension), and the number of rows. A scalar is one row of one element.
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;
};

// A tensor with a type that quire cannot compute with: it is listed but cannot be used directly. Readers of quantised
// formats use its bytes, which safetensors sources provide; their address has no alignment.
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

// The tensors of one checkpoint, by the names in the file (Hugging Face's or GGUF's). Immutable to its users; any
// thread may read it. Pointers that it returns live as long as the source, unless released.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // The tensor; null if it does not exist or has an unsupported type.
  virtual const TensorRef* find(std::string_view name) const = 0;
  // The tensor; an Error with its name and the checkpoint if it is missing or has an unsupported type.
  virtual Result<const TensorRef*> get(std::string_view name) const = 0;
  // The tensor with exactly this shape (leading dimensions of 1 do not count, since GGUF drops them); an Error with
  // both shapes if it differs. A dummy source creates it, so use this for weights that the config promises.
  virtual Result<const TensorRef*> require(std::string_view name, std::span<const int64_t> shape) const;
  // The names of all tensors in file order, including those with an unsupported type.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<UnsupportedTensor> unsupported() const { return {}; }
  // The tensor of an unsupported type, or null.
  virtual const UnsupportedTensor* find_unsupported(std::string_view name) const {
    static_cast<void>(name);
    return nullptr;
  }
  // The bytes of all tensor data, including unsupported tensors.
  virtual int64_t total_bytes() const = 0;
  // One line for people: format, files, tensors, size.
  virtual std::string describe() const = 0;
  // A dummy source's tensor as a recipe, for a backend that makes the elements itself. Rows of the matrix are rows of
  // the tensor until the caller says otherwise.
  virtual Result<RandomElements> random(std::string_view name, std::span<const int64_t> shape) const {
    static_cast<void>(shape);
    return invalid_argument({"tensor '", name, "' is not random"});
  }
  // True if `require` creates whatever it is asked for, so that `find` does not show which tensors exist.
  virtual bool is_dummy() const { return false; }
  // Frees the memory of bytes that were repacked and that nobody reads any more. Afterwards the TensorRef pointers of a
  // dummy source are invalid; those of a file stay valid and read from disk again.
  virtual void release(const TensorRef& tensor) const = 0;
  // The same for some of the tensor's bytes; the tensor stays valid.
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
