// SPDX-License-Identifier: Apache-2.0
// Half floats, Philox, Result and files.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/env.h"
#include "base/file.h"
#include "base/half.h"
#include "base/message.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "base/result.h"
#include "base/test_folder.h"

namespace quire {
namespace {

TEST(Half, EveryFp16RoundTripsThroughFloat) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = fp16_to_float(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(f))));
    } else {
      ASSERT_EQ(float_to_fp16(f), h);
    }
  }
}

TEST(Half, Fp16RoundsToNearestEven) {
  EXPECT_EQ(float_to_fp16(1.0f + 0x1p-11f), 0x3c00);      // a tie goes to the even neighbour below
  EXPECT_EQ(float_to_fp16(1.0f + 3 * 0x1p-11f), 0x3c02);  // and above
  EXPECT_EQ(float_to_fp16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(0x1p-25f), 0);
  EXPECT_EQ(float_to_fp16(0x1.8p-25f), 1);
  EXPECT_EQ(float_to_fp16(-0.0f), 0x8000);
}

TEST(Half, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(bf16_to_float(0x4049), 3.140625f);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
}

TEST(Half, Fp8RoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(fp8_e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(fp8_e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(fp8_e4m3_to_float(0x81), -0x1p-9f);
  EXPECT_EQ(fp8_e5m2_to_float(0x3c), 1.0f);
  EXPECT_EQ(fp8_e5m2_to_float(0x7b), 57344.0f);
  EXPECT_EQ(fp8_e5m2_to_float(0x01), 0x1p-16f);
  const auto check = [](auto to_float, auto from_float, int largest) {
    const auto last = static_cast<uint8_t>(largest);
    for (int code = 0; code <= largest; ++code) {
      const float x = to_float(static_cast<uint8_t>(code));
      ASSERT_EQ(from_float(x), code);
      ASSERT_EQ(from_float(-x), code | 0x80);
      if (code == largest) break;
      const float middle = (x + to_float(static_cast<uint8_t>(code + 1))) / 2;  // exact
      ASSERT_EQ(from_float(middle), code + code % 2) << code;
      ASSERT_EQ(from_float(std::nextafter(middle, 0.0f)), code);
      ASSERT_EQ(from_float(std::nextafter(middle, 1e30f)), code + 1);
    }
    EXPECT_EQ(from_float(1e30f), last);
    EXPECT_EQ(from_float(std::numeric_limits<float>::infinity()), last);
    EXPECT_EQ(from_float(std::numeric_limits<float>::denorm_min()), 0);
    EXPECT_TRUE(std::isnan(to_float(from_float(std::numeric_limits<float>::quiet_NaN()))));
  };
  check(fp8_e4m3_to_float, float_to_fp8_e4m3, 0x7e);
  check(fp8_e5m2_to_float, float_to_fp8_e5m2, 0x7b);
}

TEST(Philox, MatchesThePublishedVectors) {
  const auto zero = Philox::generate(0, Philox::Block{0, 0, 0, 0});
  EXPECT_EQ(zero, (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const auto ones = Philox::generate(~uint64_t{0}, Philox::Block{~0u, ~0u, ~0u, ~0u});
  EXPECT_EQ(ones, (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

Result<int> half_of(int x) {
  if (x % 2 != 0) return invalid_argument("odd");
  return x / 2;
}
Result<int> quarter_of(int x) {
  QUIRE_ASSIGN(const int half, half_of(x));
  return half_of(half);
}

TEST(Result, ErrorsPassThroughAssign) {
  EXPECT_EQ(quarter_of(8).value(), 2);
  EXPECT_EQ(quarter_of(6).error().message, "odd");
}

TEST(Result, CopiesMovesAndAssignsValuesAndErrors) {
  const auto alive = std::make_shared<int>(7);
  {
    Result<std::shared_ptr<int>> value = alive;
    Result<std::shared_ptr<int>> copy = value;
    EXPECT_EQ(alive.use_count(), 3);
    Result<std::shared_ptr<int>> moved = std::move(copy);
    EXPECT_EQ(alive.use_count(), 3);
    moved = not_found("gone");
    EXPECT_EQ(alive.use_count(), 2);
    EXPECT_EQ(moved.error().message, "gone");
    value = moved;
    EXPECT_EQ(alive.use_count(), 1);
    EXPECT_EQ(value.error().code, ErrorCode::kNotFound);
    const Result<std::shared_ptr<int>>& itself = value;
    value = itself;
    EXPECT_EQ(value.error().message, "gone");
    value = alive;
    EXPECT_EQ(*value.value(), 7);
    const Result<std::shared_ptr<int>> failed = std::move(moved);
    EXPECT_FALSE(failed.ok());
    EXPECT_FALSE(moved.ok());  // NOLINT: an error that was moved away is still an error
  }
  EXPECT_EQ(alive.use_count(), 1);

  Result<std::unique_ptr<int>> only = std::make_unique<int>(3);
  std::vector<Result<std::unique_ptr<int>>> several;
  several.push_back(std::move(only));
  several.push_back(exhausted("no more"));
  EXPECT_EQ(**several[0], 3);
  const std::unique_ptr<int> taken = std::move(several[0]).value();
  EXPECT_EQ(*taken, 3);

  Status status;
  const Status bad = invalid_field("top_p", "must be in (0, 1].");
  status = bad;
  EXPECT_EQ(status.error().message, "top_p must be in (0, 1].");
  EXPECT_EQ(status.error().field, "top_p");
}

TEST(Result, CopiesShareTheirErrorAcrossThreads) {
  const Result<int> failed = corrupt({"block ", 7, " is torn"});
  const Error* const error = &failed.error();
  {
    const Result<int> copy = failed;
    EXPECT_EQ(&copy.error(), error);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([copy, error] {
        for (int round = 0; round < 1000; ++round) {
          const Failure passed = copy.failure();
          ASSERT_EQ(&passed.get(), error);
        }
      });
    }
  }
  EXPECT_EQ(failed.error().message, "block 7 is torn");
}

TEST(Message, JoinsTextsLettersAndWholeNumbers) {
  const std::string name = "rows";
  const int8_t small = -5;
  EXPECT_EQ(joined({"it has ", 3, ' ', name, ", not ", name.size(), std::string_view("!")}), "it has 3 rows, not 4!");
  EXPECT_EQ(joined({std::numeric_limits<int64_t>::min(), "..", std::numeric_limits<uint64_t>::max(), ' ', small}),
            "-9223372036854775808..18446744073709551615 -5");
  EXPECT_EQ(joined({}), "");
}

TEST(ResultDeathTest, SaysWhatWasWrongWhenAskedForWhatItDoesNotHave) {
  Result<int> failed = corrupt("torn");
  EXPECT_DEATH(failed.value() = 1, "torn");
  Result<int> whole = 1;
  EXPECT_DEATH((void)whole.error(), "asked for its error");
}

TEST(File, MapsAndReadsTheSameBytesAndNamesAMissingFile) {
  const TempFolder folder;
  const auto path = folder.path() / "some.bin";
  ASSERT_TRUE(write_file(path, "hello").ok());
  EXPECT_EQ(read_file(path).value(), "hello");
  EXPECT_EQ(MappedFile::open(path).value()->bytes().size(), 5u);
  EXPECT_FALSE(read_file(path, 3).ok());
  std::filesystem::remove(path);
  const auto gone = MappedFile::open(path);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_NE(gone.error().message.find("some.bin"), std::string::npos);
}

TEST(Parallel, EveryElementIsInOneBlock) {
  for (const int64_t count : {0, 1, 7, 64, 1000}) {
    for (const int threads : {0, 1, 3}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      std::atomic<bool> fits{true};
      const auto work = [&](int64_t begin, int64_t end) {
        if (begin % 7 != 0 || end <= begin || end - begin > 7) fits = false;
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      };
      parallel_blocks(count, 7, work, threads);
      EXPECT_TRUE(fits);
      for (const std::atomic<int>& times : seen) EXPECT_EQ(times, 1);
    }
  }
}

}  // namespace
}  // namespace quire
