// SPDX-License-Identifier: Apache-2.0
// Selection over a row of logits by group maxima and mass bins instead of sorting.
#include "sampling/select.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>

#include "base/check.h"
#include "sampling/portable_math.h"

namespace quire::sampling {
namespace {

// Vector types of gcc and clang; on a machine without such registers they are compiled to scalars.
using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

constexpr float kInf = std::numeric_limits<float>::infinity();

// Calls f(id, value) for each value >= lowest, ids ascending, skipping groups that have none.
template <typename F>
void for_each_at_least(std::span<const float> row, std::span<const float> group_max, float lowest, F&& f) {
  for (size_t g = 0; g < group_max.size(); ++g) {
    if (group_max[g] < lowest) continue;
    const size_t end = std::min(row.size(), (g + 1) * kGroup);
    for (size_t i = g * kGroup; i < end; ++i) {
      if (row[i] >= lowest) f(static_cast<int32_t>(i), row[i]);
    }
  }
}

// A value that at least k entries of the row reach, close to the k-th largest: the k-th largest group maximum.
float lower_bound_of_kth(int64_t k, Scratch& scratch) {
  if (k > static_cast<int64_t>(scratch.group_max.size())) return kNegInf;
  scratch.values = scratch.group_max;
  const auto kth = scratch.values.begin() + (k - 1);
  std::nth_element(scratch.values.begin(), kth, scratch.values.end(), std::greater<>());
  return *kth;
}

}  // namespace

RowScan scan_row(std::span<const float> row) {
  // Four vectors of running maxima, because compilers do not vectorise this reduction: they do not know that the order
  // of -0 and 0 does not matter and that NaN is counted separately.
  constexpr size_t kVectors = 4, kStep = 4 * kVectors;
  std::array<Float4, kVectors> max;
  std::array<Int4, kVectors> nan{};
  max.fill(Float4{kNegInf, kNegInf, kNegInf, kNegInf});
  size_t i = 0;
  for (; i + kStep <= row.size(); i += kStep) {
    for (size_t j = 0; j < kVectors; ++j) {
      Float4 x;
      std::memcpy(&x, row.data() + i + 4 * j, sizeof x);
      max[j] = x > max[j] ? x : max[j];
      nan[j] |= x != x;
    }
  }
  RowScan scan{kNegInf, false};
  for (; i < row.size(); ++i) {
    scan.max = row[i] > scan.max ? row[i] : scan.max;
    scan.has_nan |= row[i] != row[i];
  }
  for (size_t j = 0; j < kStep; ++j) {
    scan.max = std::max(scan.max, max[j / 4][j % 4]);
    scan.has_nan |= nan[j / 4][j % 4] != 0;
  }
  return scan;
}

int32_t first_equal(std::span<const float> row, float value) {
  constexpr size_t kStep = 64;
  size_t i = 0;
  for (; i + kStep <= row.size(); i += kStep) {
    uint32_t any = 0;
    for (size_t j = 0; j < kStep; ++j) any |= row[i + j] == value ? 1u : 0u;
    if (any != 0) break;
  }
  while (i < row.size() && row[i] != value) ++i;
  QUIRE_CHECK(i < row.size());
  return static_cast<int32_t>(i);
}

void find_group_maxima(std::span<const float> row, std::vector<float>& group_max) {
  const size_t groups = (row.size() + kGroup - 1) / kGroup;
  group_max.resize(groups);
  const size_t whole = row.size() / kGroup;
  for (size_t g = 0; g < whole; ++g) {
    const float* x = row.data() + g * kGroup;
    std::array<float, 4> m = {x[0], x[1], x[2], x[3]};
    for (size_t i = 4; i < kGroup; i += 4) {
      for (size_t j = 0; j < 4; ++j) m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    }
    group_max[g] = std::max(std::max(m[0], m[1]), std::max(m[2], m[3]));
  }
  if (whole < groups) {
    group_max[whole] = kNegInf;
    for (size_t i = whole * kGroup; i < row.size(); ++i) group_max[whole] = std::max(group_max[whole], row[i]);
  }
}

float kth_largest(std::span<const float> row, int64_t k, Scratch& scratch) {
  QUIRE_CHECK(k >= 1);
  if (k > static_cast<int64_t>(row.size())) return kNegInf;
  const float lowest = lower_bound_of_kth(k, scratch);
  scratch.values.clear();
  for_each_at_least(row, scratch.group_max, lowest, [&](int32_t, float x) { scratch.values.push_back(x); });
  const auto kth = scratch.values.begin() + (k - 1);
  std::nth_element(scratch.values.begin(), kth, scratch.values.end(), std::greater<>());
  return *kth;
}

void top_n(std::span<const float> row, int64_t n, Scratch& scratch) {
  n = std::min(n, static_cast<int64_t>(row.size()));
  scratch.candidates.clear();
  if (n <= 0) return;
  const float lowest = lower_bound_of_kth(n, scratch);
  for_each_at_least(row, scratch.group_max, lowest, [&](int32_t id, float x) {
    scratch.candidates.push_back({x, id});
  });
  const auto end = scratch.candidates.begin() + n;
  std::partial_sort(scratch.candidates.begin(), end, scratch.candidates.end(), better);
  scratch.candidates.erase(end, scratch.candidates.end());
}

namespace {

constexpr size_t kChunk = 4096, kLanes = 8;  // see sum_exp()
using LaneSums = std::array<double, kLanes>;

double merge(const LaneSums& sums) {
  double total = 0;
  for (const double lane : sums) total += lane;
  return total;
}

}  // namespace

double sum_exp(std::span<const float> row, float max, float lowest) {
  std::array<float, kChunk> weight;
  double total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kChunk) {
    // Two simple loops, which compilers can vectorise.
    const size_t size = std::min(row.size() - begin, kChunk);
    const float* x = row.data() + begin;
    for (size_t i = 0; i < size; ++i) {
      const float e = exp_nonpositive(x[i] - max);
      weight[i] = x[i] >= lowest ? e : 0.0f;
    }
    LaneSums sums{};
    const size_t whole = size / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) sums[j] += static_cast<double>(weight[i + j]);
    }
    for (size_t i = whole; i < size; ++i) sums[i - whole] += static_cast<double>(weight[i]);
    total += merge(sums);
  }
  return total;
}

double sum_exp_of_few(std::span<const float> row, std::span<const float> group_max, float max, float lowest) {
  double total = 0;
  size_t chunk = 0;
  LaneSums sums{};
  for_each_at_least(row, group_max, lowest, [&](int32_t id, float x) {
    const size_t i = static_cast<size_t>(id);
    if (i / kChunk != chunk) {
      total += merge(sums);
      sums = {};
      chunk = i / kChunk;
    }
    sums[i % kLanes] += static_cast<double>(exp_nonpositive(x - max));
  });
  return total + merge(sums);
}

Candidate nucleus_end(std::span<const float> row, float max, float lowest, double top_p, Scratch& scratch) {
  const auto busy = std::ranges::count_if(scratch.group_max, [lowest](float x) { return x >= lowest; });
  const bool few = static_cast<size_t>(busy) < scratch.group_max.size() / 8;
  const double wanted = top_p * (few ? sum_exp_of_few(row, scratch.group_max, max, lowest) : sum_exp(row, max, lowest));
  // Values more than `depth` below the maximum weigh together at most size * exp(-depth) = (1 - top_p)/e of the best
  // one alone, so the nucleus ends before them. (top_p 1 - 1e-9 and above are treated as that.)
  const double slack = std::max(1.0 - top_p, 1e-9);
  const double depth = log_positive(static_cast<double>(row.size()) / slack) + 1.0;
  const float floor = std::max(lowest, round_up(static_cast<double>(max) - depth));

  // Mass in bins an eighth wide, from the best down; bins before the one where the sum is reached are kept whole.
  constexpr size_t kBins = 512;
  constexpr float kBinsPerUnit = 8;
  std::array<double, kBins> mass;
  const auto bin_of = [max](float x) {
    const float bin = (max - x) * kBinsPerUnit;
    return bin < static_cast<float>(kBins - 1) ? static_cast<size_t>(bin) : kBins - 1;
  };
  // Most nuclei end close to the best, so a shallow pass comes first. Bins that are complete in it have the same sums,
  // to the bit, as in the full pass.
  double before = 0;
  size_t critical = 0;
  for (const float shallow : {2.0f, 6.0f, kInf}) {
    const float bound = std::max(floor, max - shallow);
    mass.fill(0);
    for_each_at_least(row, scratch.group_max, bound,
                      [&](int32_t, float x) { mass[bin_of(x)] += static_cast<double>(exp_nonpositive(x - max)); });
    before = 0;
    critical = 0;
    while (critical < kBins && before + mass[critical] < wanted) before += mass[critical++];
    // The last bin above the bound may be incomplete.
    if (bound == floor || critical + 2 < static_cast<size_t>(shallow * kBinsPerUnit)) break;
  }

  // Only this bin is sorted. If rounding keeps the sum below `wanted`, the last candidate is the end.
  scratch.candidates.clear();
  const float lowest_of_bin = max - (static_cast<float>(critical) + 2) / kBinsPerUnit;  // below the bin's end
  for_each_at_least(row, scratch.group_max, std::max(floor, critical + 1 < kBins ? lowest_of_bin : floor),
                    [&](int32_t id, float x) {
                      if (critical == kBins || bin_of(x) == critical) scratch.candidates.push_back({x, id});
                    });
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), better);
  QUIRE_CHECK(!scratch.candidates.empty());
  Candidate end = scratch.candidates.front();
  for (const Candidate& c : scratch.candidates) {
    if (critical < kBins && before >= wanted) break;
    end = c;
    before += static_cast<double>(exp_nonpositive(c.logit - max));
  }
  return end;
}

}  // namespace quire::sampling
