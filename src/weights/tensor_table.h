// SPDX-License-Identifier: Apache-2.0
// The table that both file readers fill: tensors by name, supported and unsupported ones apart.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

// A WeightSource with a table that a reader fills while opening; immutable afterwards. Keeps the file maps alive.
class TableSource : public WeightSource {
 public:
  const TensorRef* find(std::string_view name) const override;
  Result<const TensorRef*> get(std::string_view name) const override;
  std::vector<std::string> names() const override { return names_from(0); }
  std::vector<UnsupportedTensor> unsupported() const override { return unsupported_; }
  const UnsupportedTensor* find_unsupported(std::string_view name) const override;
  int64_t total_bytes() const override { return total_bytes_; }
  void release(const TensorRef& tensor) const override { release_part(tensor, tensor.data); }
  void release_part(const TensorRef& tensor, std::span<const std::byte> part) const override {
    release_bytes(tensor.owner.get(), part);
  }
  void release_part(const UnsupportedTensor& tensor, std::span<const std::byte> part) const override {
    release_bytes(tensor.owner.get(), part);
  }

 protected:
  TableSource() = default;
  // Adds a tensor; false if the name exists already. Data whose address is not a multiple of 4 is copied to aligned
  // memory (files from common writers never need this).
  bool add(TensorRef tensor);
  bool add(UnsupportedTensor tensor);
  bool contains(std::string_view name) const { return places_.find(name) != places_.end(); }
  size_t size() const { return order_.size(); }
  // "272 tensors (61 F32, 211 Q4_1), 98.9 MB".
  std::string describe_tensors() const;
  // The names added after the first `first` ones.
  std::vector<std::string> names_from(size_t first) const;

  std::string name_;  // the checkpoint, in messages
  std::vector<std::shared_ptr<const MappedFile>> maps_;

 private:
  struct Place {
    bool supported = false;
    size_t index = 0;
  };
  void release_bytes(const void* owner, std::span<const std::byte> part) const;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::vector<std::unique_ptr<TensorRef>> tensors_;  // pointers, so that those from find() stay valid
  std::vector<UnsupportedTensor> unsupported_;
  std::unordered_map<std::string, Place, Hash, std::equal_to<>> places_;
  std::vector<Place> order_;
  int64_t total_bytes_ = 0;
};

}  // namespace quire::weights
