// SPDX-License-Identifier: Apache-2.0
// Fuzzes the safetensors reader: the tensors of an accepted file cover the data, and every element is read.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "weights/quant.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  using namespace quire::weights;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto bytes = std::make_shared<std::vector<std::byte>>(begin, begin + size);
  const auto source = SafetensorsSource::parse(*bytes, "fuzz.safetensors", bytes);
  if (!source.ok()) {
    QUIRE_CHECK(source.error().message.find("fuzz.safetensors") != std::string::npos, "an error names its file");
    return 0;
  }
  int64_t total = 0;
  std::vector<float> row;
  for (const std::string& name : (*source)->names()) {
    const TensorRef* tensor = (*source)->find(name);
    QUIRE_CHECK((*source)->get(name).ok() == (tensor != nullptr));
    if (tensor == nullptr) continue;
    QUIRE_CHECK(static_cast<int64_t>(tensor->data.size()) == tensor->elements() * info(tensor->dtype).block_bytes);
    row.resize(static_cast<size_t>(tensor->elements()));
    dequantise_row(tensor->dtype, tensor->data.data(), row.data(), tensor->elements());
    total += static_cast<int64_t>(tensor->data.size());
  }
  for (const UnsupportedTensor& tensor : (*source)->unsupported()) total += tensor.bytes;
  QUIRE_CHECK(total == (*source)->total_bytes());
  uint64_t header = 0;
  std::memcpy(&header, data, sizeof header);
  QUIRE_CHECK(static_cast<uint64_t>(total) == size - sizeof header - header, "tensors cover the data exactly");
  QUIRE_CHECK(!(*source)->describe().empty());
  return 0;
}
