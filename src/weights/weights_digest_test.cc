// SPDX-License-Identifier: Apache-2.0
// The digest of a checkpoint: any bit, name, type or shape of a tensor changes it; the order in the file does not.
#include "weights/weights_digest.h"

#include <gtest/gtest.h>

#include "weights/safetensors.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using testing::exact_copy;
using testing::safetensors_file;
using testing::SafetensorsTensor;

std::string digest_of_file(const std::vector<SafetensorsTensor>& tensors) {
  const auto copy = exact_copy(safetensors_file(tensors));
  const auto source = SafetensorsSource::parse(*copy, "test.safetensors", copy);
  return source.ok() ? weights_digest(**source) : source.error().message;
}

TEST(WeightsDigest, NoticesEveryBitAndName) {
  // The second tensor has a type that only readers of quantised formats use; the first has two parts.
  std::vector<SafetensorsTensor> tensors = {{"a", "F32", {(1 << 20) + 4}, std::string((4 << 20) + 16, 'x')},
                                            {"b", "I64", {2}, std::string(16, 'y')}};
  const std::string before = digest_of_file(tensors);
  EXPECT_EQ(before.size(), 32u) << before;
  EXPECT_EQ(digest_of_file({tensors[1], tensors[0]}), before) << "the order does not count";
  for (SafetensorsTensor& tensor : tensors) {
    for (const size_t at : {size_t{0}, tensor.data.size() / 2, tensor.data.size() - 1}) {
      tensor.data[at] ^= 1;
      EXPECT_NE(digest_of_file(tensors), before) << tensor.name << " at " << at;
      tensor.data[at] ^= 1;
    }
    tensor.name += "2";
    EXPECT_NE(digest_of_file(tensors), before) << tensor.name;
    tensor.name.pop_back();
  }
  tensors[1].shape = {1, 2};
  EXPECT_NE(digest_of_file(tensors), before);
}

}  // namespace
}  // namespace quire::weights
