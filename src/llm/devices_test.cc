// SPDX-License-Identifier: Apache-2.0
// --device: kinds of devices, and which GPU a rank has.
#include "llm/devices.h"

#include <gtest/gtest.h>

namespace quire::llm {
namespace {

TEST(Devices, AreReadFromTheFlag) {
  EXPECT_EQ(parse_device("auto")->kind, "auto");
  const DeviceChoice all = parse_device("cuda").value();
  EXPECT_EQ(all.index(3), 3);
  EXPECT_EQ(all.sharing(1, 0, 4), 1);
  const DeviceChoice named = parse_device("cuda:2,0,2").value();
  EXPECT_EQ(named.kind, "cuda");
  EXPECT_EQ(named.indices, (std::vector<int>{2, 0, 2}));
  EXPECT_EQ(named.index(0), 2);
  EXPECT_EQ(named.sharing(0, 0, 3), 2);
  EXPECT_EQ(named.sharing(0, 1, 3), 1);
  EXPECT_EQ(named.sharing(1, 0, 3), 1);
  for (const char* wrong :
       {"", "gpu", "cuda:", "cuda:,", "cuda:1,", "cuda:-1", "cuda:x", "cuda:1x", "cuda:99999999999", "cpu:0"}) {
    const auto refused = parse_device(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().message, "--device is '" + std::string(wrong) +
                                           "'; choose auto, cpu, cuda, metal or emulator, or name GPUs as in cuda:1 or "
                                           "cuda:0,1");
  }
}

TEST(Devices, DivideTheirMemoryIntoEqualParts) {
  EXPECT_DOUBLE_EQ(part_of_free({}, 0.9), 0.9);
  for (const double share : {0.25, 0.9, 1.0}) {
    double free = 1000;
    for (int before = 0; before < 3; ++before) {
      const double taken = free * part_of_free({.before = before, .all = 3}, share);
      EXPECT_NEAR(taken, 1000 * share / 3, 1e-9) << before << " of " << share;
      free -= taken;
    }
  }
}

}  // namespace
}  // namespace quire::llm
