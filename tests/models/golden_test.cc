// SPDX-License-Identifier: Apache-2.0
// Every family against transformers in float32: logits within a derived tolerance, 64 greedy tokens equal.
#include <gtest/gtest.h>

#include "models/golden.h"

namespace quire::testing {
namespace {

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, LogitsAndGreedyTokensAreTheReferences) {
  expect_golden(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(golden_cases()),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace quire::testing
