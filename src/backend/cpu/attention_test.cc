// SPDX-License-Identifier: Apache-2.0
// reshape_and_cache and attention against slow oracles, and the same-bits property by memcmp, on every ISA level.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "backend/backend.h"
#include "backend/testing/attention_oracle_test.h"

namespace quire::cpu {
namespace {

class AttentionTest : public testing::TestWithParam<size_t> {
 protected:
  const AttentionCase shape_ = attention_cases()[GetParam()];
};

TEST_P(AttentionTest, AgreesWithSoftmaxInDouble) {
  for (const Isa isa : std::set<Isa>{probed_isas().back(), tested_isas().back()}) {  // one, if there is no AMX
    const PagedCache cache = filled_cache(shape_, isa);
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 1);
    const float scale = args_of(cache, step).scale;
    double worst = 0;
    for_each_row(cache, step, isa, [&](const OracleRow& row, const float* out) {
      if (row.position > 200 && row.head > 0) return;  // long rows of one head are enough
      std::vector<double> want;
      double tolerance = 0;
      double_oracle(row, scale, &want, &tolerance);
      for (size_t d = 0; d < want.size(); ++d) {
        worst = std::max(worst, std::fabs(double{out[d]} - want[d]) / tolerance);
        ASSERT_LE(std::fabs(double{out[d]} - want[d]), tolerance)
            << shape_.name << " sequence " << row.sequence << " head " << row.head << " position " << row.position;
      }
    });
    const double least = shape_.window == 1 ? -1 : 1e-4;  // one weight of 1 is exact
    EXPECT_GT(worst, least) << "the tolerance is too wide to see an error";
  }
}

TEST_P(AttentionTest, HasTheBitsOfTheContractOnEveryIsa) {
  for (const Isa isa : tested_isas()) {
    const PagedCache cache = filled_cache(shape_, isa);
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 3);
    const float scale = args_of(cache, step).scale;
    int64_t number = 0;
    for_each_row(cache, step, isa, [&](const OracleRow& row, const float* out) {
      if (number++ % 11 != 0) return;
      const std::vector<float> want = float_oracle(row, scale);
      ASSERT_EQ(compare_bits(out, want.data(), want.size() * sizeof(float)), 0)
          << shape_.name << " " << name(isa) << " sequence " << row.sequence << " head " << row.head << " position "
          << row.position << " got " << out[0] << " want " << want[0];
    });
  }
}

TEST_P(AttentionTest, HasTheSameBitsOnEveryIsaWithAnyNumberOfThreads) {
  std::vector<float> by_form[2];
  const bool has_more = tested_isas().size() > 1;
  for (const Isa isa : tested_isas()) {
    const PagedCache cache = filled_cache(shape_, isa);
    std::vector<float>& want = by_form[rounds(isa, shape_.dtype)];
    for (const int threads : {2, 1, 3, 16}) {
      if (isa == Isa::kPortable && threads != 2 && has_more) continue;  // slow without an fma
      Step step = whole_step(cache);
      run_plan(cache, step, isa, threads);
      if (want.empty()) want = step.out;
      ASSERT_EQ(compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0)
          << shape_.name << " " << name(isa) << " threads " << threads;
    }
  }
}

TEST_P(AttentionTest, OneSequenceAloneHasTheBitsOfTheBatch) {
  for (const Isa isa : tested_isas()) {
    const PagedCache cache = filled_cache(shape_, isa);
    Step batch = whole_step(cache);
    run_plan(cache, batch, isa, 2);
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      Step alone = make_step(cache, {batch.sequences[i]}, {batch.queries[i]}, {batch.contexts[i]});
      run_plan(cache, alone, isa, 1);
      ASSERT_EQ(compare_bits(alone.out.data(), batch.out.data() + batch.cu[i] * cache.out_cols(),
                             alone.out.size() * sizeof(float)),
                0)
          << shape_.name << " " << name(isa) << " sequence " << i;
    }
  }
}

TEST_P(AttentionTest, ChunksAndSingleTokensHaveTheBitsOfTheWhole) {
  if (!shape_.causal) return;  // a later position changes earlier rows
  const Isa isa = tested_isas().back();
  const PagedCache cache = filled_cache(shape_, isa);
  Step batch = whole_step(cache);
  run_plan(cache, batch, isa, 1);
  std::mt19937 random(11);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const int32_t first = batch.contexts[i] - batch.queries[i];
    for (int32_t done = 0; done < batch.queries[i];) {
      const int32_t left = batch.queries[i] - done;
      const int32_t n = random() % 3 == 0 ? 1 : static_cast<int32_t>(1 + random() % static_cast<uint32_t>(left));
      // Beside another sequence's row, so that the chunk is not alone either.
      Step chunk = make_step(cache, {batch.sequences[i], batch.sequences[0]}, {n, 1}, {first + done + n, 1});
      run_plan(cache, chunk, isa, 2);
      ASSERT_EQ(compare_bits(chunk.out.data(), batch.out.data() + (batch.cu[i] + done) * cache.out_cols(),
                             static_cast<size_t>(n * cache.out_cols()) * sizeof(float)),
                0)
          << shape_.name << " sequence " << i << " rows " << done << " to " << done + n;
      done += n;
    }
  }
}

TEST_P(AttentionTest, BlockSizeAndPageOrderChangeNoBit) {
  const Isa isa = tested_isas().back();
  std::vector<float> want;
  for (const int64_t block_size : {8, 16, 48, 128, 544}) {
    AttentionCase shape = shape_;
    shape.block_size = block_size;
    PagedCache cache = make_paged_cache(shape, 7);
    // The same tokens whatever the pages: the random numbers before them depend on the page count.
    std::mt19937 random(21);
    for (float& x : cache.k) x = 2 * random_float(random);
    for (float& x : cache.v) x = random_float(random);
    kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 2);
    if (want.empty()) want = step.out;
    ASSERT_EQ(compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0)
        << shape.name << " block size " << block_size;
  }
}

TEST_P(AttentionTest, TheBackendHasTheSameBitsWithOneAndTwoThreads) {
  std::vector<float> want;
  for (const int threads : {1, 2}) {
    auto backend = make_cpu_backend({threads, ""});
    ASSERT_TRUE(backend.ok());
    PagedCache cache = make_paged_cache(shape_, 7);
    EXPECT_EQ(backend.value()->kv_page_bytes(shape_.page()), static_cast<size_t>(cache.layer.page_stride));
    backend.value()->reshape_and_cache(cache_args(cache));
    Step step = whole_step(cache);
    backend.value()->attention(args_of(cache, step));
    if (want.empty()) want = step.out;
    ASSERT_EQ(compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0) << shape_.name;
  }
  const PagedCache cache = filled_cache(shape_, tested_isas().back());
  Step step = whole_step(cache);
  run_plan(cache, step, tested_isas().back(), 1);
  EXPECT_EQ(compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0) << shape_.name;
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionTest, testing::Range(size_t{0}, attention_cases().size()),
                         [](const auto& info) { return attention_cases()[info.param].name; });

// Every kind with every other: random mixtures on every level, against the contract by its bits and against double.
TEST(Attention, AnyMixtureOfKindsHasTheBitsOfTheContract) {
  constexpr int64_t kHeadDims[] = {8, 10, 32, 64, 80, 96, 112, 128, 192, 256, 288};
  constexpr int64_t kBlockSizes[] = {8, 16, 32, 48, 544};
  constexpr int64_t kWindows[] = {0, 0, 1, 50, 128, 300};
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kF8E5M2};
  std::mt19937 random(17);
  const auto pick = [&](const auto& list) { return list[random() % std::size(list)]; };
  for (int trial = 0; trial < 40; ++trial) {
    AttentionCase shape = {"mixture", 0, 0, pick(kHeadDims), pick(kBlockSizes), pick(kTypes), random() % 8 != 0, {}};
    shape.v_in_k = random() % 4 == 0;
    shape.num_kv_heads = shape.v_in_k ? 1 : static_cast<int64_t>(1 + random() % 2);
    shape.num_heads = shape.num_kv_heads * static_cast<int64_t>(1 + random() % 8);
    if (random() % 3 == 0) shape.v_head_dim = 8 * static_cast<int64_t>(1 + random() % 16);
    if (shape.v_in_k) shape.v_head_dim = std::max<int64_t>(8, shape.head_dim / 16 * 8);
    shape.window = pick(kWindows);
    shape.soft_cap = random() % 3 == 0 ? 50.0f : 0.0f;
    shape.sinks = random() % 3 == 0;
    for (int i = 0; i < 2; ++i) {
      const auto queries = static_cast<int32_t>(1 + random() % (i == 0 ? 2 : 20));
      shape.sequences.push_back({queries, queries + static_cast<int32_t>(random() % 300)});
    }
    for (const Isa isa : tested_isas()) {
      const PagedCache cache = filled_cache(shape, isa);
      Step step = whole_step(cache);
      run_plan(cache, step, isa, 1 + trial % 4);
      const float scale = args_of(cache, step).scale;
      int64_t number = trial;
      for_each_row(cache, step, isa, [&](const OracleRow& row, const float* out) {
        if (number++ % 23 != 0) return;
        const std::vector<float> want = float_oracle(row, scale);
        ASSERT_EQ(compare_bits(out, want.data(), want.size() * sizeof(float)), 0)
            << "trial " << trial << " " << name(isa) << " position " << row.position << " head " << row.head;
        std::vector<double> near;
        double tolerance = 0;
        double_oracle(row, scale, &near, &tolerance);
        for (size_t d = 0; d < near.size(); ++d) ASSERT_NEAR(double{out[d]}, near[d], tolerance) << "trial " << trial;
      });
    }
  }
}

// Types of pages to poison: those that a level treats in its own way.
std::vector<DType> poisoned_types(Isa isa) {
  if (isa != Isa::kAmx) return {DType::kF32};
  return {DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kF8E5M2};
}
// A token whose K is NaN and whose V is infinite, or NaN where pages clamp infinities.
void poison(PagedCache& cache, int32_t token) {
  const DType pages = cache.shape.dtype;
  const bool clamps = pages == DType::kF8E4M3 || pages == DType::kF8E5M2;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const auto first = static_cast<size_t>(token * cache.kv_cols()), count = static_cast<size_t>(cache.kv_cols());
  std::fill_n(cache.k.begin() + static_cast<int64_t>(first), count, kNan);
  std::fill_n(cache.v.begin() + static_cast<int64_t>(first), count, clamps ? kNan : kInf);
}

// A later token's K and V may be infinite or NaN: rows before it do not feel it, not even through a product with zero.
void expect_later_tokens_unfelt(Isa isa, DType pages) {
  const AttentionCase shape = {"poison", 6, 2, 64, 16, pages, true, {{200, 200}}};
  PagedCache clean = filled_cache(shape, isa);
  Step want = whole_step(clean);
  run_plan(clean, want, isa, 1);
  for (const int32_t bad : {1, 63, 64, 100, 199}) {
    PagedCache cache = make_paged_cache(shape, 7);
    poison(cache, bad);
    kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 1);
    ASSERT_EQ(compare_bits(step.out.data(), want.out.data(), static_cast<size_t>(bad * cache.q_cols()) * 4), 0)
        << name(isa) << " " << info(pages).name << " token " << bad;
    EXPECT_FALSE(std::isfinite(step.out[static_cast<size_t>(bad * cache.q_cols())]));
  }
}
TEST(Attention, ALaterTokenNeverReachesAnEarlierRow) {
  for (const Isa isa : tested_isas()) {
    for (const DType pages : poisoned_types(isa)) expect_later_tokens_unfelt(isa, pages);
  }
}

// A token that fell out of the window may be anything too, in the window's first tile as well.
void expect_tokens_before_a_window_unfelt(Isa isa, DType pages, int32_t queries, int64_t block_size) {
  AttentionCase shape = {"poison", 6, 2, 64, block_size, pages, true, {{queries, 400}}};
  shape.window = 75;
  const PagedCache clean = filled_cache(shape, isa);
  Step want = whole_step(clean);
  run_plan(clean, want, isa, 1);
  for (const int32_t bad : {0, 250, 310, 325, 326}) {
    PagedCache cache = make_paged_cache(shape, 7);
    poison(cache, bad);
    kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 1);
    for (int32_t t = 0; t < queries; ++t) {
      const int32_t position = 400 - queries + t;
      const bool sees = bad <= position && bad > position - 75;
      const auto at = static_cast<size_t>(t * cache.out_cols());
      const int same = std::memcmp(step.out.data() + at, want.out.data() + at,
                                   static_cast<size_t>(cache.out_cols()) * sizeof(float));
      ASSERT_EQ(same == 0, !sees) << name(isa) << " " << info(pages).name << " token " << bad << " row " << position;
    }
  }
}
TEST(Attention, ATokenBeforeTheWindowNeverReachesARow) {
  for (const Isa isa : tested_isas()) {
    for (const DType pages : poisoned_types(isa)) {
      for (const int32_t queries : {1, 90}) {
        for (const int64_t block_size : {8, 16}) expect_tokens_before_a_window_unfelt(isa, pages, queries, block_size);
      }
    }
  }
}

// Scores so far apart that weights reach the floor of exp2, in one tile, across tiles and across splits.
TEST(Attention, HugeScoresStayFinite) {
  const AttentionCase shape = {"huge", 1, 1, 16, 16, DType::kF32, true, {{1, 700}}};
  for (const Isa isa : tested_isas()) {
    PagedCache cache = make_paged_cache(shape, 7);
    for (float& x : cache.k) x *= 1e4f;
    kernels(isa).reshape_and_cache(cache_args(cache), 0, 700);
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 4);
    const StoredCache stored(cache);
    const OracleRow row{stored, 0, 0, 699, 700, step.q.data()};
    const std::vector<float> want = float_oracle(row, args_of(cache, step).scale);
    ASSERT_EQ(compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0) << name(isa);
    for (const float x : step.out) ASSERT_TRUE(std::isfinite(x)) << name(isa);
  }
}

// The place of element d of a position's K and V in its head's part of a page (attention_layout.h).
int64_t place_of_k(const KvLayer& kv, const KvGeometry& g, bool pairs, int64_t position, int64_t d) {
  if (g.in_rows) return position * g.k_stride + d;
  const int64_t group = position / 16 * kv.head_dim, inside = position % 16;
  return pairs ? (group + d / 2 * 2) * 16 + 2 * inside + d % 2 : (group + d) * 16 + inside;
}
int64_t place_of_v(const KvGeometry& g, bool pairs, int64_t position, int64_t d) {
  return pairs ? (position / 2 * g.v_stride + d) * 2 + position % 2 : position * g.v_stride + d;
}

// A group of positions may be written at once, which must not show: all rows in one call, in calls of a few rows, and
// one by one, with rows that have no slot.
TEST(ReshapeAndCache, RowsTogetherHaveTheBytesOfRowsAlone) {
  for (const AttentionCase& shape : attention_cases()) {
    for (const Isa isa : tested_isas()) {
      const PagedCache made = make_paged_cache(shape, 7);
      const auto rows = static_cast<int64_t>(made.slots.size());
      std::vector<char> want;
      for (const int64_t at_once : {int64_t{1}, int64_t{5}, int64_t{37}, rows}) {
        PagedCache cache = make_paged_cache(shape, 7);
        for (int64_t row = 19; row < rows; row += 23) cache.slots[static_cast<size_t>(row)] = -1;
        for (int64_t row = 0; row < rows; row += at_once) {
          kernels(isa).reshape_and_cache(cache_args(cache), row, std::min(rows, row + at_once));
        }
        const char* pages = static_cast<const char*>(cache.layer.pages);
        const std::vector<char> got(pages, pages + cache.layer.num_pages * cache.layer.page_stride);
        if (want.empty()) want = got;
        ASSERT_TRUE(got == want) << shape.name << " " << name(isa) << ", " << at_once << " rows at once";
      }
    }
  }
}

TEST(ReshapeAndCache, WritesItsOwnSlotsAndNothingElse) {
  for (const AttentionCase& shape : attention_cases()) {
    for (const Isa isa : tested_isas()) {
      PagedCache cache = make_paged_cache(shape, 5);
      std::vector<char> want = cache.memory;
      const KvGeometry g = kv_geometry(cache.layer);
      const bool pairs = isa == Isa::kAmx && pages_in_pairs(cache.layer);
      const auto base = static_cast<char*>(cache.layer.pages) - cache.memory.data();
      const auto put = [&](char* at, float x, float scale) {
        const uint32_t bits = stored_bits(x, shape.dtype, scale);
        std::memcpy(at, &bits, static_cast<size_t>(g.element));
      };
      for (size_t t = 0; t < cache.slots.size(); ++t) {
        if (t % 7 == 3) {
          cache.slots[t] = -1;
          continue;
        }
        const int64_t page = cache.slots[t] / shape.block_size, position = cache.slots[t] % shape.block_size;
        const auto token = static_cast<int64_t>(t);
        for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
          char* head = want.data() + base + page * cache.layer.page_stride + h * g.head_bytes;
          const float* k = cache.k.data() + token * cache.kv_cols() + h * shape.head_dim;
          const float* v = shape.v_in_k ? nullptr : cache.v.data() + token * cache.v_cols() + h * shape.v_dim();
          const float k_scale = scale_oracle(k, shape.head_dim, shape.dtype);
          const float v_scale = shape.v_in_k ? 0 : scale_oracle(v, shape.v_dim(), shape.dtype);
          for (int64_t d = 0; d < (g.in_rows ? g.k_stride : shape.head_dim); ++d) {
            const float x = d < shape.head_dim ? k[d] : 0.0f;
            put(head + place_of_k(cache.layer, g, pairs, position, d) * g.element, x, k_scale);
          }
          for (int64_t d = 0; d < g.v_stride && !shape.v_in_k; ++d) {
            const float x = d < shape.v_dim() ? v[d] : 0.0f;
            put(head + g.k_bytes + place_of_v(g, pairs, position, d) * g.element, x, v_scale);
          }
          if (shape.dtype != DType::kI8) continue;
          char* scales = head + g.k_bytes + g.v_bytes + position * 4;
          std::memcpy(scales, &k_scale, 4);
          if (!shape.v_in_k) std::memcpy(scales + shape.block_size * 4, &v_scale, 4);
        }
      }
      kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
      ASSERT_EQ(compare_bits(cache.memory.data(), want.data(), want.size()), 0) << shape.name << " " << name(isa);
    }
  }
}

// With a window of 1 a row's weight is 1 and it answers with V itself: every code, every boundary between two codes.
TEST(Attention, OneByteElementsAreReadAndWrittenAsTheContractSays) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    std::vector<float> values;
    for (int code = 0; code < 256 && dtype != DType::kI8; ++code) {
      const float x = meaning(static_cast<uint32_t>(code), dtype, 1);
      const float next = meaning(static_cast<uint32_t>(code % 128 == 127 ? code : code + 1), dtype, 1);
      const float middle = x + (next - x) / 2;
      for (const float y : {x, middle, std::nextafter(middle, kInf), std::nextafter(middle, -kInf)})
        values.push_back(y);
    }
    if (dtype == DType::kI8) {  // heads of 128: one token's scale is its own
      for (const float top : {0.0f, 1.0f, 127.0f, 1e-35f, 0x1p-100f, 3e38f, kInf, std::nanf("")}) {
        for (int i = 0; i < 128; ++i)
          values.push_back(i == 77 ? top : (std::isfinite(top) ? top : 1.0f) * (i - 64) / 128);
      }
    }
    AttentionCase shape = {"bytes", 1, 1, 128, 16, dtype, true, {{8, 8}}};
    shape.window = 1;
    for (const Isa isa : tested_isas()) {
      PagedCache cache = make_paged_cache(shape, 1);
      cache.v = values;
      ASSERT_EQ(values.size(), cache.slots.size() * 128);
      kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
      Step step = whole_step(cache);
      run_plan(cache, step, isa, 1);
      const StoredValues stored(values, 128, dtype);
      for (size_t i = 0; i < values.size(); ++i) {
        const float want = rounds(isa, dtype) ? rounded(stored.scales[i]) * stored.codes[i] : stored.values[i];
        if (std::isnan(want) && std::isnan(step.out[i])) continue;
        ASSERT_EQ(step.out[i], want) << name(isa) << " " << name(dtype) << " of " << values[i];
      }
    }
  }
}

TEST(KvPageBytes, CountsEveryKindOfPage) {
  const auto backend = make_cpu_backend({1, ""});
  ASSERT_TRUE(backend.ok());
  const auto bytes = [&](const KvPageShape& shape) { return backend.value()->kv_page_bytes(shape); };
  EXPECT_EQ(bytes({DType::kF16, 16, 8, 128}), 16u * 8 * 2 * 128 * 2);
  EXPECT_EQ(bytes({DType::kF32, 544, 2, 256}), 544u * 2 * 2 * 256 * 4);
  EXPECT_EQ(bytes({DType::kBF16, 16, 4, 192, 128}), 16u * 4 * (192 + 128) * 2);
  EXPECT_EQ(bytes({DType::kBF16, 32, 1, 576, 512, true}), 32u * 576 * 2);  // MLA: the latent alone
  EXPECT_EQ(bytes({DType::kF16, 8, 1, 40, 0}), 8u * (48 + 48) * 2);        // half a group: rows of whole sixteens
  EXPECT_EQ(bytes({DType::kF8E4M3, 16, 8, 128}), 16u * 8 * 2 * 128);
  EXPECT_EQ(bytes({DType::kI8, 16, 8, 128}), 16u * 8 * 2 * (128 + 4));
  EXPECT_EQ(bytes({DType::kI8, 32, 1, 576, 512, true}), 32u * (576 + 4));
  EXPECT_EQ(bytes({DType::kI8, 16, 1, 7}), 16u * (7 + 4 + 16 + 4) + 16);  // whole cache lines
}

TEST(Rope, AnOffsetRotatesTheEndOfEachHead) {
  constexpr int64_t kTokens = 3, kHeads = 2, kDim = 40, kRotated = 24;
  std::mt19937 random(4);
  std::vector<float> whole(kTokens * kHeads * kDim), table(2 * 5 * kRotated / 2);
  for (float& x : whole) x = random_float(random);
  for (float& x : table) x = random_float(random);
  const int32_t positions[kTokens] = {0, 3, 4};
  for (const Isa isa : tested_isas()) {
    for (const bool interleaved : {false, true}) {
      std::vector<float> ends, want = whole, got = whole;
      for (int64_t i = kDim - kRotated; i < std::ssize(whole); i += kDim) {
        ends.insert(ends.end(), whole.begin() + i, whole.begin() + i + kRotated);
      }
      RopeArgs args = {{ends.data(), DType::kF32, kTokens, kHeads * kRotated, kHeads * kRotated},
                       kRotated,
                       kRotated,
                       interleaved,
                       table.data(),
                       table.data() + table.size() / 2,
                       positions};
      kernels(isa).rope(args, 0, kTokens);
      for (int64_t i = 0; i < kTokens * kHeads; ++i) {
        std::copy_n(ends.begin() + i * kRotated, kRotated, want.begin() + (i + 1) * kDim - kRotated);
      }
      args.x = {got.data(), DType::kF32, kTokens, kHeads * kDim, kHeads * kDim};
      args.head_dim = kDim;
      args.offset = kDim - kRotated;
      kernels(isa).rope(args, 0, kTokens);
      ASSERT_EQ(compare_bits(got.data(), want.data(), want.size() * sizeof(float)), 0) << name(isa);
    }
  }
}

TEST(AttentionPlan, CoversEveryRowAndSplitOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    AttentionCase shape = {"plan", 6, 2, 32, 16, DType::kF16, true, {}};
    shape.num_heads = 2 * static_cast<int64_t>(1 + random() % 8);
    shape.window = random() % 2 == 0 ? 0 : static_cast<int64_t>(1 + random() % 600);
    for (uint32_t i = 0, n = 1 + random() % 5; i < n; ++i) {
      const auto queries = static_cast<int32_t>(random() % 4 == 0 ? random() % 300 : random() % 3);
      shape.sequences.push_back({queries, queries + static_cast<int32_t>(random() % 3000)});
    }
    PagedCache cache = make_paged_cache(shape, 1);
    Step step = whole_step(cache);
    const AttentionArgs args = args_of(cache, step);
    const int64_t group = shape.num_heads / 2;
    for (const int threads : {1, 2, 8, 64}) {
      AttentionPlan plan;
      plan.build(args, threads);
      std::vector<std::vector<int>> hits(shape.sequences.size() * 2);
      for (size_t i = 0; i < hits.size(); ++i) {
        const AttentionSequence& s = shape.sequences[i / 2];
        hits[i].assign(static_cast<size_t>(s.queries * group * (s.context / kAttentionSplit + 1)), 0);
      }
      for (const AttentionItem& item : plan.items()) {
        const AttentionSequence& s = shape.sequences[static_cast<size_t>(item.seq)];
        ASSERT_LE(item.row_end - item.row_begin, kAttentionRowsMost);
        ASSERT_TRUE(item.partials != nullptr || item.split_begin == item.split_first);
        if (shape.window > 0) {
          // The queries of an item are few, so its splits span the window and not the context.
          const int64_t queries = (item.row_end - 1) / group - item.row_begin / group + 1;
          ASSERT_LE((item.split_end - item.split_begin - 2) * kAttentionSplit, shape.window + queries);
        }
        for (int64_t row = item.row_begin; row < item.row_end; ++row) {
          for (int64_t split = item.split_begin; split < item.split_end; ++split) {
            ++hits[static_cast<size_t>(item.seq * 2 + item.kv_head)]
                  [static_cast<size_t>(row * (s.context / kAttentionSplit + 1) + split)];
          }
        }
      }
      for (size_t i = 0; i < hits.size(); ++i) {
        const AttentionSequence& s = shape.sequences[i / 2];
        for (int64_t row = 0; row < s.queries * group; ++row) {
          const int64_t position = s.context - s.queries + row / group;
          const int64_t low = shape.window == 0 ? 0 : std::max<int64_t>(0, position - shape.window + 1);
          for (int64_t split = low / kAttentionSplit; split * kAttentionSplit <= position; ++split) {
            ASSERT_EQ(hits[i][static_cast<size_t>(row * (s.context / kAttentionSplit + 1) + split)], 1);
          }
        }
      }
    }
  }
}

// An item names the one that its thread takes next if threads take turns, also in a plan that was built before.
TEST(AttentionPlan, ItemsNameTheOneThatComesSoon) {
  const AttentionCase shape = {"soon", 9, 3, 64, 16, DType::kBF16, true, {{1, 700}, {1, 30}, {2, 300}}};
  PagedCache cache = make_paged_cache(shape, 1);
  Step step = whole_step(cache);
  AttentionPlan plan;
  for (const int threads : {1, 8, 2, 1000}) {
    plan.build(args_of(cache, step), threads);
    const auto items = plan.items();
    for (size_t i = 0; i < items.size(); ++i) {
      const size_t soon = i + static_cast<size_t>(threads);
      ASSERT_EQ(items[i].soon, soon < items.size() ? &items[soon] : nullptr) << threads << " threads, item " << i;
    }
  }
}

TEST(AttentionPlanDeathTest, RefusesTablesAndLengthsThatDoNotFit) {
  const AttentionCase shape = {"wrong", 2, 1, 16, 16, DType::kF32, true, {{3, 40}}};
  PagedCache cache = make_paged_cache(shape, 1);
  Step step = whole_step(cache);
  AttentionPlan plan;
  plan.build(args_of(cache, step), 1);  // as it is, it fits
  Step short_context = make_step(cache, {0}, {3}, {2});
  EXPECT_DEATH(plan.build(args_of(cache, short_context), 1), "see no position");
  Step long_context = make_step(cache, {0}, {3}, {49});
  EXPECT_DEATH(plan.build(args_of(cache, long_context), 1), "longer than its block table");
  step.tables[1] = static_cast<int32_t>(cache.layer.num_pages);
  EXPECT_DEATH(plan.build(args_of(cache, step), 1), "does not exist");
}

TEST(AttentionPlan, OneLongSequenceGivesEveryThreadWork) {
  const AttentionCase shape = {"long", 9, 3, 64, 16, DType::kF16, true, {{1, 20000}}};
  PagedCache cache = make_paged_cache(shape, 1);
  Step step = whole_step(cache);
  for (const int threads : {2, 8, 32}) {
    AttentionPlan plan;
    plan.build(args_of(cache, step), threads);
    int64_t longest = 0, total = 0;
    for (const AttentionItem& item : plan.items()) {
      longest = std::max<int64_t>(longest, item.split_end - item.split_begin);
      total += item.split_end - item.split_begin;
    }
    EXPECT_LE(longest * threads, total) << threads;
  }
}

}  // namespace
}  // namespace quire::cpu
