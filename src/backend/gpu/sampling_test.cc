// SPDX-License-Identifier: Apache-2.0
// Sampling on a device against a plain reading of its contract in double: candidates by sorting, scores by libm.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/gpu/test_device.h"
#include "backend/testing/row_digest_oracle.h"
#include "base/philox.h"

namespace quire::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of logits, their settings, and what they refer to.
struct SamplingCase {
  int64_t vocab = 0;
  int64_t stride = 0;
  std::vector<float> logits;  // [rows, stride]
  std::vector<SampleRow> rows;
  std::vector<TokenEdit> edits;
  std::vector<uint32_t> masks;

  float* row(size_t r) { return logits.data() + static_cast<int64_t>(r) * stride; }
  const float* row(size_t r) const { return logits.data() + static_cast<int64_t>(r) * stride; }
};

SamplingCase make_case(int64_t vocab, size_t rows, uint32_t seed, float spread, int64_t gap) {
  SamplingCase out;
  out.vocab = vocab;
  out.stride = vocab + gap;
  out.logits.resize(rows * static_cast<size_t>(out.stride));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  for (float& x : out.logits) x = normal(random);
  out.rows.resize(rows);
  for (SampleRow& row : out.rows) {
    row.seed = (uint64_t{random()} << 32) | random();
    row.position = random() % 5000;
  }
  return out;
}

struct Results {
  std::vector<SampledRow> rows;
  std::vector<SampledTop> top;
  std::vector<uint64_t> digests;  // 0 where none was asked for
};

// Rows [first, first + count) of the case as one call, their results at `place`.
Results sample(const SamplingCase& c, int64_t first, int64_t count, int64_t place, int which = 0) {
  TestDevice& device = test_device(which);
  const auto begin = c.logits.begin() + first * c.stride;
  float* logits = device.put(std::vector<float>(begin, begin + count * c.stride));
  EXPECT_TRUE(device.ops().prepare_sampling(64, 32, c.vocab).ok());
  const Tensor tensor{logits, DType::kF32, count, c.vocab, c.stride};
  device.ops().sample({tensor, std::span(c.rows).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                       c.edits, c.masks, place});
  const SampledRows found = device.ops().sampled(device.ops().finish_samples(place + count));
  Results out;
  out.rows.assign(found.rows.begin() + place, found.rows.end());
  if (!found.top.empty()) out.top.assign(found.top.begin() + place * kMaxSampleLogprobs, found.top.end());
  out.top.resize(static_cast<size_t>(count * kMaxSampleLogprobs));
  if (!found.digests.empty()) out.digests.assign(found.digests.begin() + place, found.digests.end());
  out.digests.resize(static_cast<size_t>(count));
  device.clear();
  return out;
}

bool same_row(const SamplingCase& c, const Results& a, size_t i, const Results& b, size_t j, size_t row) {
  if (std::memcmp(&a.rows[i], &b.rows[j], sizeof(SampledRow)) != 0) return false;
  if (a.digests[i] != b.digests[j]) return false;
  if (a.rows[i].faults != 0) return true;  // nothing is said of a broken row's likeliest tokens
  const auto wanted = static_cast<size_t>(std::max(0, c.rows[row].logprobs));
  return std::memcmp(&a.top[i * kMaxSampleLogprobs], &b.top[j * kMaxSampleLogprobs], wanted * sizeof(SampledTop)) == 0;
}

// All rows together, each alone at another place, and under another order of lanes: the same bits.
Results sample_everywhere(const SamplingCase& c) {
  const auto count = static_cast<int64_t>(c.rows.size());
  Results all = sample(c, 0, count, 0);
  for (int64_t r = 0; r < count; r += kSanitized ? 4 : 1) {
    const Results alone = sample(c, r, 1, 3 + r);
    EXPECT_TRUE(same_row(c, all, static_cast<size_t>(r), alone, 0, static_cast<size_t>(r))) << "row " << r;
  }
  if (kDevices > 1) {
    const Results other = sample(c, 0, count, 0, 1);
    for (size_t r = 0; r < c.rows.size(); ++r) EXPECT_TRUE(same_row(c, all, r, other, r, r)) << "row " << r;
  }
  return all;
}

// What the processors make of a row.
std::vector<float> processed(const SamplingCase& c, size_t r) {
  std::vector<float> x(c.row(r), c.row(r) + c.vocab);
  const SampleRow& row = c.rows[r];
  for (int32_t e = row.first_edit; e < row.first_edit + row.num_edits; ++e) {
    const TokenEdit& edit = c.edits[static_cast<size_t>(e)];
    float& value = x[static_cast<size_t>(edit.token)];
    if (edit.forbidden) value = -kInfinity;
    value += edit.bias;
    if (edit.seen) value = value > 0 ? value / row.repetition : value * row.repetition;
    if (edit.count > 0) value = value - row.frequency * static_cast<float>(edit.count) - row.presence;
  }
  if (row.mask >= 0) {
    const size_t words = (static_cast<size_t>(c.vocab) + 31) / 32;
    for (size_t t = 0; t < x.size(); ++t) {
      const uint32_t word = c.masks[static_cast<size_t>(row.mask) * words + t / 32];
      if (((word >> (t % 32)) & 1) == 0) x[t] = -kInfinity;
    }
  }
  if (row.temperature != 0) {
    for (float& value : x) value /= row.temperature;
  }
  return x;
}

double gumbel(const SampleRow& row, size_t token) {
  const uint32_t word = Philox::generate(row.seed, static_cast<uint64_t>(row.position), token / 4)[token % 4];
  return -std::log(-std::log1p(-(static_cast<double>(word) + 0.5) * 0x1p-32));
}

// The candidates in order, how many of them surely stay, and how many may.
struct Kept {
  std::vector<size_t> order;
  size_t surely = 0, maybe = 0;
};
Kept kept(const std::vector<float>& x, const SampleRow& row) {
  Kept out;
  out.order.resize(x.size());
  std::iota(out.order.begin(), out.order.end(), size_t{0});
  std::stable_sort(out.order.begin(), out.order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  const float best = x[out.order[0]];
  size_t count = 0;
  while (count < x.size() && x[out.order[count]] != -kInfinity) ++count;
  if (row.log_min_p <= 0) {
    const float lowest = best + row.log_min_p;
    while (count > 1 && x[out.order[count - 1]] < lowest) --count;
  }
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < count) {
    const float kth = x[out.order[static_cast<size_t>(row.top_k) - 1]];
    while (x[out.order[count - 1]] < kth) --count;
  }
  out.surely = out.maybe = count;
  if (row.top_p >= 1) return out;
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += std::exp(static_cast<double>(x[out.order[i]]) - best);
  double mass = 0;
  out.surely = out.maybe = 0;
  const double wanted = static_cast<double>(row.top_p) * total, slack = 1e-5 * total;
  for (size_t i = 0; i < count; ++i) {
    if (i == 0 || mass < wanted - slack) out.surely = i + 1;
    if (i == 0 || mass < wanted + slack) out.maybe = i + 1;
    mass += std::exp(static_cast<double>(x[out.order[i]]) - best);
  }
  return out;
}

// The token is a candidate, and no candidate that surely stays has a better score, but for rounding.
void expect_drawn(const SamplingCase& c, size_t r, int32_t token) {
  const std::vector<float> x = processed(c, r);
  const SampleRow& row = c.rows[r];
  if (row.temperature == 0) {
    EXPECT_EQ(token, std::max_element(x.begin(), x.end()) - x.begin()) << "row " << r;
    return;
  }
  const Kept k = kept(x, row);
  const auto place = std::find(k.order.begin(), k.order.end(), static_cast<size_t>(token)) - k.order.begin();
  EXPECT_LT(place, static_cast<ptrdiff_t>(k.maybe)) << "row " << r << " top_k " << row.top_k << " top_p " << row.top_p;
  const auto score = [&](size_t t) { return static_cast<double>(x[t]) + gumbel(row, t); };
  const double mine = score(static_cast<size_t>(token));
  for (size_t i = 0; i < k.surely; ++i) {
    EXPECT_LE(score(k.order[i]), mine + 1e-4) << "row " << r << ": token " << k.order[i] << " is better than " << token;
  }
}

TEST(GpuSampling, GreedyTakesTheHighestAndOfEqualOnesTheLowestId) {
  // Several chunks, the last one not whole; rows that begin at any address.
  SamplingCase c = make_case(9001, 4, 1, 3.0f, 3);
  for (const int64_t t : {77, 4100, 9000}) c.row(1)[t] = 50.0f;
  for (const int64_t t : {8999, 9000}) c.row(2)[t] = 50.0f;
  std::fill(c.row(3), c.row(3) + c.vocab, -2.5f);
  const Results found = sample_everywhere(c);
  EXPECT_EQ(found.rows[1].token, 77);
  EXPECT_EQ(found.rows[2].token, 8999);
  EXPECT_EQ(found.rows[3].token, 0);
  expect_drawn(c, 0, found.rows[0].token);
}

TEST(GpuSampling, DrawsByTheSeedsWordsUnderEveryCut) {
  struct Setting {
    float temperature, min_p, top_p;
    int32_t top_k;
  };
  const Setting settings[] = {{1, 0, 1, 0},         {0.7f, 0, 1, 0}, {1, 0, 1, 1},         {1, 0, 1, 40},
                              {1.5f, 0, 0.9f, 0},   {1, 0, 0.5f, 0}, {0.8f, 0, 0.95f, 20}, {1, 0.05f, 1, 0},
                              {1, 0.01f, 0.9f, 50}, {1, 1, 1, 0},    {2, 0, 0.999f, 0},    {1, 0, 0.3f, 5000}};
  for (const auto& [vocab, spread, gap] : {std::tuple{8300, 4.0f, 0}, {300, 2.0f, 1}, {5000, 0.02f, 0}}) {
    SamplingCase c = make_case(vocab, std::size(settings), static_cast<uint32_t>(vocab), spread, gap);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      c.rows[r].temperature = settings[r].temperature;
      c.rows[r].top_p = settings[r].top_p;
      c.rows[r].top_k = std::min<int32_t>(settings[r].top_k, static_cast<int32_t>(vocab));
      if (settings[r].min_p > 0) c.rows[r].log_min_p = std::log(settings[r].min_p);
    }
    const Results found = sample_everywhere(c);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      EXPECT_EQ(found.rows[r].faults, 0);
      expect_drawn(c, r, found.rows[r].token);
    }
  }
}

// Many seeds over few tokens: as often as their probabilities say.
TEST(GpuSampling, DrawsAsOftenAsTheProbabilitiesSay) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f, 1.5f};
  std::vector<double> shares, counts(5);
  double total = 0;
  for (const float x : logits) total += std::exp(x);
  for (const float x : logits) shares.push_back(std::exp(x) / total);
  constexpr int kCalls = 20, kRows = 32;
  for (int call = 0; call < kCalls; ++call) {
    SamplingCase c;
    c.vocab = c.stride = 5;
    for (int r = 0; r < kRows; ++r) {
      c.logits.insert(c.logits.end(), logits.begin(), logits.end());
      SampleRow& row = c.rows.emplace_back();
      row.seed = static_cast<uint64_t>(call * kRows + r);
      row.position = 9;
      row.temperature = 1;
    }
    for (const SampledRow& row : sample(c, 0, kRows, 0).rows) counts[static_cast<size_t>(row.token)] += 1;
  }
  double chi = 0;
  for (size_t t = 0; t < 5; ++t) {
    const double expected = shares[t] * kCalls * kRows;
    chi += (counts[t] - expected) * (counts[t] - expected) / expected;
  }
  EXPECT_LT(chi, 18.5);  // 0.1% of good generators are worse
}

TEST(GpuSampling, TiesAtTheNucleusEndKeepTheLowestIds) {
  SamplingCase c = make_case(600, 8, 5, 1.0f, 0);
  for (size_t r = 0; r < c.rows.size(); ++r) {
    std::fill(c.row(r), c.row(r) + c.vocab, -1.0f);
    c.rows[r].temperature = 1;
    c.rows[r].top_p = 0.25f;  // 150 of 600 equal tokens
  }
  for (const SampledRow& row : sample_everywhere(c).rows) EXPECT_LT(row.token, 150 + 1);
}

// Rows of nothing but -infinity with some tokens put in, and as many seeds.
SamplingCase sparse_case(size_t rows, std::initializer_list<std::pair<int64_t, float>> tokens) {
  SamplingCase c = make_case(9001, rows, 89, 1.0f, 0);
  for (size_t r = 0; r < rows; ++r) {
    std::fill(c.row(r), c.row(r) + c.vocab, -kInfinity);
    for (const auto& [token, value] : tokens) c.row(r)[token] = value;
    c.rows[r].temperature = 1;
  }
  return c;
}
std::vector<int32_t> distinct(const std::vector<SampledRow>& rows) {
  std::vector<int32_t> out;
  for (const SampledRow& row : rows) {
    EXPECT_EQ(row.faults, 0);
    out.push_back(row.token);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Equal weights are exact in floats, so the border is too.
TEST(GpuSampling, ANucleusThatIsJustReachedEndsThere) {
  SamplingCase c = sparse_case(16, {{10, 2.0f}, {4200, 2.0f}, {4300, 2.0f}, {9000, 2.0f}});
  for (SampleRow& row : c.rows) row.top_p = 0.5f;
  EXPECT_EQ(distinct(sample_everywhere(c).rows), (std::vector<int32_t>{10, 4200}));
  for (SampleRow& row : c.rows) row.top_p = 0.50001f;
  EXPECT_EQ(distinct(sample(c, 0, 16, 0).rows), (std::vector<int32_t>{10, 4200, 4300}));
  // Nor does a top_k that leaves all of them change that; one that leaves their ties neither.
  for (const int32_t top_k : {1, 4, 5000}) {
    for (SampleRow& row : c.rows) row.top_k = top_k;
    EXPECT_EQ(distinct(sample(c, 0, 16, 0).rows), (std::vector<int32_t>{10, 4200, 4300})) << top_k;
  }
}

TEST(GpuSampling, TopKKeepsTiesWithTheLast) {
  SamplingCase c =
      sparse_case(24, {{8999, 1.5f}, {7, 1.0f}, {4095, 1.0f}, {4096, 1.0f}, {8998, 1.0f}, {3, 0.5f}, {9000, 0.5f}});
  for (SampleRow& row : c.rows) row.top_k = 2;
  EXPECT_EQ(distinct(sample_everywhere(c).rows), (std::vector<int32_t>{7, 4095, 4096, 8998, 8999}));
  for (SampleRow& row : c.rows) row.top_k = 1;
  EXPECT_EQ(distinct(sample(c, 0, 24, 0).rows), (std::vector<int32_t>{8999}));
}

// Too many values between two thresholds for one look: wide rows, narrow ones, and all equal but one.
TEST(GpuSampling, LongListsAreSearchedFurther) {
  const std::tuple<float, int32_t, float> settings[] = {{0.9f, 0, 1.0f},    {0.5f, 0, 1.0f},     {1.0f, 3000, 1.0f},
                                                        {0.7f, 4000, 1.0f}, {0.9f, 0, 1e-3f},    {0.9f, 5000, 1e-6f},
                                                        {0.6f, 0, 0.0f},    {0.999f, 8999, 0.0f}};
  SamplingCase c = make_case(9001, std::size(settings) + 2, 144, 1.0f, 3);
  for (size_t r = 0; r < std::size(settings); ++r) {
    const auto& [top_p, top_k, spread] = settings[r];
    c.rows[r].temperature = 1;
    c.rows[r].top_p = top_p;
    c.rows[r].top_k = top_k;
    for (int64_t t = 0; t < c.vocab; ++t) c.row(r)[t] = c.row(r)[t] * spread - 1;
    c.row(r)[8000 + static_cast<int64_t>(r)] = -0.75f;
  }
  c.rows[std::size(settings)].temperature = 1;  // a plain row and a greedy one between them
  const Results found = sample_everywhere(c);
  for (size_t r = 0; r < c.rows.size(); ++r) expect_drawn(c, r, found.rows[r].token);
}

TEST(GpuSampling, EqualTokensOfSeveralChunksEndAtTheRightId) {
  SamplingCase c = make_case(9001, 16, 233, 1.0f, 0);
  std::fill(c.logits.begin(), c.logits.end(), 3.25f);
  for (size_t r = 0; r < c.rows.size(); ++r) {
    c.rows[r].temperature = 1;
    c.rows[r].top_p = r < 8 ? 0.5f : 1.0f / 4096;
  }
  const Results found = sample_everywhere(c);
  for (size_t r = 0; r < c.rows.size(); ++r) {
    EXPECT_LT(found.rows[r].token, r < 8 ? 4501 : 3);
    if (r < 8) expect_drawn(c, r, found.rows[r].token);
  }
}

TEST(GpuSampling, EditsAndMasksComeFirst) {
  SamplingCase c = make_case(5000, 6, 8, 2.0f, 0);
  const size_t words = (5000 + 31) / 32;
  for (size_t r = 0; r < c.rows.size(); ++r) {
    SampleRow& row = c.rows[r];
    row.temperature = r % 2 == 0 ? 0.0f : 0.9f;
    row.top_p = r == 1 ? 0.8f : 1.0f;
    row.repetition = 1.7f;
    row.frequency = 0.3f;
    row.presence = 0.4f;
    row.first_edit = static_cast<int32_t>(c.edits.size());
    const auto best = std::max_element(c.row(r), c.row(r) + c.vocab) - c.row(r);
    c.edits.push_back({.token = static_cast<int32_t>(best), .forbidden = true});
    for (int32_t t = 0; t < 700; ++t) {
      const int32_t token = static_cast<int32_t>(r) + 7 * t;
      if (token == best) continue;
      c.edits.push_back({.token = token, .count = t % 3, .seen = true, .bias = t % 5 == 0 ? 1.5f : 0.0f});
    }
    row.num_edits = static_cast<int32_t>(c.edits.size()) - row.first_edit;
    if (r < 3) {
      row.mask = static_cast<int32_t>(c.masks.size() / words);
      for (size_t w = 0; w < words; ++w) c.masks.push_back(0x10842108u << (r % 4));
    }
    row.logprobs = r == 4 ? 3 : -1;
  }
  const Results found = sample_everywhere(c);
  for (size_t r = 0; r < c.rows.size(); ++r) expect_drawn(c, r, found.rows[r].token);
}

TEST(GpuSampling, LogprobsAreOfTheLogitsAsTheyWere) {
  SamplingCase c = make_case(8200, 4, 13, 3.0f, 2);
  c.row(0)[5] = c.row(0)[4500] = c.row(0)[8000] = 40.0f;  // equal ones
  c.row(1)[17] = -kInfinity;
  const int32_t wanted[] = {20, 0, 5, 1};
  for (size_t r = 0; r < c.rows.size(); ++r) {
    c.rows[r].logprobs = wanted[r];
    c.rows[r].temperature = r == 2 ? 1.3f : 0.0f;
  }
  c.edits = {{.token = 5, .forbidden = true}, {.token = 4500, .bias = -3.0f}};
  c.rows[0].num_edits = 2;
  // Three tokens are allowed in row 2, which wants five, so that two of the list are forbidden ones.
  c.masks.assign((8200 + 31) / 32, 0);
  for (const uint32_t token : {6u, 77u, 8199u}) c.masks[token / 32] |= 1u << (token % 32);
  c.rows[2].mask = c.rows[2].logprob_mask = 0;
  const Results found = sample_everywhere(c);
  EXPECT_EQ(found.rows[0].token, 8000);
  for (size_t r = 0; r < c.rows.size(); ++r) {
    std::vector<float> x(c.row(r), c.row(r) + c.vocab);
    for (size_t t = 0; r == 2 && t < x.size(); ++t) {
      if (((c.masks[t / 32] >> (t % 32)) & 1) == 0) x[t] = -kInfinity;
    }
    const double best = *std::max_element(x.begin(), x.end());
    double total = 0;
    for (const float value : x) total += std::exp(static_cast<double>(value) - best);
    const auto logprob = [&](int32_t token) { return x[static_cast<size_t>(token)] - best - std::log(total); };
    const SampledRow& row = found.rows[r];
    const float own = x[static_cast<size_t>(row.token)];
    EXPECT_NEAR(row.logprob, logprob(row.token), 1e-5);
    EXPECT_EQ(row.rank, std::count_if(x.begin(), x.end(), [&](float value) { return value >= own; }));
    std::vector<int32_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
    for (int32_t n = 0; n < wanted[r]; ++n) {
      const SampledTop& top = found.top[r * kMaxSampleLogprobs + static_cast<size_t>(n)];
      EXPECT_EQ(top.token, order[static_cast<size_t>(n)]) << "row " << r << ", place " << n;
      if (x[static_cast<size_t>(top.token)] == -kInfinity) {
        EXPECT_EQ(top.logprob, -kInfinity);
      } else {
        EXPECT_NEAR(top.logprob, logprob(top.token), 1e-5);
      }
    }
  }
}

TEST(GpuSampling, AVocabularySmallerThanTheListEndsIt) {
  SamplingCase c = make_case(3, 1, 21, 1.0f, 0);
  c.rows[0].logprobs = 5;
  const Results found = sample(c, 0, 1, 0);
  EXPECT_GE(found.top[2].token, 0);
  EXPECT_EQ(found.top[3].token, -1);
  EXPECT_EQ(found.top[4].token, -1);
}

TEST(GpuSampling, BrokenRowsAreNamedAndHarmNobody) {
  SamplingCase c = make_case(4200, 5, 34, 1.0f, 0);
  c.row(0)[4199] = std::numeric_limits<float>::quiet_NaN();
  c.row(1)[12] = kInfinity;
  std::fill(c.row(2), c.row(2) + c.vocab, -kInfinity);
  for (int32_t t = 0; t < c.vocab; ++t) c.edits.push_back({.token = t, .forbidden = true});
  c.rows[3].num_edits = static_cast<int32_t>(c.edits.size());
  for (SampleRow& row : c.rows) row.logprobs = 2;
  c.rows[2].temperature = 1;
  c.rows[2].top_p = 0.5f;
  const Results found = sample_everywhere(c);
  EXPECT_EQ(found.rows[0].faults, kSampleNan);
  EXPECT_EQ(found.rows[1].faults, kSampleInfinite);
  EXPECT_EQ(found.rows[2].faults, kSampleEmpty);
  EXPECT_EQ(found.rows[3].faults, kSampleEmpty);
  EXPECT_EQ(found.rows[4].faults, 0);
  for (size_t r = 0; r < 4; ++r) EXPECT_EQ(found.rows[r].token, 0);
  expect_drawn(c, 4, found.rows[4].token);
}

// Of the logits as the model made them, also where edits and masks follow or the row is broken.
TEST(GpuSampling, DigestsAreThoseOfTheHost) {
  for (const auto& [vocab, gap] : {std::pair<int64_t, int64_t>{1, 0}, {300, 1}, {1024, 0}, {9001, 3}, {70000, 0}}) {
    SamplingCase c = make_case(vocab, 5, static_cast<uint32_t>(vocab), 2.0f, gap);
    for (const size_t r : {0, 1, 3, 4}) c.rows[r].digest = true;
    c.edits = {{.token = 0, .bias = 3.0f}};
    c.rows[1].num_edits = 1;
    c.rows[1].logprobs = 1;
    c.masks.assign(static_cast<size_t>((vocab + 31) / 32), 0x55555555u);
    c.rows[3].mask = c.rows[3].logprob_mask = 0;
    c.row(4)[vocab - 1] = std::numeric_limits<float>::quiet_NaN();
    const Results found = vocab > 10000 ? sample(c, 0, 5, 2) : sample_everywhere(c);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      const std::span<const float> row(c.row(r), static_cast<size_t>(vocab));
      EXPECT_EQ(found.digests[r], c.rows[r].digest ? cases::row_digest_oracle(row) : 0) << vocab << ", row " << r;
    }
  }
}

TEST(GpuSampling, TokensOfTheStepBeforeGoIntoTheNext) {
  const SamplingCase c = make_case(100, 3, 55, 2.0f, 0);
  const Results found = sample(c, 0, 3, 0);
  TestDevice& device = test_device();
  GpuBackend& gpu = device.ops();
  gpu.begin_step();
  const std::vector<int32_t> tokens = {7, 0, 8, 0, 0}, rows = {-1, 2, -1, 0, 1};
  const auto* on_device = static_cast<const int32_t*>(gpu.stage(std::as_bytes(std::span(tokens))));
  const auto* from = static_cast<const int32_t*>(gpu.stage(std::as_bytes(std::span(rows))));
  gpu.take_sampled({{on_device, tokens.size()}, {from, rows.size()}});
  gpu.synchronise();
  const std::vector<uint8_t> bytes = device.get(on_device, tokens.size() * sizeof(int32_t));
  std::vector<int32_t> got(tokens.size());
  std::memcpy(got.data(), bytes.data(), bytes.size());
  EXPECT_EQ(got, (std::vector<int32_t>{7, found.rows[2].token, 8, found.rows[0].token, found.rows[1].token}));
}

// A wanted row moves over the drafts that the tokens before them are, and not into the rows of another sequence.
TEST(GpuSampling, WantedRowsMoveOverAcceptedDrafts) {
  const SamplingCase c = make_case(100, 4, 56, 2.0f, 0);
  const Results found = sample(c, 0, 4, 0);
  const auto token = [&](size_t row) { return found.rows[row].token; };
  TestDevice& device = test_device();
  GpuBackend& gpu = device.ops();
  gpu.begin_step();
  // The first sequence has two right drafts of two, the second a wrong and a right one, the third none.
  const std::vector<int32_t> rows = {0, 1, 2, 1, 3, 2, 3},
                             drafts = {-1, token(0), token(1), -1, token(1) + 1, token(3), -1};
  const std::vector<int32_t> tokens(rows.size(), 0), wanted = {0, 3, 6};
  const auto stage = [&](const std::vector<int32_t>& values) {
    return std::span(static_cast<const int32_t*>(gpu.stage(std::as_bytes(std::span(values)))), values.size());
  };
  const auto wanted_there = stage(wanted), tokens_there = stage(tokens);
  gpu.take_sampled({tokens_there, stage(rows)});
  gpu.skip_accepted({wanted_there, tokens_there, stage(drafts)});
  gpu.synchronise();
  const std::vector<uint8_t> bytes = device.get(wanted_there.data(), wanted_there.size_bytes());
  std::vector<int32_t> got(wanted.size());
  std::memcpy(got.data(), bytes.data(), bytes.size());
  EXPECT_EQ(got, (std::vector<int32_t>{2, 3, 6}));
}

}  // namespace
}  // namespace quire::gpu
