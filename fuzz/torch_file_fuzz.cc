// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of files that torch.save wrote: every element of the tensors of an accepted file is read.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "weights/quant.h"
#include "weights/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  using namespace quire::weights;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto bytes = std::make_shared<std::vector<std::byte>>(begin, begin + size);
  const auto source = TorchSource::parse(*bytes, "fuzz.pt", bytes);
  if (!source.ok()) {
    QUIRE_CHECK(source.error().message.find("fuzz.pt") != std::string::npos, "an error names its file");
    return 0;
  }
  std::vector<float> row;
  for (const std::string& name : (*source)->names()) {
    const TensorRef* tensor = (*source)->find(name);
    QUIRE_CHECK(tensor != nullptr);
    QUIRE_CHECK(static_cast<int64_t>(tensor->data.size()) == tensor->elements() * info(tensor->dtype).block_bytes);
    row.resize(static_cast<size_t>(tensor->elements()));
    dequantise_row(tensor->dtype, tensor->data.data(), row.data(), tensor->elements());
  }
  QUIRE_CHECK(!(*source)->describe().empty());
  return 0;
}
