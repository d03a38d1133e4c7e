// SPDX-License-Identifier: Apache-2.0
// Formats tensor shapes and looks up tensors in the table.
#include "weights/tensor_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "weights/file_sniff.h"

namespace quire::weights {

int64_t TensorRef::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;  // the readers checked for overflow
  return n;
}

int64_t TensorRef::rows() const {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

std::string shape_string(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

namespace {

std::span<const int64_t> without_leading_ones(std::span<const int64_t> shape) {
  while (!shape.empty() && shape.front() == 1) shape = shape.subspan(1);
  return shape;
}

}  // namespace

Result<const TensorRef*> WeightSource::require(std::string_view name, std::span<const int64_t> shape) const {
  QUIRE_ASSIGN(const TensorRef* tensor, get(name));
  const auto have = without_leading_ones(tensor->shape);
  const auto want = without_leading_ones(shape);
  if (!std::equal(have.begin(), have.end(), want.begin(), want.end())) {
    return corrupt({"tensor ", in_quotes(name), " has the shape ", shape_string(tensor->shape),
                    " where config.json requires ", shape_string(shape), " (", describe(), ")"});
  }
  return tensor;
}

const TensorRef* TableSource::find(std::string_view name) const {
  const auto it = places_.find(name);
  if (it == places_.end() || !it->second.supported) return nullptr;
  return tensors_[it->second.index].get();
}

Result<const TensorRef*> TableSource::get(std::string_view name) const {
  const auto it = places_.find(name);
  if (it == places_.end()) {
    return not_found({"'", name_, "' has no tensor ", in_quotes(name),
                      ": the checkpoint is incomplete or has another architecture"});
  }
  if (!it->second.supported) {
    const UnsupportedTensor& tensor = unsupported_[it->second.index];
    return quire::unsupported({"tensor ", in_quotes(name), " of '", name_, "' has the type ", tensor.type_name,
                               ", which quire cannot compute with: use a checkpoint in another type"});
  }
  return static_cast<const TensorRef*>(tensors_[it->second.index].get());
}

std::vector<std::string> TableSource::names_from(size_t first) const {
  std::vector<std::string> out;
  out.reserve(order_.size() - first);
  for (size_t i = first; i < order_.size(); ++i) {
    const Place& place = order_[i];
    out.push_back(place.supported ? tensors_[place.index]->name : unsupported_[place.index].name);
  }
  return out;
}

const UnsupportedTensor* TableSource::find_unsupported(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() || it->second.supported ? nullptr : &unsupported_[it->second.index];
}

void TableSource::release_bytes(const void* owner, std::span<const std::byte> part) const {
  for (const auto& map : maps_) {
    if (map.get() != owner) continue;
    map->drop(part);
    map->read_ahead(part);
  }
}

bool TableSource::add(TensorRef tensor) {
  const Place place{true, tensors_.size()};
  if (!places_.emplace(tensor.name, place).second) return false;
  if (reinterpret_cast<uintptr_t>(tensor.data.data()) % 4 != 0 && !tensor.data.empty()) {
    const auto copy = std::make_shared<std::vector<std::byte>>(tensor.data.begin(), tensor.data.end());
    tensor.data = *copy;
    tensor.owner = copy;
  }
  total_bytes_ += static_cast<int64_t>(tensor.data.size());
  order_.push_back(place);
  tensors_.push_back(std::make_unique<TensorRef>(std::move(tensor)));
  return true;
}

bool TableSource::add(UnsupportedTensor tensor) {
  const Place place{false, unsupported_.size()};
  if (!places_.emplace(tensor.name, place).second) return false;
  total_bytes_ += tensor.bytes;
  order_.push_back(place);
  unsupported_.push_back(std::move(tensor));
  return true;
}

std::string TableSource::describe_tensors() const {
  std::vector<std::pair<std::string, int>> counts;  // by type, in order of first appearance
  const auto count = [&counts](std::string_view type) {
    for (auto& [name, n] : counts) {
      if (name == type) {
        ++n;
        return;
      }
    }
    counts.emplace_back(type, 1);
  };
  for (const auto& tensor : tensors_) count(name(tensor->dtype));
  for (const auto& tensor : unsupported_) count(tensor.type_name);
  std::string types;
  for (const auto& [name, n] : counts) types += (types.empty() ? "" : ", ") + std::to_string(n) + " " + name;
  char size[32];
  std::snprintf(size, sizeof size, "%.1f MB", static_cast<double>(total_bytes_) / 1e6);
  return std::to_string(order_.size()) + (order_.size() == 1 ? " tensor" : " tensors") +
         (types.empty() ? "" : " (" + types + ")") + ", " + size;
}

}  // namespace quire::weights
