// SPDX-License-Identifier: Apache-2.0
// Digests of rows: the contract at every level and with any number of threads; every changed bit; values that stay.
#include "ops/row_digest.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/testing/row_digest_oracle.h"

namespace quire::cpu {
namespace {

using cases::row_digest_oracle;

// Words of every kind: NaNs, infinities and numbers that are no floats of a model.
std::vector<float> random_row(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(n);
  for (float& x : row) x = std::bit_cast<float>(static_cast<uint32_t>(random()));
  return row;
}

TEST(RowDigest, IsTheContractsAtEveryLevelWithAnyThreads) {
  for (const Isa isa : available_isas()) {
    for (const int threads : {1, 3}) {
      auto backend = make_cpu_backend({threads, name(isa)});
      ASSERT_TRUE(backend.ok()) << backend.error().message;
      for (const int64_t n : {1, 31, 32, 33, 1023, 1024, 1025, 1056, 8192, 9001, 40000}) {
        const int64_t stride = n + 3;
        const std::vector<float> rows = random_row(static_cast<size_t>(5 * stride), static_cast<uint32_t>(n));
        const Tensor x{const_cast<float*>(rows.data()), DType::kF32, 5, n, stride};
        const std::vector<int32_t> wanted = {4, 0, 3};
        std::vector<uint64_t> found(3);
        backend.value()->digest_rows({x, wanted, found});
        for (size_t i = 0; i < wanted.size(); ++i) {
          const auto row = std::span(rows).subspan(static_cast<size_t>(wanted[i] * stride), static_cast<size_t>(n));
          EXPECT_EQ(found[i], row_digest_oracle(row)) << name(isa) << ", " << n << " columns, row " << wanted[i];
        }
      }
      std::vector<uint64_t> none;
      backend.value()->digest_rows({Tensor{nullptr, DType::kF32, 0, 5, 5}, {}, none});
    }
  }
}

TEST(RowDigest, NoticesEveryBit) {
  for (const size_t n : {1, 33, 1100}) {
    std::vector<float> row = random_row(n, 7);
    std::set<uint64_t> seen = {row_digest_oracle(row)};
    for (size_t bit = 0; bit < 32 * n; ++bit) {
      const float before = row[bit / 32];
      row[bit / 32] = std::bit_cast<float>(std::bit_cast<uint32_t>(before) ^ (1u << (bit % 32)));
      EXPECT_TRUE(seen.insert(row_digest_oracle(row)).second) << n << " floats, bit " << bit;
      row[bit / 32] = before;
    }
  }
}

TEST(RowDigest, NoticesLengthAndOrder) {
  const std::vector<float> zeros(2200);
  std::set<uint64_t> seen;
  for (size_t n = 1; n <= zeros.size(); ++n) {
    EXPECT_TRUE(seen.insert(row_digest_oracle(std::span(zeros).first(n))).second) << n;
  }
  std::vector<float> row = random_row(3000, 8);
  const uint64_t before = row_digest_oracle(row);
  for (const auto& [a, b] : {std::pair<size_t, size_t>{0, 1}, {5, 37}, {5, 1029}, {1000, 2999}}) {
    std::swap(row[a], row[b]);
    EXPECT_NE(row_digest_oracle(row), before) << a << " and " << b;
    std::swap(row[a], row[b]);
  }
  for (size_t i = 0; i < 1024; ++i) std::swap(row[i], row[i + 1024]);
  EXPECT_NE(row_digest_oracle(row), before);
}

// Receipts are kept for years, so a digest may never change.
TEST(RowDigest, KeepsItsValues) {
  EXPECT_EQ(row_digest_oracle(std::vector<float>{1.0f}), 0xc5b0b3777d27ccefu);
  EXPECT_EQ(row_digest_oracle(random_row(5000, 1)), 0xf0e6a80a3ebef6d0u);
}

}  // namespace
}  // namespace quire::cpu
