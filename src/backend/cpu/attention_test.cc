// SPDX-License-Identifier: Apache-2.0
// reshape_and_cache and attention against slow oracles, and the same-bits property by memcmp, on every ISA level.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/backend.h"
#include "backend/cpu/attention_cases.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd_probe.h"
#include "base/half.h"

namespace quire::cpu {
namespace {

// The levels that have attention of their own.
std::vector<Isa> tested_isas() {
  std::vector<Isa> isas = probed_isas();
  const std::vector<Isa> available = available_isas();
  if (std::find(available.begin(), available.end(), Isa::kAmx) != available.end()) isas.push_back(Isa::kAmx);
  return isas;
}
// Whether a level rounds q, K, V and weights to bf16.
bool rounds(Isa isa, DType pages) {
  return isa == Isa::kAmx && pages == DType::kBF16;
}

// memcmp that takes empty ranges, whose pointers may be null.
int compare_bits(const void* a, const void* b, size_t bytes) {
  return bytes == 0 ? 0 : std::memcmp(a, b, bytes);
}

// One step over a cache: `queries` rows of each sequence that end at `contexts` positions.
struct Step {
  std::vector<int32_t> sequences;  // indices into the cache
  std::vector<int32_t> queries;
  std::vector<int32_t> contexts;

  std::vector<int32_t> cu, tables;
  std::vector<float> q, out;
};

// q depends on (sequence, position) alone, so that any cut of the same sequence asks the same questions.
void fill_query(const PagedCache& cache, int32_t sequence, int32_t position, float* q) {
  std::mt19937 random(static_cast<uint32_t>(sequence * 1000003 + position));
  for (int64_t i = 0; i < cache.q_cols(); ++i) q[i] = 3 * random_float(random);
}

Step make_step(const PagedCache& cache, std::vector<int32_t> sequences, std::vector<int32_t> queries,
               std::vector<int32_t> contexts) {
  Step s{std::move(sequences), std::move(queries), std::move(contexts), {0}, {}, {}, {}};
  for (size_t i = 0; i < s.sequences.size(); ++i) {
    s.cu.push_back(s.cu.back() + s.queries[i]);
    const auto row = cache.tables.begin() + s.sequences[i] * cache.max_blocks;
    s.tables.insert(s.tables.end(), row, row + cache.max_blocks);
    for (int32_t t = 0; t < s.queries[i]; ++t) {
      s.q.resize(s.q.size() + static_cast<size_t>(cache.q_cols()));
      fill_query(cache, s.sequences[i], s.contexts[i] - s.queries[i] + t, s.q.data() + s.q.size() - cache.q_cols());
    }
  }
  s.out.assign(s.q.size(), 12345.0f);
  return s;
}

Step whole_step(const PagedCache& cache) {
  std::vector<int32_t> sequences, queries, contexts;
  for (size_t i = 0; i < cache.shape.sequences.size(); ++i) {
    sequences.push_back(static_cast<int32_t>(i));
    queries.push_back(cache.shape.sequences[i].queries);
    contexts.push_back(cache.shape.sequences[i].context);
  }
  return make_step(cache, sequences, queries, contexts);
}

AttentionArgs args_of(const PagedCache& cache, Step& step) {
  AttentionArgs args;
  const int64_t tokens = step.cu.back();
  args.q = {step.q.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()};
  args.out = {step.out.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()};
  args.kv = cache.layer;
  args.num_heads = cache.shape.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(cache.shape.head_dim));
  args.causal = cache.shape.causal;
  args.cu_seqlens_q = step.cu;
  args.context_lens = step.contexts;
  args.block_tables = step.tables;
  args.max_blocks = cache.max_blocks;
  return args;
}

ReshapeAndCacheArgs cache_args(PagedCache& cache) {
  const auto tokens = static_cast<int64_t>(cache.slots.size());
  return {{cache.k.data(), DType::kF32, tokens, cache.kv_cols(), cache.kv_cols()},
          {cache.v.data(), DType::kF32, tokens, cache.kv_cols(), cache.kv_cols()},
          cache.slots,
          cache.layer};
}

PagedCache filled_cache(const AttentionCase& shape, Isa isa, uint32_t seed = 7) {
  PagedCache cache = make_paged_cache(shape, seed);
  kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
  return cache;
}

// The plan's items in a shuffled order, as threads might take them.
void run_plan(const PagedCache& cache, Step& step, Isa isa, int threads) {
  const AttentionArgs args = args_of(cache, step);
  AttentionPlan plan;
  plan.build(args, threads, args.kv.dtype == DType::kBF16 ? kernels(isa).attention.most_rows : kAttentionRows);
  std::vector<AttentionItem> items(plan.items().begin(), plan.items().end());
  std::shuffle(items.begin(), items.end(), std::mt19937(static_cast<uint32_t>(threads)));
  std::vector<float> scratch(static_cast<size_t>(attention_scratch_floats(cache.shape.head_dim)) + 16,
                             std::numeric_limits<float>::quiet_NaN());
  float* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
  for (const AttentionItem& item : items) kernels(isa).attention.run(args, item, aligned);
  for (const AttentionMerge& merge : plan.merges()) kernels(isa).attention.merge(args, merge);
}

float stored(float x, DType dtype) {
  return dtype == DType::kF32   ? x
         : dtype == DType::kF16 ? fp16_to_float(float_to_fp16(x))
                                : bf16_to_float(float_to_bf16(x));
}

// One row of the oracles: what they need to know.
struct OracleRow {
  const PagedCache& cache;
  int32_t sequence;
  int64_t head;
  int64_t visible;
  const float* q;
  bool rounded = false;

  float k(int64_t position, int64_t d) const { return stored(cache.k[at(position, d)], cache.shape.dtype); }
  float v(int64_t position, int64_t d) const { return stored(cache.v[at(position, d)], cache.shape.dtype); }
  size_t at(int64_t position, int64_t d) const {
    const int64_t kv_head = head / (cache.shape.num_heads / cache.shape.num_kv_heads);
    return static_cast<size_t>((cache.first[static_cast<size_t>(sequence)] + position) * cache.kv_cols() +
                               kv_head * cache.shape.head_dim + d);
  }
};

// Softmax attention in double, and a bound of what float arithmetic may lose.
void double_oracle(const OracleRow& row, float scale, std::vector<double>* out, double* tolerance) {
  const int64_t dim = row.cache.shape.head_dim;
  std::vector<double> s(static_cast<size_t>(row.visible));
  double top = -1e300, widest = 0, largest_v = 0;
  for (int64_t j = 0; j < row.visible; ++j) {
    double dot = 0, size = 0;
    for (int64_t d = 0; d < dim; ++d) {
      dot += double{row.q[d]} * double{row.k(j, d)};
      size += std::fabs(double{row.q[d]} * double{row.k(j, d)});
      largest_v = std::max(largest_v, std::fabs(double{row.v(j, d)}));
    }
    s[static_cast<size_t>(j)] = dot * double{scale};
    top = std::max(top, dot * double{scale});
    widest = std::max(widest, size * double{scale});
  }
  double sum = 0;
  out->assign(static_cast<size_t>(dim), 0.0);
  for (int64_t j = 0; j < row.visible; ++j) {
    const double p = std::exp(s[static_cast<size_t>(j)] - top);
    sum += p;
    for (int64_t d = 0; d < dim; ++d) (*out)[static_cast<size_t>(d)] += p * double{row.v(j, d)};
  }
  for (double& x : *out) x /= sum;
  // A chain of n roundings loses at most n eps times the sum of magnitudes: scores over head_dim; o and l over the
  // positions; a weight's relative error is its score's absolute one, and some ulps of exp2.
  const double eps = 0x1p-24;
  // Where everything is rounded to bf16 first: half a unit of 2^-8 for q, K, V and weights each.
  const double rounding = row.rounded ? 0x1p-9 : 0;
  const double score_error = (static_cast<double>(dim + 4) * eps + 2.1 * rounding) * widest;
  *tolerance = largest_v * (4 * score_error + (static_cast<double>(row.visible) + 20) * eps + 2.1 * rounding);
}

// The contract of ops/attention.h in scalar floats.
struct State {
  float m, l;
  std::vector<float> o;
};
float exp2_oracle(float x) {
  float out;
  simd_probe(Isa::kPortable).map(ProbeOp::kExp2Clamped, &x, &x, &x, &out, 1);
  return out;
}
float larger(float a, float b) {
  return a > b ? a : b;
}

float flush(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
float rounded(float x) {
  return flush(bf16_to_float(float_to_bf16(flush(x))));
}
// acc + x y over 32 elements: even and odd ones apart, tiny numbers as zeros.
template <typename X, typename Y>
float add_step(float acc, int64_t n, const X& x, const Y& y) {
  float even = 0, odd = 0;
  for (int64_t i = 0; i < 32 && i < n; i += 2) {
    even = flush(std::fma(x(i), y(i), even));
    if (i + 1 < n) odd = flush(std::fma(x(i + 1), y(i + 1), odd));
  }
  return flush(acc + flush(even + odd));
}

State split_oracle(const OracleRow& row, const std::vector<float>& qs, int64_t begin, int64_t end) {
  const int64_t dim = row.cache.shape.head_dim;
  State st{-std::numeric_limits<float>::infinity(), 0, std::vector<float>(static_cast<size_t>(dim), 0.0f)};
  float lanes[16] = {};
  for (int64_t tile = begin; tile < end; tile += kAttentionTile) {
    const int64_t n = std::min(kAttentionTile, end - tile);
    float p[kAttentionTile], sums[16] = {}, top = st.m;
    for (int64_t j = 0; j < n; ++j) {
      p[j] = 0;
      const auto q = [&](int64_t d) { return qs[static_cast<size_t>(d)]; };
      for (int64_t d = 0; d < dim && !row.rounded; ++d) p[j] = std::fma(q(d), row.k(tile + j, d), p[j]);
      for (int64_t d = 0; d < dim && row.rounded; d += 32) {
        const auto q_step = [&](int64_t i) { return rounded(q(d + i)); };
        p[j] = add_step(p[j], dim - d, q_step, [&](int64_t i) { return rounded(row.k(tile + j, d + i)); });
      }
      top = larger(p[j], top);
    }
    const float a = exp2_oracle(st.m - top);
    for (int64_t j = 0; j < n; ++j) {
      p[j] = exp2_oracle(p[j] - top);
      sums[j % 16] += p[j];
    }
    for (int i = 0; i < 16; ++i) lanes[i] = std::fma(lanes[i], a, sums[i]);
    for (int64_t d = 0; d < dim; ++d) {
      float& o = st.o[static_cast<size_t>(d)];
      if (row.rounded) {
        float sum = 0;
        for (int64_t j = 0; j < n; j += 32) {
          const auto weight = [&](int64_t i) { return rounded(p[j + i]); };
          sum = add_step(sum, n - j, weight, [&](int64_t i) { return rounded(row.v(tile + j + i, d)); });
        }
        o = std::fma(o, a, sum);
        continue;
      }
      o *= a;
      for (int64_t j = 0; j < n; ++j) o = std::fma(p[j], row.v(tile + j, d), o);
    }
    st.m = top;
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  st.l = lanes[0];
  return st;
}

std::vector<float> float_oracle(const OracleRow& row, float scale) {
  const int64_t dim = row.cache.shape.head_dim;
  const float c = scale * 1.44269504088896341f;
  std::vector<float> qs;
  for (int64_t d = 0; d < dim; ++d) qs.push_back(row.q[d] * c);
  State acc = split_oracle(row, qs, 0, std::min(kAttentionSplit, row.visible));
  for (int64_t begin = kAttentionSplit; begin < row.visible; begin += kAttentionSplit) {
    const State next = split_oracle(row, qs, begin, std::min(begin + kAttentionSplit, row.visible));
    const float top = larger(acc.m, next.m);
    const float a = exp2_oracle(acc.m - top), b = exp2_oracle(next.m - top);
    acc.l = std::fma(acc.l, a, next.l * b);
    for (size_t d = 0; d < acc.o.size(); ++d) acc.o[d] = std::fma(acc.o[d], a, next.o[d] * b);
    acc.m = top;
  }
  for (float& o : acc.o) o /= acc.l;
  return acc.o;
}

template <typename Visit>
void for_each_row(const PagedCache& cache, const Step& step, Isa isa, const Visit& visit) {
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    for (int32_t t = 0; t < step.queries[i]; ++t) {
      for (int64_t head = 0; head < cache.shape.num_heads; ++head) {
        const int64_t visible = visible_positions(cache.shape.causal, step.contexts[i], step.queries[i], t);
        const size_t at = static_cast<size_t>((step.cu[i] + t) * cache.q_cols() + head * cache.shape.head_dim);
        const bool rounded = rounds(isa, cache.shape.dtype);
        visit(OracleRow{cache, step.sequences[i], head, visible, step.q.data() + at, rounded}, step.out.data() + at);
      }
    }
  }
}

class AttentionTest : public testing::TestWithParam<size_t> {
 protected:
  const AttentionCase shape_ = attention_cases()[GetParam()];
};

TEST_P(AttentionTest, AgreesWithSoftmaxInDouble) {
  for (const Isa isa : {probed_isas().back(), tested_isas().back()}) {
    const PagedCache cache = filled_cache(shape_, isa);
    Step step = whole_step(cache);
    run_plan(cache, step, isa, 1);
    const float scale = args_of(cache, step).scale;
    double worst = 0;
    for_each_row(cache, step, isa, [&](const OracleRow& row, const float* out) {
      if (row.visible > 200 && row.head > 0) return;  // long rows of one head are enough
      std::vector<double> want;
      double tolerance = 0;
      double_oracle(row, scale, &want, &tolerance);
      for (size_t d = 0; d < want.size(); ++d) {
        worst = std::max(worst, std::fabs(double{out[d]} - want[d]) / tolerance);
        ASSERT_LE(std::fabs(double{out[d]} - want[d]), tolerance)
            << shape_.name << " sequence " << row.sequence << " head " << row.head << " visible " << row.visible;
      }
    });
    EXPECT_GT(worst, 1e-4) << "the tolerance is too wide to see an error";
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
      if (number++ % 5 != 0) return;
      const std::vector<float> want = float_oracle(row, scale);
      ASSERT_EQ(compare_bits(out, want.data(), want.size() * sizeof(float)), 0)
          << shape_.name << " " << name(isa) << " sequence " << row.sequence << " head " << row.head << " visible "
          << row.visible << " got " << out[0] << " want " << want[0];
    });
  }
}

TEST_P(AttentionTest, HasTheSameBitsOnEveryIsaWithAnyNumberOfThreads) {
  std::vector<float> by_form[2];
  for (const Isa isa : tested_isas()) {
    const PagedCache cache = filled_cache(shape_, isa);
    std::vector<float>& want = by_form[rounds(isa, shape_.dtype)];
    for (const int threads : {1, 2, 3, 16}) {
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
      ASSERT_EQ(compare_bits(alone.out.data(), batch.out.data() + batch.cu[i] * cache.q_cols(),
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
      ASSERT_EQ(compare_bits(chunk.out.data(), batch.out.data() + (batch.cu[i] + done) * cache.q_cols(),
                             static_cast<size_t>(n * cache.q_cols()) * sizeof(float)),
                0)
          << shape_.name << " sequence " << i << " rows " << done << " to " << done + n;
      done += n;
    }
  }
}

TEST_P(AttentionTest, BlockSizeAndPageOrderChangeNoBit) {
  const Isa isa = tested_isas().back();
  std::vector<float> want;
  for (const int64_t block_size : {16, 32, 64, 128, 272}) {
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
    EXPECT_EQ(backend.value()->kv_page_bytes({shape_.dtype, shape_.block_size, shape_.num_kv_heads, shape_.head_dim}),
              static_cast<size_t>(cache.layer.page_stride));
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

// A later token's K and V may be infinite or NaN: rows before it do not feel it, not even through a product with zero.
TEST(Attention, ALaterTokenNeverReachesAnEarlierRow) {
  for (const Isa isa : tested_isas()) {
    const DType pages = isa == Isa::kAmx ? DType::kBF16 : DType::kF32;
    const AttentionCase shape = {"poison", 6, 2, 64, 16, pages, true, {{200, 200}}};
    PagedCache clean = filled_cache(shape, isa);
    Step want = whole_step(clean);
    run_plan(clean, want, isa, 1);
    for (const int32_t bad : {1, 63, 64, 100, 199}) {
      PagedCache cache = make_paged_cache(shape, 7);
      for (int64_t i = 0; i < cache.kv_cols(); ++i) {
        cache.k[static_cast<size_t>(bad * cache.kv_cols() + i)] = std::numeric_limits<float>::quiet_NaN();
        cache.v[static_cast<size_t>(bad * cache.kv_cols() + i)] = std::numeric_limits<float>::infinity();
      }
      kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
      Step step = whole_step(cache);
      run_plan(cache, step, isa, 1);
      ASSERT_EQ(compare_bits(step.out.data(), want.out.data(), static_cast<size_t>(bad * cache.q_cols()) * 4), 0)
          << name(isa) << " token " << bad;
      EXPECT_FALSE(std::isfinite(step.out[static_cast<size_t>(bad * cache.q_cols())]));
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
    const OracleRow row{cache, 0, 0, 700, step.q.data()};
    const std::vector<float> want = float_oracle(row, args_of(cache, step).scale);
    ASSERT_EQ(compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0) << name(isa);
    for (const float x : step.out) ASSERT_TRUE(std::isfinite(x)) << name(isa);
  }
}

TEST(ReshapeAndCache, WritesItsOwnSlotsAndNothingElse) {
  for (const AttentionCase& shape : attention_cases()) {
    for (const Isa isa : tested_isas()) {
      PagedCache cache = make_paged_cache(shape, 5);
      std::vector<char> want = cache.memory;
      const KvGeometry g = kv_geometry(cache.layer);
      const auto base = static_cast<char*>(cache.layer.pages) - cache.memory.data();
      for (size_t t = 0; t < cache.slots.size(); ++t) {
        if (t % 7 == 3) {
          cache.slots[t] = -1;
          continue;
        }
        const int64_t page = cache.slots[t] / shape.block_size, position = cache.slots[t] % shape.block_size;
        for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
          char* k = want.data() + base + page * cache.layer.page_stride + h * (g.k_bytes + g.v_bytes);
          char* v = k + g.k_bytes;
          for (int64_t d = 0; d < g.v_stride; ++d) {
            const auto put = [&](char* at, float x) {
              const uint16_t half = shape.dtype == DType::kF16 ? float_to_fp16(x) : float_to_bf16(x);
              std::memcpy(at, shape.dtype == DType::kF32 ? static_cast<const void*>(&x) : &half,
                          static_cast<size_t>(g.element));
            };
            const bool real = d < shape.head_dim;
            const size_t at =
                t * static_cast<size_t>(cache.kv_cols()) + static_cast<size_t>(h * shape.head_dim + (real ? d : 0));
            const bool pairs = isa == Isa::kAmx && pages_in_pairs(shape.dtype, shape.head_dim);
            if (real) {
              const int64_t group = position / 16 * shape.head_dim, inside = position % 16;
              const int64_t in_pairs = (group + d / 2 * 2) * 16 + 2 * inside + d % 2;
              put(k + (pairs ? in_pairs : (group + d) * 16 + inside) * g.element, cache.k[at]);
            }
            const int64_t in_pairs = (position / 2 * g.v_stride + d) * 2 + position % 2;
            put(v + (pairs ? in_pairs : position * g.v_stride + d) * g.element, real ? cache.v[at] : 0.0f);
          }
        }
      }
      kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
      ASSERT_EQ(compare_bits(cache.memory.data(), want.data(), want.size()), 0) << shape.name << " " << name(isa);
    }
  }
}

TEST(AttentionPlan, CoversEveryRowAndSplitOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    AttentionCase shape = {"plan", 6, 2, 32, 16, DType::kF16, true, {}};
    shape.num_heads = 2 * static_cast<int64_t>(1 + random() % 8);
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
        ASSERT_TRUE(item.partials != nullptr || item.split_begin == 0);
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
          const int64_t visible = visible_positions(true, s.context, s.queries, row / group);
          for (int64_t split = 0; split * kAttentionSplit < visible; ++split) {
            ASSERT_EQ(hits[i][static_cast<size_t>(row * (s.context / kAttentionSplit + 1) + split)], 1);
          }
        }
      }
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
