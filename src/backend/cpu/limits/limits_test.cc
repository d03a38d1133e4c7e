// SPDX-License-Identifier: Apache-2.0
// The probes of the machine's limits run, and each level is held to its own instructions.
#include "backend/cpu/limits/limits.h"

#include <gtest/gtest.h>

namespace quire::cpu {
namespace {

TEST(Limits, EveryProbeOfThisMachineRunsAndReadingDoes) {
  auto meter = LimitsMeter::make(2, 1);
  ASSERT_TRUE(meter.ok());
  const auto probes = peak_probes();
#if defined(__x86_64__) || defined(__aarch64__)
  EXPECT_FALSE(probes.empty());
#endif
  for (const PeakProbe& probe : probes) EXPECT_GT((*meter)->operations_per_s(probe), 0) << probe.instruction;
  for (const auto pages : {LimitsMeter::Pages::kSmall, LimitsMeter::Pages::kHuge}) {
    EXPECT_GT((*meter)->read_bytes_per_s(pages), 0);
  }
}

TEST(Limits, ALevelIsHeldToTheStrongestInstructionThatItMayUse) {
  const auto yes = [] { return true; };
  const std::vector<PeakProbe> probes = {{"a", Arithmetic::kFp32, Isa::kPortable, 1, yes, nullptr},
                                         {"b", Arithmetic::kFp32, Isa::kAvx2, 1, yes, nullptr},
                                         {"c", Arithmetic::kInt8, Isa::kAvx512, 1, yes, nullptr},
                                         {"d", Arithmetic::kInt8, Isa::kAmx, 1, yes, nullptr}};
  const auto of = [&](Isa level, Arithmetic arithmetic) {
    const PeakProbe* found = strongest(probes, level, arithmetic);
    return std::string(found == nullptr ? "none" : found->instruction);
  };
  EXPECT_EQ(of(Isa::kPortable, Arithmetic::kFp32), "a");
  EXPECT_EQ(of(Isa::kAvx512, Arithmetic::kFp32), "b");
  EXPECT_EQ(of(Isa::kAvx2, Arithmetic::kInt8), "none");
  EXPECT_EQ(of(Isa::kAvx512, Arithmetic::kInt8), "c");
  EXPECT_EQ(of(Isa::kAmx, Arithmetic::kInt8), "d");
  EXPECT_EQ(of(Isa::kAmx, Arithmetic::kBf16), "none");
}

}  // namespace
}  // namespace quire::cpu
