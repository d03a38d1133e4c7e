// SPDX-License-Identifier: Apache-2.0
// Fuzzes the GGUF reader: every string of an accepted file is read and every element dequantised.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "weights/gguf.h"
#include "weights/quant.h"

namespace {

using namespace quire;
using namespace quire::weights;

// Reads every element, so that a sanitizer detects a view that leaves the file.
size_t walk(const GgufArray& array) {
  size_t sum = 0;
  for (const std::string_view s : array.strings) {
    for (const char c : s) sum += static_cast<unsigned char>(c);
  }
  for (const GgufArray& inner : array.arrays) sum += walk(inner);
  if (plain_size(array.kind) != 0) {
    for (size_t i = 0; i < array.size; ++i) sum += static_cast<size_t>(array.at(i).integer);
  }
  return sum;
}

size_t ask_everything(const GgufMetadata& metadata) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  size_t answers = 0;
  for (const GgufMetadata::Pair& pair : metadata.pairs()) {
    QUIRE_CHECK(metadata.find(pair.key) == &pair.value);
    if (pair.value.array != nullptr) answers += walk(*pair.value.array);
    answers += metadata.get_int(pair.key, kMin, kMax).ok();
    answers += metadata.get_double(pair.key).ok();
    answers += metadata.get_bool(pair.key).ok();
    answers += metadata.get_string(pair.key).ok();
    answers += metadata.get_strings(pair.key).ok();
    answers += metadata.get_ints(pair.key).ok();
    answers += metadata.get_floats(pair.key).ok();
    answers += metadata.get_bools(pair.key).ok();
    answers += metadata.get_ints_per(pair.key, 3).ok();
  }
  return answers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto bytes = std::make_shared<std::vector<std::byte>>(begin, begin + size);
  const auto source = GgufSource::parse(*bytes, "fuzz.gguf", bytes);
  if (!source.ok()) {
    QUIRE_CHECK(source.error().message.find("fuzz.gguf") != std::string::npos, "an error names its file");
    return 0;
  }
  ask_everything((*source)->metadata());
  int64_t total = 0;
  std::vector<float> row;
  for (const std::string& name : (*source)->names()) {
    const TensorRef* tensor = (*source)->find(name);
    QUIRE_CHECK((*source)->get(name).ok() == (tensor != nullptr));
    if (tensor == nullptr) continue;
    const int64_t stride = row_bytes(tensor->dtype, tensor->columns());
    QUIRE_CHECK(static_cast<int64_t>(tensor->data.size()) == stride * tensor->rows());
    row.resize(static_cast<size_t>(tensor->columns()));
    for (int64_t r = 0; r < tensor->rows(); ++r) {
      dequantise_row(tensor->dtype, tensor->data.data() + r * stride, row.data(), tensor->columns());
    }
    total += static_cast<int64_t>(tensor->data.size());
  }
  for (const UnsupportedTensor& tensor : (*source)->unsupported()) total += tensor.bytes;
  QUIRE_CHECK(total == (*source)->total_bytes());
  QUIRE_CHECK(!(*source)->describe().empty());
  return 0;
}
