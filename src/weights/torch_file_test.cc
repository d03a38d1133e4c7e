// SPDX-License-Identifier: Apache-2.0
// The files are what torch.save of PyTorch 2.11 wrote; the fuzzer begins with them, too.
#include "weights/torch_file.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "weights/quant.h"

namespace quire::weights {
namespace {

const std::filesystem::path kTorchSeeds = QUIRE_SOURCE_DIR "/fuzz/seeds/torch_file";

std::vector<float> values_of(const TorchSource& source, const char* name, std::vector<int64_t> shape) {
  const auto tensor = source.require(name, shape);
  EXPECT_TRUE(tensor.ok()) << (tensor.ok() ? "" : tensor.error().message);
  if (!tensor.ok()) return {};
  std::vector<float> out(static_cast<size_t>((*tensor)->elements()));
  dequantise_row((*tensor)->dtype, (*tensor)->data.data(), out.data(), (*tensor)->elements());
  return out;
}

std::string torch_failure(const char* name) {
  const auto source = TorchSource::open(kTorchSeeds / name);
  EXPECT_FALSE(source.ok()) << name;
  return source.ok() ? "" : source.error().message;
}

TEST(TorchFile, ReadsAStateDict) {
  const auto half = TorchSource::open(kTorchSeeds / "linear_f16");
  ASSERT_TRUE(half.ok()) << half.error().message;
  EXPECT_EQ(values_of(**half, "weight", {1, 8}),
            (std::vector<float>{0.18212890625f, -0.156005859375f, -0.06854248046875f, 0.1658935546875f,
                                -0.332763671875f, 0.2120361328125f, -0.07275390625f, 0.1798095703125f}));
  EXPECT_EQ(values_of(**half, "bias", {1}), std::vector<float>{0.049163818359375f});
  EXPECT_FALSE((*half)->describe().empty());

  const auto single = TorchSource::open(kTorchSeeds / "linear_f32");
  ASSERT_TRUE(single.ok()) << single.error().message;
  EXPECT_EQ((*single)->names(), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(values_of(**single, "weight", {3, 4})[9], 0.43708336353302f);
  EXPECT_EQ(values_of(**single, "bias", {3})[2], -0.21567034721374512f);
}

TEST(TorchFile, ReadsAPlainDictAndParameters) {
  const auto brain = TorchSource::open(kTorchSeeds / "dict_bf16");
  ASSERT_TRUE(brain.ok()) << brain.error().message;
  EXPECT_EQ(values_of(**brain, "weight", {2, 3}), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  const auto parameter = TorchSource::open(kTorchSeeds / "parameter");
  ASSERT_TRUE(parameter.ok()) << parameter.error().message;
  EXPECT_EQ(values_of(**parameter, "weight", {2, 2}), (std::vector<float>{1, 1, 1, 1}));
}

TEST(TorchFile, RefusesWhatIsNoPlainTensor) {
  EXPECT_NE(torch_failure("module").find("torch.nn.modules.linear.Linear"), std::string::npos);
  EXPECT_NE(torch_failure("strided").find("not one after another"), std::string::npos);
  EXPECT_NE(torch_failure("int").find("torch.LongStorage"), std::string::npos);
  EXPECT_NE(torch_failure("legacy").find("no zip archive"), std::string::npos);
  EXPECT_NE(torch_failure("missing").find("missing"), std::string::npos);
  EXPECT_NE(torch_failure("evil").find("posix.system"), std::string::npos);
}

TEST(TorchFile, SurvivesEveryTruncation) {
  const auto whole = read_file(kTorchSeeds / "linear_f16", size_t{1} << 20);
  ASSERT_TRUE(whole.ok());
  for (size_t size = 0; size < whole->size(); ++size) {
    const auto owner = std::make_shared<const std::string>(whole->substr(0, size));
    const auto source = TorchSource::parse(std::as_bytes(std::span(*owner)), "cut.pt", owner);
    if (source.ok()) continue;
    EXPECT_NE(source.error().message.find("cut.pt"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire::weights
