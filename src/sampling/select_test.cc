// SPDX-License-Identifier: Apache-2.0
// Selection over rows against plain sorting, on random rows with ties and -infinity, of all small sizes.
#include "sampling/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "sampling/portable_math.h"

namespace quire::sampling {
namespace {

// Rows of three kinds: smooth, with many ties, and with holes.
std::vector<float> random_row(std::mt19937& random, size_t size, int kind) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(size);
  for (float& x : row) {
    x = normal(random);
    if (kind == 1) x = std::round(x);
    if (kind == 2 && random() % 2 == 0) x = kNegInf;
  }
  return row;
}

std::vector<Candidate> sorted(const std::vector<float>& row) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < row.size(); ++i) all.push_back({row[i], static_cast<int32_t>(i)});
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  return all;
}

template <typename F>
void for_random_rows(F&& f) {
  std::mt19937 random(7);
  for (size_t size = 1; size < 100; ++size) {
    for (int kind = 0; kind < 3; ++kind) f(random_row(random, size, kind), random);
  }
  for (const size_t size : {1000u, 5003u, 20'000u}) {
    for (int kind = 0; kind < 3; ++kind) f(random_row(random, size, kind), random);
  }
}

TEST(Select, ScansForTheMaximumAndNan) {
  for_random_rows([](std::vector<float> row, std::mt19937& random) {
    const RowScan scan = scan_row(row);
    EXPECT_EQ(scan.max, *std::max_element(row.begin(), row.end()));
    EXPECT_FALSE(scan.has_nan);
    const auto first = std::find(row.begin(), row.end(), scan.max) - row.begin();
    EXPECT_EQ(first_equal(row, scan.max), first);
    row[random() % row.size()] = std::nanf("");
    EXPECT_TRUE(scan_row(row).has_nan);
  });
}

TEST(Select, FindsTheKthLargest) {
  Scratch scratch;
  for_random_rows([&](const std::vector<float>& row, std::mt19937& random) {
    const auto all = sorted(row);
    find_group_maxima(row, scratch.group_max);
    for (int i = 0; i < 8; ++i) {
      const size_t k = i == 0 ? row.size() : 1 + random() % row.size();
      ASSERT_EQ(kth_largest(row, static_cast<int64_t>(k), scratch), all[k - 1].logit) << row.size() << " " << k;
    }
    EXPECT_EQ(kth_largest(row, static_cast<int64_t>(row.size()) + 1, scratch), kNegInf);
  });
}

TEST(Select, FindsTheTopInOrder) {
  Scratch scratch;
  for_random_rows([&](const std::vector<float>& row, std::mt19937& random) {
    const auto all = sorted(row);
    find_group_maxima(row, scratch.group_max);
    for (int i = 0; i < 4; ++i) {
      const size_t n = i == 0 ? row.size() + 3 : random() % (row.size() + 1);
      top_n(row, static_cast<int64_t>(n), scratch);
      ASSERT_EQ(scratch.candidates.size(), std::min(n, row.size()));
      for (size_t j = 0; j < scratch.candidates.size(); ++j) {
        ASSERT_EQ(scratch.candidates[j].token, all[j].token) << row.size() << " " << n << " " << j;
      }
    }
  });
}

TEST(Select, SumsExp) {
  for_random_rows([](const std::vector<float>& row, std::mt19937&) {
    const float max = *std::max_element(row.begin(), row.end());
    if (max == kNegInf) return;
    double exact = 0, above = 0;
    for (const float x : row) {
      const double e = std::exp(static_cast<double>(x) - static_cast<double>(max));
      exact += e;
      if (x >= max - 2) above += e;
    }
    // Each term is within 2 ulp, and x - max is rounded once: |x - max| < 32, so 2^-19 * 2 at most.
    EXPECT_NEAR(sum_exp(row, max, std::numeric_limits<float>::lowest()), exact, exact * 4e-6);
    EXPECT_NEAR(sum_exp(row, max, max - 2), above, above * 4e-6);
    std::vector<float> group_max;
    find_group_maxima(row, group_max);
    for (const float lowest : {std::numeric_limits<float>::lowest(), max - 5, max - 2, max}) {
      EXPECT_EQ(sum_exp_of_few(row, group_max, max, lowest), sum_exp(row, max, lowest)) << row.size();
    }
  });
}

TEST(Select, CutsTheNucleusWhereASortedSumDoes) {
  Scratch scratch;
  int checked = 0, close_calls = 0;
  for_random_rows([&](const std::vector<float>& row, std::mt19937& random) {
    const auto all = sorted(row);
    const float max = all[0].logit;
    if (max == kNegInf) return;
    find_group_maxima(row, scratch.group_max);
    for (const double p : {1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 0.999999}) {
      const size_t k = random() % 2 == 0 ? row.size() : 1 + random() % row.size();
      const float lowest = std::max(all[k - 1].logit, std::numeric_limits<float>::lowest());
      double total = 0;
      for (const Candidate& c : all) total += c.logit >= lowest ? std::exp(double{c.logit} - max) : 0.0;
      double before = 0;
      size_t last = 0;
      bool close = false;
      for (size_t i = 0; i < all.size() && all[i].logit >= lowest; ++i) {
        close |= i > 0 && std::abs(before / total - p) < 1e-7;
        if (i > 0 && before >= p * total) break;
        last = i;
        before += std::exp(double{all[i].logit} - max);
      }
      const Candidate cut = nucleus_end(row, max, lowest, p, scratch);
      close_calls += close ? 1 : 0;
      checked += 1;
      if (!close) {
        ASSERT_EQ(cut.token, all[last].token) << "size " << row.size() << " p " << p << " k " << k;
      }
    }
  });
  EXPECT_GT(checked, 1500);
  EXPECT_LT(close_calls, checked / 10);
}

// The same cut by one look at all depths: what the quick search must give to the bit, close calls too.
Candidate cut_at_full_depth(const std::vector<float>& row, float max, float lowest, double top_p) {
  const double wanted = top_p * sum_exp(row, max, lowest);
  const double depth = log_positive(static_cast<double>(row.size()) / std::max(1.0 - top_p, 1e-9)) + 1.0;
  const float floor = std::max(lowest, round_up(static_cast<double>(max) - depth));
  constexpr size_t kBins = 512;
  std::vector<std::vector<Candidate>> bins(kBins);
  std::vector<double> mass(kBins);
  for (size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] >= floor)) continue;
    const float at = (max - row[i]) * 8.0f;
    const size_t bin = at < static_cast<float>(kBins - 1) ? static_cast<size_t>(at) : kBins - 1;
    bins[bin].push_back({row[i], static_cast<int32_t>(i)});
    mass[bin] += static_cast<double>(exp_nonpositive(row[i] - max));
  }
  double before = 0;
  size_t bin = 0;
  while (bin < kBins && before + mass[bin] < wanted) before += mass[bin++];
  std::vector<Candidate> kept;
  for (size_t b = bin < kBins ? bin : 0; b < (bin < kBins ? bin + 1 : kBins); ++b) {
    kept.insert(kept.end(), bins[b].begin(), bins[b].end());
  }
  std::sort(kept.begin(), kept.end(), better);
  Candidate cut = kept.front();
  for (const Candidate& c : kept) {
    if (bin < kBins && before >= wanted) break;
    cut = c;
    before += static_cast<double>(exp_nonpositive(c.logit - max));
  }
  return cut;
}

TEST(Select, CutsTheNucleusAsALookAtAllDepthsDoes) {
  Scratch scratch;
  for_random_rows([&](std::vector<float> row, std::mt19937& random) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random() % 12) - 4);  // flat to steep, and coarse floats
    for (float& x : row) x *= scale;
    const float max = *std::max_element(row.begin(), row.end());
    if (max == kNegInf) return;
    find_group_maxima(row, scratch.group_max);
    for (const double p : {1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 0.999999}) {
      const float lowest = random() % 2 == 0 ? std::numeric_limits<float>::lowest() : max - 3;
      const Candidate want = cut_at_full_depth(row, max, lowest, p);
      const Candidate have = nucleus_end(row, max, lowest, p, scratch);
      ASSERT_EQ(have.token, want.token) << "size " << row.size() << " p " << p << " scale " << scale;
    }
  });
}

TEST(Select, ANucleusOfEqualLogitsTakesTheLowestIds) {
  Scratch scratch;
  const std::vector<float> row(100, 2.5f);
  find_group_maxima(row, scratch.group_max);
  EXPECT_EQ(nucleus_end(row, 2.5f, 2.5f, 0.0999, scratch).token, 9);
  EXPECT_EQ(nucleus_end(row, 2.5f, 2.5f, 0.5, scratch).token, 49);
  EXPECT_EQ(nucleus_end(row, 2.5f, 2.5f, 1e-12, scratch).token, 0);
  EXPECT_EQ(nucleus_end(row, 2.5f, 2.5f, 0.999, scratch).token, 99);
}

}  // namespace
}  // namespace quire::sampling
