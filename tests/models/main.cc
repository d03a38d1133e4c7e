// SPDX-License-Identifier: Apache-2.0
// main() of a program with the tests of several ctest entries: `--tests-of a_test.cc b_test.cc` runs those of these files alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 1) return RUN_ALL_TESTS();
  std::map<std::string, int> tests;  // how many each file that was named has
  if (std::string_view(argv[1]) == "--tests-of") {
    for (int i = 2; i < argc; ++i) tests[argv[i]] = 0;
  }
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      const auto file = tests.find(std::filesystem::path(test.file()).filename().string());
      if (file == tests.end()) continue;
      file->second++;
      filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  bool wrong = tests.empty();
  for (const auto& [file, count] : tests) wrong |= count == 0;
  if (wrong) {
    std::fprintf(stderr, "usage: %s [gtest's options] [--tests-of FILE_test.cc...]; each file must have tests\n", argv[0]);
    return 2;
  }
  if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, filter);  // else the caller knows which tests
  return RUN_ALL_TESTS();
}
