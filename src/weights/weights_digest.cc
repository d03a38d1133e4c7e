// SPDX-License-Identifier: Apache-2.0
// Digests parts of tensors, and then the list of these digests.
#include "weights/weights_digest.h"

#include <algorithm>

#include "base/check.h"
#include "base/digest.h"
#include "base/parallel.h"

namespace quire::weights {
namespace {

constexpr size_t kPartBytes = size_t{4} << 20;
constexpr size_t kSampledTensors = 2048;
constexpr size_t kSampleBytes = 4096;

struct Part {
  const TensorRef* tensor = nullptr;  // one of these two
  const UnsupportedTensor* unsupported = nullptr;
  std::span<const std::byte> data = {};
};

}  // namespace

std::string weights_digest(const WeightSource& source) {
  QUIRE_CHECK(!source.is_dummy(), "a dummy source has no bytes before they are asked for");
  std::vector<std::string> names = source.names();
  std::sort(names.begin(), names.end());
  std::string list;
  std::vector<Part> parts;
  const auto add = [&](const auto& tensor, const std::string& type, Part part) {
    list += tensor.name + " " + type + " " + shape_string(tensor.shape) + "\n";
    for (std::span<const std::byte> left = tensor.data; !left.empty();) {
      part.data = left.first(std::min(left.size(), kPartBytes));
      parts.push_back(part);
      left = left.subspan(part.data.size());
    }
  };
  for (const std::string& name : names) {
    if (const TensorRef* tensor = source.find(name); tensor != nullptr) {
      add(*tensor, info(tensor->dtype).name, {.tensor = tensor});
    } else if (const UnsupportedTensor* other = source.find_unsupported(name); other != nullptr) {
      add(*other, other->type_name, {.unsupported = other});
    }
  }
  std::vector<std::string> digests(parts.size());
  parallel_blocks(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      digests[static_cast<size_t>(i)] = digest_of(part.data).hex();
      if (part.tensor != nullptr) {
        source.release_part(*part.tensor, part.data);
      } else {
        source.release_part(*part.unsupported, part.data);
      }
    }
  });
  for (const std::string& digest : digests) list += digest + "\n";
  return digest_of(list).hex();
}

std::string weights_sample_digest(const WeightSource& source) {
  QUIRE_CHECK(!source.is_dummy(), "a dummy source has no bytes before they are asked for");
  std::vector<std::string> names = source.names();
  std::sort(names.begin(), names.end());
  const size_t step = names.size() / kSampledTensors + 1;
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    const TensorRef* tensor = source.find(names[i]);
    const UnsupportedTensor* other = tensor == nullptr ? source.find_unsupported(names[i]) : nullptr;
    if (tensor == nullptr && other == nullptr) continue;
    const std::span<const std::byte> data = tensor != nullptr ? tensor->data : other->data;
    list += names[i] + " " + (tensor != nullptr ? info(tensor->dtype).name : other->type_name) + " " +
            shape_string(tensor != nullptr ? tensor->shape : other->shape);
    if (i % step == 0) {
      // From the middle: the beginning may be a row of padding, which is the same in every training.
      const size_t bytes = std::min(data.size(), kSampleBytes);
      list += " " + digest_of(data.subspan((data.size() - bytes) / 2, bytes)).hex();
    }
    list += "\n";
  }
  return digest_of(list).hex();
}

}  // namespace quire::weights
