// SPDX-License-Identifier: Apache-2.0
// Addresses from a browser's address bar, valid and invalid.
#include "cli/hub/hub_address.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

constexpr std::string_view kHub = "https://huggingface.co";

HubAddress parsed(std::string_view text, std::string_view endpoint = kHub) {
  const auto result = parse_hub_address(text, endpoint);
  EXPECT_TRUE(result.ok()) << text << ": " << (result.ok() ? "" : result.error().message);
  return result.ok() ? *result : HubAddress{};
}

TEST(HubAddress, IsToldFromAName) {
  for (const char* address :
       {"https://huggingface.co/a/b", "http://localhost:1/a/b", "hf.co/a/b", "huggingface.co/a/b"}) {
    EXPECT_TRUE(is_hub_address(address)) << address;
  }
  for (const char* name : {"Qwen/Qwen3-0.6B-GGUF", "hf.co", "owner/name:Q4_K_M", "", "gpt2"}) {
    EXPECT_FALSE(is_hub_address(name)) << name;
  }
}

TEST(HubAddress, NamesTheRepository) {
  for (const char* address :
       {"https://huggingface.co/Qwen/Qwen3-0.6B-GGUF", "https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/",
        "hf.co/Qwen/Qwen3-0.6B-GGUF", "https://HF.co/Qwen/Qwen3-0.6B-GGUF?library=x#readme",
        "https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/discussions/3"}) {
    const HubAddress found = parsed(address);
    EXPECT_EQ(found.name, "Qwen/Qwen3-0.6B-GGUF") << address;
    EXPECT_EQ(found.revision, "");
    EXPECT_EQ(found.path, "");
  }
  EXPECT_EQ(parsed("hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0").name, "Qwen/Qwen3-0.6B-GGUF:Q8_0");
  EXPECT_EQ(parsed("https://huggingface.co/gpt2").name, "gpt2");
  EXPECT_EQ(parsed("https://huggingface.co/gpt2/tree/main").revision, "main");
}

TEST(HubAddress, NamesAFileOrAFolder) {
  const HubAddress file = parsed("https://huggingface.co/Qwen/Q/blob/main/Qwen3-0.6B-Q8_0.gguf");
  EXPECT_EQ(file.revision, "main");
  EXPECT_EQ(file.path, "Qwen3-0.6B-Q8_0.gguf");
  EXPECT_FALSE(file.is_folder);
  const HubAddress link = parsed("https://huggingface.co/Qwen/Q/resolve/refs%2Fpr%2F1/a/x%20y.gguf?download=true");
  EXPECT_EQ(link.revision, "refs/pr/1");
  EXPECT_EQ(link.path, "a/x y.gguf");
  const HubAddress folder = parsed("https://huggingface.co/Qwen/Q/tree/v1/BF16");
  EXPECT_EQ(folder.revision, "v1");
  EXPECT_EQ(folder.path, "BF16");
  EXPECT_TRUE(folder.is_folder);
}

TEST(HubAddress, AsksOnlyTheHubInUse) {
  EXPECT_EQ(parsed("http://127.0.0.1:99/a/b", "http://127.0.0.1:99").name, "a/b");
  EXPECT_EQ(parsed("https://huggingface.co/a/b", "http://mirror.example").name, "a/b");
  const auto other = parse_hub_address("https://evil.example/a/b", kHub);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("HF_ENDPOINT"), std::string::npos);
}

TEST(HubAddress, RefusesWhatIsNoModel) {
  for (const std::string& wrong :
       {std::string("https://huggingface.co/"), std::string("https://huggingface.co/datasets/a/b"),
        std::string("https://huggingface.co/spaces/a/b"), std::string("https://huggingface.co/a/b/blob"),
        std::string("https://huggingface.co/a/b/blob/main/..%2f..%2fetc"),
        "https://huggingface.co/a/b/blob/main/" + std::string(10'000, 'x')}) {
    EXPECT_FALSE(parse_hub_address(wrong, kHub).ok()) << wrong.substr(0, 100);
  }
}

}  // namespace
}  // namespace quire::cli
