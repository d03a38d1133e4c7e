// SPDX-License-Identifier: Apache-2.0
// Shared by the attention tests: steps over a paged cache, and two slow oracles: the contract of ops/attention.h in
// scalar floats, and softmax attention in double.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/simd_probe.h"
#include "backend/testing/attention_cases.h"
#include "base/half.h"

namespace quire::cpu {

// The levels that have attention of their own.
inline std::vector<Isa> tested_isas() {
  std::vector<Isa> isas = probed_isas();
  const std::vector<Isa> available = available_isas();
  if (std::find(available.begin(), available.end(), Isa::kAmx) != available.end()) isas.push_back(Isa::kAmx);
  return isas;
}
// Whether a level rounds q, K, V and weights to bf16.
inline bool rounds(Isa isa, DType pages) {
  return isa == Isa::kAmx && pages_for_tiles(pages);
}

// memcmp that takes empty ranges, whose pointers may be null.
inline int compare_bits(const void* a, const void* b, size_t bytes) {
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

// q depends on (sequence, position) alone, so that any division of the same sequence has the same queries.
inline void fill_query(const PagedCache& cache, int32_t sequence, int32_t position, float* q) {
  std::mt19937 random(static_cast<uint32_t>(sequence * 1000003 + position));
  for (int64_t i = 0; i < cache.q_cols(); ++i) q[i] = 3 * random_float(random);
}

inline Step make_step(const PagedCache& cache, std::vector<int32_t> sequences, std::vector<int32_t> queries,
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
    // Pages before a window may be anyone's by now: a kernel must not even look.
    if (cache.shape.window == 0 || s.queries[i] == 0) continue;
    const int64_t first = s.contexts[i] - s.queries[i] - cache.shape.window + 1;
    for (int64_t b = 0; (b + 1) * cache.shape.block_size <= first; ++b) {
      s.tables[i * static_cast<size_t>(cache.max_blocks) + static_cast<size_t>(b)] = -12345678;
    }
  }
  s.out.assign(static_cast<size_t>(s.cu.back() * cache.out_cols()), 12345.0f);
  return s;
}

inline Step whole_step(const PagedCache& cache) {
  std::vector<int32_t> sequences, queries, contexts;
  for (size_t i = 0; i < cache.shape.sequences.size(); ++i) {
    sequences.push_back(static_cast<int32_t>(i));
    queries.push_back(cache.shape.sequences[i].queries);
    contexts.push_back(cache.shape.sequences[i].context);
  }
  return make_step(cache, sequences, queries, contexts);
}

inline AttentionArgs args_of(const PagedCache& cache, Step& step) {
  AttentionArgs args;
  const int64_t tokens = step.cu.back();
  args.q = {step.q.data(), DType::kF32, tokens, cache.q_cols(), cache.q_cols()};
  args.out = {step.out.data(), DType::kF32, tokens, cache.out_cols(), cache.out_cols()};
  args.kv = cache.layer;
  args.num_heads = cache.shape.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(cache.shape.head_dim));
  args.causal = cache.shape.causal;
  args.window = cache.shape.window;
  args.soft_cap = cache.shape.soft_cap;
  args.sinks = cache.shape.sinks ? cache.sinks.data() : nullptr;
  args.distance_bias = cache.distance_bias.empty() ? nullptr : cache.distance_bias.data();
  args.max_distance = cache.shape.max_distance;
  args.cu_seqlens_q = step.cu;
  args.context_lens = step.contexts;
  args.block_tables = step.tables;
  args.max_blocks = cache.max_blocks;
  return args;
}

inline ReshapeAndCacheArgs cache_args(PagedCache& cache) {
  const auto tokens = static_cast<int64_t>(cache.slots.size());
  return {{cache.k.data(), DType::kF32, tokens, cache.kv_cols(), cache.kv_cols()},
          {cache.shape.v_in_k ? nullptr : cache.v.data(), DType::kF32, tokens, cache.v_cols(), cache.v_cols()},
          cache.slots,
          cache.layer};
}

inline PagedCache filled_cache(const AttentionCase& shape, Isa isa, uint32_t seed = 7) {
  PagedCache cache = make_paged_cache(shape, seed);
  kernels(isa).reshape_and_cache(cache_args(cache), 0, static_cast<int64_t>(cache.slots.size()));
  return cache;
}

// The plan's items in a shuffled order, as threads might take them.
inline void run_plan(const PagedCache& cache, Step& step, Isa isa, int threads) {
  const AttentionArgs args = args_of(cache, step);
  AttentionPlan plan;
  plan.build(args, threads, pages_for_tiles(args.kv.dtype) ? kernels(isa).attention.most_rows : kAttentionRows);
  std::vector<AttentionItem> items(plan.items().begin(), plan.items().end());
  std::shuffle(items.begin(), items.end(), std::mt19937(static_cast<uint32_t>(threads)));
  std::vector<float> scratch(
      static_cast<size_t>(attention_scratch_floats(cache.shape.head_dim, cache.shape.v_dim())) + 16,
      std::numeric_limits<float>::quiet_NaN());
  float* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
  for (const AttentionItem& item : items) kernels(isa).attention.run(args, item, aligned);
  for (const AttentionMerge& merge : plan.merges()) kernels(isa).attention.merge(args, merge);
}

// What pages hold, by the contract: the scale of one head of one token (1 where pages have none), the bits of an
// element, and what those stand for.
inline float scale_oracle(const float* x, int64_t dim, DType dtype) {
  if (dtype != DType::kI8) return 1;
  float amax = 0;
  for (int64_t d = 0; d < dim; ++d) {
    if (!std::isfinite(x[d])) return std::numeric_limits<float>::quiet_NaN();
    amax = std::max(amax, std::fabs(x[d]));
  }
  return amax < 0x1p-100f ? 0 : amax / 127;
}
inline uint32_t stored_bits(float x, DType dtype, float scale) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<uint32_t>(x);
    case DType::kF16:
      return float_to_fp16(x);
    case DType::kBF16:
      return float_to_bf16(x);
    case DType::kF8E4M3:
      return float_to_fp8_e4m3(x);
    case DType::kF8E5M2:
      return float_to_fp8_e5m2(x);
    default:
      return scale > 0 ? static_cast<uint32_t>(static_cast<int32_t>(std::nearbyint(x / scale))) & 0xff : 0;
  }
}
inline float meaning(uint32_t bits, DType dtype, float scale) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<float>(bits);
    case DType::kF16:
      return fp16_to_float(static_cast<uint16_t>(bits));
    case DType::kBF16:
      return bf16_to_float(static_cast<uint16_t>(bits));
    case DType::kF8E4M3:
      return fp8_e4m3_to_float(static_cast<uint8_t>(bits));
    case DType::kF8E5M2:
      return fp8_e5m2_to_float(static_cast<uint8_t>(bits));
    default:
      return static_cast<float>(static_cast<int8_t>(bits)) * scale;
  }
}
// What attention sees of `x`, heads of `dim` elements: each value is a code times a scale, which is 1 but in I8 pages.
struct StoredValues {
  StoredValues(const std::vector<float>& x, int64_t dim, DType dtype)
      : values(x.size()), codes(x.size()), scales(x.size()) {
    for (size_t at = 0; at < x.size(); at += static_cast<size_t>(dim)) {
      const float scale = scale_oracle(x.data() + at, dim, dtype);
      for (size_t i = at; i < at + static_cast<size_t>(dim); ++i) {
        const uint32_t bits = stored_bits(x[i], dtype, scale);
        values[i] = meaning(bits, dtype, scale);
        codes[i] = meaning(bits, dtype, 1);
        scales[i] = scale;
      }
    }
  }
  std::vector<float> values, codes, scales;
};

// K and V as attention sees them.
struct StoredCache {
  explicit StoredCache(const PagedCache& c)
      : cache(c), k(c.k, c.shape.head_dim, c.shape.dtype), v(c.v, c.shape.v_dim(), c.shape.dtype) {}
  const PagedCache& cache;
  StoredValues k, v;
};

// One row of the oracles: what they need to know.
struct OracleRow {
  const StoredCache& stored;
  int32_t sequence;
  int64_t head;
  int64_t position;  // of the query
  int64_t context;
  const float* q;
  bool rounded = false;

  const AttentionCase& shape() const { return stored.cache.shape; }
  bool sees(int64_t j) const {
    if (shape().causal ? j > position : j >= context) return false;
    return shape().window == 0 || std::abs(position - j) < shape().window;
  }
  const float* k(int64_t j) const { return &stored.k.values[k_at(j, 0)]; }
  const float* v(int64_t j) const { return &v_from().values[v_at(j, 0)]; }
  float k_code(int64_t j, int64_t d) const { return stored.k.codes[k_at(j, d)]; }
  float v_code(int64_t j, int64_t d) const { return v_from().codes[v_at(j, d)]; }
  float k_scale(int64_t j) const { return stored.k.scales[k_at(j, 0)]; }
  float v_scale(int64_t j) const { return v_from().scales[v_at(j, 0)]; }
  float sink() const { return stored.cache.sinks[static_cast<size_t>(head)]; }
  float bias(int64_t j) const {
    const int64_t most = shape().max_distance;
    const int64_t distance = std::clamp(j - position, -most, most);
    return most == 0 ? 0.0f : stored.cache.distance_bias[static_cast<size_t>(head * (2 * most + 1) + distance + most)];
  }
  const StoredValues& v_from() const { return shape().v_in_k ? stored.k : stored.v; }
  size_t k_at(int64_t j, int64_t d) const { return at(j, stored.cache.kv_cols(), shape().head_dim, d); }
  size_t v_at(int64_t j, int64_t d) const {
    return shape().v_in_k ? k_at(j, d) : at(j, stored.cache.v_cols(), shape().v_dim(), d);
  }
  size_t at(int64_t j, int64_t cols, int64_t dim, int64_t d) const {
    const int64_t kv_head = head / (shape().num_heads / shape().num_kv_heads);
    return static_cast<size_t>((stored.cache.first[static_cast<size_t>(sequence)] + j) * cols + kv_head * dim + d);
  }
};

// Softmax attention in double over all that the row sees at once, and a bound of what float arithmetic may lose.
inline void double_oracle(const OracleRow& row, float scale, std::vector<double>* out, double* tolerance) {
  const AttentionCase& shape = row.shape();
  const int64_t dim = shape.head_dim;
  const auto cap = double{shape.soft_cap};
  std::vector<int64_t> seen;
  std::vector<double> s;
  double top = shape.sinks ? double{row.sink()} : -1e300, widest = 0, largest_v = 0;
  for (int64_t j = 0; j < row.context; ++j) {
    if (!row.sees(j)) continue;
    double dot = 0, size = 0;
    const float *k = row.k(j), *v = row.v(j);
    for (int64_t d = 0; d < dim; ++d) {
      const double product = double{row.q[d]} * double{k[d]};
      dot += product;
      size += std::fabs(product);
    }
    for (int64_t d = 0; d < shape.v_dim(); ++d) largest_v = std::max(largest_v, std::fabs(double{v[d]}));
    dot *= double{scale};
    if (cap > 0) dot = cap * std::tanh(dot / cap);
    dot += double{row.bias(j)};
    size += std::fabs(double{row.bias(j)}) / double{scale};
    seen.push_back(j);
    s.push_back(dot);
    top = std::max(top, s.back());
    widest = std::max(widest, size * double{scale});
  }
  double sum = shape.sinks ? std::exp(double{row.sink()} - top) : 0;
  out->assign(static_cast<size_t>(shape.v_dim()), 0.0);
  double* sums = out->data();
  for (size_t i = 0; i < seen.size(); ++i) {
    const double p = std::exp(s[i] - top);
    sum += p;
    const float* v = row.v(seen[i]);
    for (int64_t d = 0; d < shape.v_dim(); ++d) sums[d] += p * double{v[d]};
  }
  for (double& x : *out) x /= sum;
  // A chain of n roundings loses at most n eps times the sum of magnitudes: scores over head_dim; o and l over the
  // positions; a weight's relative error is its score's absolute one, and some ulps of exp2. A soft cap never widens
  // an error, and adds a few ulps of its own.
  const double eps = 0x1p-24;
  // Where everything is rounded to bf16 first: half a unit of 2^-8 for q, K, V and weights each.
  const double rounding = row.rounded ? 0x1p-9 : 0;
  const double capped = 8 * cap * eps;
  const double score_error = (static_cast<double>(dim + 4) * eps + 2.1 * rounding) * widest + capped;
  *tolerance = largest_v * (4 * score_error + (static_cast<double>(seen.size()) + 20) * eps + 2.1 * rounding);
}

// The contract of ops/attention.h in scalar floats.
struct State {
  float m, l;
  std::vector<float> o;
};
inline float probe(ProbeOp op, float x) {
  float out;
  simd_probe(Isa::kPortable).map(op, &x, &x, &x, &out, 1);
  return out;
}
inline float exp2_oracle(float x) {
  return probe(ProbeOp::kExp2Clamped, x);
}
constexpr float kL = 1.44269504088896341f;
inline float larger(float a, float b) {
  return a > b ? a : b;
}

inline float flush(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
inline float rounded(float x) {
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

inline float score_oracle(const OracleRow& row, const std::vector<float>& qs, int64_t j) {
  const int64_t dim = row.shape().head_dim;
  float s = 0;
  const auto q = [&](int64_t d) { return qs[static_cast<size_t>(d)]; };
  const float* k = row.k(j);
  for (int64_t d = 0; d < dim && !row.rounded; ++d) s = std::fma(q(d), k[d], s);
  for (int64_t d = 0; d < dim && row.rounded; d += 32) {
    const auto q_step = [&](int64_t i) { return rounded(q(d + i)); };
    s = add_step(s, dim - d, q_step, [&](int64_t i) { return rounded(row.k_code(j, d + i)); });
  }
  if (row.rounded) s *= row.k_scale(j);
  if (row.shape().soft_cap > 0) s = (row.shape().soft_cap * kL) * probe(ProbeOp::kTanh, s);
  if (row.shape().max_distance > 0) s = std::fma(row.bias(j), kL, s);
  return s;
}

// One split; without a position that the row sees, its m stays -inf.
inline State split_oracle(const OracleRow& row, const std::vector<float>& qs, int64_t begin) {
  const int64_t dim = row.shape().v_dim();
  State st{-std::numeric_limits<float>::infinity(), 0, std::vector<float>(static_cast<size_t>(dim), 0.0f)};
  float lanes[16] = {};
  for (int64_t tile = begin; tile < begin + kAttentionSplit; tile += kAttentionTile) {
    float p[kAttentionTile] = {}, sums[16] = {}, top = st.m;
    const float* v[kAttentionTile] = {};  // null: not seen
    bool any = false;
    const auto sees = [&](int64_t j) { return v[j] != nullptr; };
    for (int64_t j = 0; j < kAttentionTile; ++j) {
      if (!row.sees(tile + j)) continue;
      v[j] = row.v(tile + j);
      any = true;
      p[j] = score_oracle(row, qs, tile + j);
      top = larger(p[j], top);
    }
    if (!any) continue;
    const float a = exp2_oracle(st.m - top);
    for (int64_t j = 0; j < kAttentionTile; ++j) {
      if (!sees(j)) continue;
      p[j] = exp2_oracle(p[j] - top);
      sums[j % 16] += p[j];
    }
    for (int i = 0; i < 16; ++i) lanes[i] = std::fma(lanes[i], a, sums[i]);
    for (int64_t d = 0; d < dim; ++d) {
      float& o = st.o[static_cast<size_t>(d)];
      if (row.rounded) {
        float sum = 0;
        for (int64_t j = 0; j < kAttentionTile; j += 32) {
          const auto weight = [&](int64_t i) {
            return sees(j + i) ? rounded(p[j + i] * row.v_scale(tile + j + i)) : 0.0f;
          };
          const auto value = [&](int64_t i) { return sees(j + i) ? rounded(row.v_code(tile + j + i, d)) : 0.0f; };
          sum = add_step(sum, 32, weight, value);
        }
        o = std::fma(o, a, sum);
        continue;
      }
      o *= a;
      for (int64_t j = 0; j < kAttentionTile; ++j) {
        if (sees(j)) o = std::fma(p[j], v[j][d], o);
      }
    }
    st.m = top;
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  st.l = lanes[0];
  return st;
}

inline std::vector<float> float_oracle(const OracleRow& row, float scale) {
  const float c = row.shape().soft_cap > 0 ? scale / row.shape().soft_cap : scale * kL;
  std::vector<float> qs;
  for (int64_t d = 0; d < row.shape().head_dim; ++d) qs.push_back(row.q[d] * c);
  std::optional<State> acc;
  for (int64_t begin = 0; begin < row.context; begin += kAttentionSplit) {
    bool any = false;
    for (int64_t j = begin; j < begin + kAttentionSplit; ++j) any = any || row.sees(j);
    if (!any) continue;
    const State next = split_oracle(row, qs, begin);
    if (!acc) {
      acc = next;
      continue;
    }
    const float top = larger(acc->m, next.m);
    const float a = exp2_oracle(acc->m - top), b = exp2_oracle(next.m - top);
    acc->l = std::fma(acc->l, a, next.l * b);
    for (size_t d = 0; d < acc->o.size(); ++d) acc->o[d] = std::fma(acc->o[d], a, next.o[d] * b);
    acc->m = top;
  }
  if (row.shape().sinks) {
    const float sink = row.sink() * kL;
    const float top = larger(acc->m, sink);
    const float a = exp2_oracle(acc->m - top);
    acc->l = std::fma(acc->l, a, exp2_oracle(sink - top));
    for (float& o : acc->o) o *= a;
  }
  for (float& o : acc->o) o /= acc->l;
  return acc->o;
}

template <typename Visit>
void for_each_row(const PagedCache& cache, const Step& step, Isa isa, const Visit& visit) {
  const StoredCache stored(cache);
  const AttentionCase& shape = cache.shape;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    for (int32_t t = 0; t < step.queries[i]; ++t) {
      for (int64_t head = 0; head < shape.num_heads; ++head) {
        const int64_t token = step.cu[i] + t;
        const float* q = step.q.data() + token * cache.q_cols() + head * shape.head_dim;
        const float* out = step.out.data() + token * cache.out_cols() + head * shape.v_dim();
        const int64_t position = step.contexts[i] - step.queries[i] + t;
        visit(OracleRow{stored, step.sequences[i], head, position, step.contexts[i], q, rounds(isa, shape.dtype)}, out);
      }
    }
  }
}

}  // namespace quire::cpu
