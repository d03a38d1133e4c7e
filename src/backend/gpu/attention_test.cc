// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU and the writes to its pages: against softmax in double, and by memcmp between all the ways to cut
// the same work. On the emulator, or on the GPU that QUIRE_TEST_DEVICE names (cuda).
#include <gtest/gtest.h>

#include "backend/gpu/test_device.h"
#include "backend/testing/attention_oracle_test.h"

namespace quire::gpu {
namespace {

using cpu::AttentionCase;
using cpu::OracleRow;
using cpu::PagedCache;
using cpu::Step;

GpuBackend& backend(int which = 0) {
  return test_device(which).ops();
}

// An emulator that looks large, with its lanes in another order.
GpuBackend& many_units() {
  static GpuBackend shared([] {
    auto device = open_emulator(emulator::EmulatorOptions{.order = 7, .workers = 8});
    QUIRE_CHECK(device.ok());
    return std::move(device).value();
  }());
  return shared;
}

uint16_t bits16(float x, DType type) {
  return type == DType::kF16 ? float_to_fp16(x) : float_to_bf16(x);
}
void round_all(std::vector<float>& x, DType type) {
  for (float& v : x) v = rounded(v, type);
}

// Floats as a tensor of `type` in device memory, and back.
class DeviceTensor {
 public:
  // `gap`: elements between rows.
  DeviceTensor(GpuBackend& gpu, const std::vector<float>& values, int64_t cols, DType type, int64_t gap = 0)
      : gpu_(gpu), cols_(cols), stride_(cols + gap), type_(type), count_(values.size()) {
    bytes_.resize(place(count_) + 16);
    for (size_t i = 0; i < count_; ++i) {
      const uint16_t half = bits16(values[i], type);
      if (type == DType::kF32) {
        std::memcpy(bytes_.data() + place(i), &values[i], 4);
      } else {
        std::memcpy(bytes_.data() + place(i), &half, 2);
      }
    }
    auto buffer = gpu.allocate(bytes_.size());
    QUIRE_CHECK(buffer.ok());
    buffer_ = std::move(buffer).value();
    gpu.device().upload(buffer_->data(), bytes_.data(), bytes_.size());
  }
  Tensor tensor() const {
    return {buffer_->data(), type_, cols_ == 0 ? 0 : static_cast<int64_t>(count_) / cols_, cols_, stride_};
  }
  std::vector<float> read() const {
    std::vector<char> bytes(bytes_.size());
    gpu_.device().download(bytes.data(), buffer_->data(), bytes.size());
    gpu_.synchronise();
    std::vector<float> out(count_);
    for (size_t i = 0; i < count_; ++i) {
      uint16_t half = 0;
      if (type_ == DType::kF32) {
        std::memcpy(&out[i], bytes.data() + place(i), 4);
        continue;
      }
      std::memcpy(&half, bytes.data() + place(i), 2);
      out[i] = type_ == DType::kF16 ? fp16_to_float(half) : bf16_to_float(half);
    }
    return out;
  }

 private:
  size_t place(size_t i) const {
    const auto cols = static_cast<size_t>(std::max<int64_t>(cols_, 1));
    return (i / cols * static_cast<size_t>(stride_) + i % cols) * static_cast<size_t>(info(type_).block_bytes);
  }

  GpuBackend& gpu_;
  int64_t cols_, stride_;
  DType type_;
  size_t count_;
  std::vector<char> bytes_;
  std::unique_ptr<Buffer> buffer_;
};

template <typename T>
std::span<const T> staged(GpuBackend& gpu, const std::vector<T>& values) {
  if (values.empty()) return {};
  return {static_cast<const T*>(gpu.stage(std::as_bytes(std::span(values)))), values.size()};
}

// The pages of a cache on a device, filled by reshape_and_cache; what is not written is NaN. `cache` keeps K and V as
// activations of `type` have them.
struct GpuCache {
  GpuCache(GpuBackend& g, const AttentionCase& shape, DType activations, uint32_t seed = 7)
      : gpu(g), type(activations), cache(cpu::make_paged_cache(shape, seed)) {
    round_all(cache.k, type);
    round_all(cache.v, type);
    layer = cache.layer;
    layer.page_stride = static_cast<int64_t>(gpu.kv_page_bytes(shape.page())) + 32;
    auto memory = gpu.allocate(static_cast<size_t>(layer.page_stride * layer.num_pages));
    QUIRE_CHECK(memory.ok());
    pages = std::move(memory).value();
    layer.pages = pages->data();
    gpu.device().fill(pages->data(), 0xff, pages->bytes());
  }
  void fill() {
    gpu.begin_step();
    const DeviceTensor k(gpu, cache.k, cache.kv_cols(), type), v(gpu, cache.v, cache.v_cols(), type);
    gpu.reshape_and_cache({k.tensor(), v.tensor(), staged(gpu, cache.slots), layer});
    gpu.synchronise();
  }
  std::vector<float> run(Step& step, int64_t gap = 0) {
    gpu.begin_step();
    round_all(step.q, type);
    const DeviceTensor q(gpu, step.q, cache.q_cols(), type, gap), out(gpu, step.out, cache.out_cols(), type, gap);
    AttentionArgs args = cpu::args_of(cache, step);
    const DeviceTensor sinks(gpu, cache.sinks, 1, DType::kF32);
    args.q = q.tensor();
    args.out = out.tensor();
    args.kv = layer;
    if (cache.shape.sinks) args.sinks = sinks.tensor().f32();
    const std::vector<float> no_bias = {0.0f};
    const DeviceTensor bias(gpu, cache.distance_bias.empty() ? no_bias : cache.distance_bias, 1, DType::kF32);
    if (cache.shape.max_distance > 0) args.distance_bias = bias.tensor().f32();
    args.cu_seqlens_q = staged(gpu, step.cu);
    args.context_lens = staged(gpu, step.contexts);
    args.block_tables = staged(gpu, step.tables);
    gpu.attention(args);
    step.out = out.read();
    return step.out;
  }

  GpuBackend& gpu;
  DType type;
  PagedCache cache;
  KvLayer layer;
  std::unique_ptr<Buffer> pages;
};

// The CPU's cases that a GPU's kernels take, and those that only a GPU has: splits of 1,024 positions seen by some rows
// of a tile, of prefill and of decode; pages of another type than the activations.
struct TypedCase {
  AttentionCase shape;
  DType type;  // of the activations
};
std::vector<TypedCase> cases() {
  std::vector<TypedCase> all;
  for (const AttentionCase& shape : cpu::attention_cases()) {
    const bool plain = shape.dtype == DType::kF32 || shape.dtype == DType::kF16;
    all.push_back({shape, plain ? shape.dtype : DType::kBF16});
  }
  const auto more = [&](AttentionCase shape, DType type) { all.push_back({std::move(shape), type}); };
  const std::vector<cpu::AttentionSequence> over = {{40, 1050}, {1, 1024}, {3, 1026}, {1, 2100}, {20, 1030}};
  more({"over_splits_bf16", 3, 1, 64, 16, DType::kBF16, true, over}, DType::kBF16);
  more({"over_splits_f32", 2, 1, 16, 16, DType::kF32, true, over}, DType::kF32);
  AttentionCase window = {"over_splits_window_f16", 2, 1, 32, 16, DType::kF16, true, over};
  window.window = 1000;
  window.sinks = true;
  more(window, DType::kF16);
  AttentionCase all_see = {"over_splits_all_see_all", 2, 1, 32, 16, DType::kBF16, false, {{3, 1100}, {30, 1025}}};
  all_see.window = 500;
  more(all_see, DType::kBF16);
  // A bias by distance, in each kernel: few rows, many rows, small and large heads.
  for (const int64_t dim : {int64_t{64}, int64_t{144}}) {
    AttentionCase biased = {"bias_by_distance_d" + std::to_string(dim), 2, 2, dim, 16, DType::kBF16, false, {}};
    biased.sequences = {{5, 5}, {90, 90}, {1, 70}, {40, 1050}};
    biased.max_distance = 33;
    more(biased, DType::kBF16);
  }
  more({"over_splits_d144_f16", 1, 1, 144, 16, DType::kF16, true, {{40, 1050}}}, DType::kF16);
  more({"over_splits_d256_bf16", 2, 1, 256, 16, DType::kBF16, true, {{1, 1030}, {20, 1027}}}, DType::kBF16);
  // MLA's few rows have launches of their own for scores and values.
  AttentionCase latent = {"over_splits_mla_bf16", 4, 1, 88, 16, DType::kBF16, true, over};
  latent.v_head_dim = 72;
  latent.v_in_k = true;
  more(latent, DType::kBF16);
  latent.name = "over_splits_mla_window_i8";
  latent.dtype = DType::kI8;
  latent.window = 1000;
  latent.sinks = true;
  more(latent, DType::kF16);
  const std::vector<cpu::AttentionSequence> few = {{1, 150}, {9, 70}};
  more({"pages_f16_of_bf16", 4, 2, 64, 16, DType::kF16, true, few}, DType::kBF16);
  more({"pages_f32_of_f16", 4, 2, 40, 16, DType::kF32, true, few}, DType::kF16);
  more({"pages_bf16_of_f32", 4, 2, 40, 16, DType::kBF16, true, few}, DType::kF32);
  more({"pages_i8_of_f16", 4, 2, 100, 16, DType::kI8, true, few}, DType::kF16);
  more({"pages_i8_of_f32", 4, 2, 64, 16, DType::kI8, true, few}, DType::kF32);
  more({"many_heads_of_one", 20, 1, 64, 16, DType::kBF16, true, {{1, 70}, {3, 70}}}, DType::kBF16);
  if (on_emulator()) return all;
  // Heads that a chip has kernels of its own for, with windows, caps and sinks, one by one and together.
  const std::vector<cpu::AttentionSequence> long_ones = {{1, 90},     {70, 300}, {1, 1500},
                                                         {200, 1300}, {3, 1030}, {1, 2300}};
  for (const int64_t heads : {3, 16, 40}) {
    AttentionCase latent = {
        "chip_latent_" + std::to_string(heads), heads, 1, 576, 16, DType::kBF16, true, long_ones, 512};
    latent.v_in_k = true;
    more(latent, DType::kBF16);
  }
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t group : {1, 3, 4}) {
      for (const int64_t size : {0, 100, 1024}) {
        for (const int kind : {0, 1, 2, 3}) {
          if (size == 0 && kind == 0) continue;
          const std::string name = "chip_d" + std::to_string(dim) + "_group" + std::to_string(group) + "_window" +
                                   std::to_string(size) + "_kind" + std::to_string(kind);
          AttentionCase c = {name, 2 * group, 2, dim, 16, DType::kBF16, true, long_ones};
          c.window = size;
          c.soft_cap = (kind & 1) != 0 ? 30.0f : 0.0f;
          c.sinks = (kind & 2) != 0;
          more(c, DType::kBF16);
        }
      }
    }
  }
  return all;
}

class GpuAttentionTest : public testing::TestWithParam<size_t> {
 protected:
  const TypedCase case_ = cases()[GetParam()];
};

TEST_P(GpuAttentionTest, AgreesWithSoftmaxInDouble) {
  GpuCache gpu(backend(), case_.shape, case_.type);
  gpu.fill();
  Step step = cpu::whole_step(gpu.cache);
  gpu.run(step);
  const float scale = cpu::args_of(gpu.cache, step).scale;
  const double unit = case_.type == DType::kF32 ? 0x1p-24 : case_.type == DType::kF16 ? 0x1p-12 : 0x1p-9;
  double worst = 0;
  int64_t number = 0;
  cpu::for_each_row(gpu.cache, step, cpu::Isa::kPortable, [&](OracleRow row, const float* out) {
    if (number++ % 7 > 1) return;  // the oracle is slow
    row.rounded = case_.type != DType::kF32;
    std::vector<double> want;
    double tolerance = 0;
    cpu::double_oracle(row, scale, &want, &tolerance);
    for (size_t d = 0; d < want.size(); ++d) {
      const double bound = tolerance + unit * std::fabs(want[d]);
      worst = std::max(worst, std::fabs(double{out[d]} - want[d]) / bound);
      ASSERT_LE(std::fabs(double{out[d]} - want[d]), bound)
          << case_.shape.name << " sequence " << row.sequence << " head " << row.head << " position " << row.position
          << " dim " << d;
    }
  });
  const double least = case_.shape.window == 1 ? -1 : 1e-4;
  EXPECT_GT(worst, least) << "the tolerance is too wide to see an error";
}

TEST_P(GpuAttentionTest, OneSequenceAloneHasTheBitsOfTheBatch) {
  GpuCache gpu(backend(), case_.shape, case_.type);
  gpu.fill();
  Step batch = cpu::whole_step(gpu.cache);
  gpu.run(batch);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    Step alone = cpu::make_step(gpu.cache, {batch.sequences[i]}, {batch.queries[i]}, {batch.contexts[i]});
    if (alone.out.empty()) continue;
    gpu.run(alone);
    ASSERT_EQ(cpu::compare_bits(alone.out.data(), batch.out.data() + batch.cu[i] * gpu.cache.out_cols(),
                                alone.out.size() * sizeof(float)),
              0)
        << case_.shape.name << " sequence " << i;
  }
}

// A single token is decode, with a threadgroup a split; a chunk of many is prefill.
TEST_P(GpuAttentionTest, ChunksAndSingleTokensHaveTheBitsOfTheWhole) {
  if (!case_.shape.causal) return;  // a later position changes earlier rows
  GpuCache gpu(backend(), case_.shape, case_.type);
  gpu.fill();
  Step batch = cpu::whole_step(gpu.cache);
  gpu.run(batch);
  std::mt19937 random(11);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const int32_t first = batch.contexts[i] - batch.queries[i];
    for (int32_t done = 0; done < batch.queries[i];) {
      const int32_t left = batch.queries[i] - done;
      const int32_t n = random() % 3 == 0 ? 1 : static_cast<int32_t>(1 + random() % static_cast<uint32_t>(left));
      Step chunk = cpu::make_step(gpu.cache, {batch.sequences[i], batch.sequences[0]}, {n, 1}, {first + done + n, 1});
      gpu.run(chunk);
      ASSERT_EQ(cpu::compare_bits(chunk.out.data(), batch.out.data() + (batch.cu[i] + done) * gpu.cache.out_cols(),
                                  static_cast<size_t>(n * gpu.cache.out_cols()) * sizeof(float)),
                0)
          << case_.shape.name << " sequence " << i << " rows " << done << " to " << done + n;
      done += n;
    }
  }
}

// Another order of lanes, and a device with more units, for which splits are cut apart that one threadgroup went
// through in turn before.
TEST_P(GpuAttentionTest, EveryFormAndOrderOfLanesHasTheSameBits) {
  GpuCache gpu(backend(), case_.shape, case_.type);
  gpu.fill();
  Step want = cpu::whole_step(gpu.cache);
  gpu.run(want);
  // Rows that do not start at whole 16 bytes are not for a chip's own kernels.
  Step apart = cpu::whole_step(gpu.cache);
  gpu.run(apart, 4);
  ASSERT_EQ(cpu::compare_bits(apart.out.data(), want.out.data(), want.out.size() * sizeof(float)), 0)
      << case_.shape.name << " with a gap between rows";
  setenv("QUIRE_ATTENTION_FIND", "map", 1);  // tokens of a threadgroup by a map, not by a search
  Step mapped = cpu::whole_step(gpu.cache);
  gpu.run(mapped, 4);
  unsetenv("QUIRE_ATTENTION_FIND");
  ASSERT_EQ(cpu::compare_bits(mapped.out.data(), want.out.data(), want.out.size() * sizeof(float)), 0)
      << case_.shape.name << " by a map";
  if (on_emulator()) {
    GpuCache other(many_units(), case_.shape, case_.type);
    other.fill();
    Step got = cpu::whole_step(other.cache);
    other.run(got);
    ASSERT_EQ(cpu::compare_bits(got.out.data(), want.out.data(), want.out.size() * sizeof(float)), 0)
        << case_.shape.name;
  }
}

TEST_P(GpuAttentionTest, BlockSizeChangesNoBit) {
  std::vector<float> want;
  for (const int64_t block_size : {8, 32}) {
    AttentionCase shape = case_.shape;
    shape.block_size = block_size;
    GpuCache gpu(backend(), shape, case_.type);
    // The same tokens whatever the pages: the random numbers before them depend on the page count.
    std::mt19937 random(21);
    for (float& x : gpu.cache.k) x = rounded(2 * cpu::random_float(random), case_.type);
    for (float& x : gpu.cache.v) x = rounded(cpu::random_float(random), case_.type);
    gpu.fill();
    Step step = cpu::whole_step(gpu.cache);
    gpu.run(step);
    if (want.empty()) want = step.out;
    ASSERT_EQ(cpu::compare_bits(step.out.data(), want.data(), want.size() * sizeof(float)), 0)
        << shape.name << " block size " << block_size;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuAttentionTest, testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) { return cases()[info.param].shape.name; });

// What a row does not see may be anything: positions after the context, and before the window, in a tile that it sees.
TEST(GpuAttention, WhatNoRowSeesNeverReachesOne) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const int32_t queries : {1, 40}) {
      AttentionCase shape = {"poison", 3, 1, 64, 16, type, true, {{queries, 400}}};
      shape.window = 75;
      GpuCache gpu(backend(), shape, type);
      gpu.fill();
      const int32_t context = 390;
      Step want = cpu::make_step(gpu.cache, {0}, {queries}, {context});
      gpu.run(want);
      for (const int32_t bad : {250, context - queries - 75, context - queries - 74, context, 399}) {
        GpuCache poisoned(backend(), shape, type);
        const auto cols = static_cast<size_t>(poisoned.cache.kv_cols());
        for (size_t i = static_cast<size_t>(bad) * cols; i < static_cast<size_t>(bad + 1) * cols; ++i) {
          poisoned.cache.k[i] = std::nanf("");
          poisoned.cache.v[i] = std::numeric_limits<float>::infinity();
        }
        poisoned.fill();
        Step step = cpu::make_step(poisoned.cache, {0}, {queries}, {context});
        poisoned.run(step);
        const bool seen = bad == context - queries - 74;
        const int same = std::memcmp(step.out.data(), want.out.data(), want.out.size() * sizeof(float));
        ASSERT_EQ(same == 0, !seen) << name(type) << " queries " << queries << " token " << bad;
      }
    }
  }
}

// The weight of a position that a row does not see is zero, and not the least value of exp2: the values of the last
// position are huge and all others zero, so that the rows before the last one must be zero.
TEST(GpuAttention, HiddenPositionsWeighNothing) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const int32_t queries : {2, 3, 40}) {
      const AttentionCase shape = {"hidden", 3, 1, 64, 16, type, true, {{queries, 400}, {queries, 400}}};
      GpuCache gpu(backend(), shape, type);
      const auto cols = static_cast<size_t>(gpu.cache.kv_cols());
      for (size_t i = 0; i < gpu.cache.v.size(); ++i) gpu.cache.v[i] = i / cols % 400 == 389 ? 1e37f : 0.0f;
      gpu.fill();
      Step step = cpu::make_step(gpu.cache, {0, 1}, {queries, queries}, {390, 390});
      gpu.run(step);
      const size_t row = step.out.size() / static_cast<size_t>(2 * queries);
      for (size_t i = 0; i < step.out.size(); ++i) {
        const bool last = i / row % static_cast<size_t>(queries) == static_cast<size_t>(queries) - 1;
        ASSERT_EQ(step.out[i] == 0.0f, !last) << name(type) << " queries " << queries << " at " << i;
      }
    }
  }
}

// More units of work than a chip has room for at once, whose last pair of tiles of 64 positions has only one tile: what
// brings tiles may fall behind what multiplies them, and no launch may wait for ever or see another tile.
TEST(GpuAttention, ManyUnitsOfOddTilesHaveTheBitsOfOneAlone) {
  const int32_t sequences = on_emulator() ? 5 : 160;
  for (const int64_t dim : {64, 128, 256}) {
    AttentionCase shape = {"odd_tiles", 4, 2, dim, 16, DType::kBF16, true, {}};
    for (int32_t i = 0; i < sequences; ++i) shape.sequences.push_back({1, 1 + 128 * (i % 4) + 7 * i % 64});
    GpuCache gpu(backend(), shape, DType::kBF16);
    gpu.fill();
    Step batch = cpu::whole_step(gpu.cache);
    gpu.run(batch);
    for (int again = 0; again < (on_emulator() ? 1 : 50); ++again) {
      Step step = cpu::whole_step(gpu.cache);
      gpu.run(step);
      ASSERT_EQ(cpu::compare_bits(step.out.data(), batch.out.data(), step.out.size() * sizeof(float)), 0);
    }
    for (const size_t i : {size_t{0}, size_t{3}, batch.sequences.size() - 1}) {
      Step alone = cpu::make_step(gpu.cache, {batch.sequences[i]}, {batch.queries[i]}, {batch.contexts[i]});
      gpu.run(alone);
      ASSERT_EQ(cpu::compare_bits(alone.out.data(), batch.out.data() + batch.cu[i] * gpu.cache.out_cols(),
                                  alone.out.size() * sizeof(float)),
                0)
          << "heads of " << dim << ", sequence " << i;
    }
  }
}

// Scores so far apart that weights reach the floor of exp2, in one tile, across tiles and across splits.
TEST(GpuAttention, HugeScoresStayFinite) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const AttentionCase shape = {"huge", 1, 1, 16, 16, type, true, {{1, 1100}}};
    GpuCache gpu(backend(), shape, type);
    for (float& x : gpu.cache.k) x *= 1e4f;
    gpu.fill();
    Step step = cpu::whole_step(gpu.cache);
    for (const float x : gpu.run(step)) ASSERT_TRUE(std::isfinite(x));
  }
}

// Pages' bytes, by hand from the layout that kernels/params/attention_cache.h tells: everything else stays as it was.
TEST(GpuReshapeAndCache, WritesItsOwnSlotsAndNothingElse) {
  for (const TypedCase& c : cases()) {
    AttentionCase shape = c.shape;
    shape.sequences = {{9, 70}, {1, 20}};
    GpuCache gpu(backend(), shape, c.type, 5);
    std::vector<uint8_t> want(gpu.pages->bytes(), 0xff);
    const int64_t element = info(shape.dtype).block_bytes, heads = shape.num_kv_heads;
    const auto row_bytes = [&](int64_t dim) { return (dim * element + 15) / 16 * 16; };
    const int64_t rows = shape.block_size * heads, sides = shape.v_in_k ? 1 : 2;
    const int64_t v_at = rows * row_bytes(shape.head_dim),
                  scales = v_at + (sides - 1) * rows * row_bytes(shape.v_dim());
    for (size_t t = 0; t < gpu.cache.slots.size(); ++t) {
      if (t % 7 == 3) {
        gpu.cache.slots[t] = -1;
        continue;
      }
      const int64_t page = gpu.cache.slots[t] / shape.block_size, offset = gpu.cache.slots[t] % shape.block_size;
      for (int64_t unit = 0; unit < sides * heads; ++unit) {
        const bool values = unit >= heads;
        const int64_t dim = values ? shape.v_dim() : shape.head_dim, row = offset * heads + unit % heads;
        const auto& from = values ? gpu.cache.v : gpu.cache.k;
        const float* x = from.data() + (static_cast<int64_t>(t) * heads + unit % heads) * dim;
        const float scale = cpu::scale_oracle(x, dim, shape.dtype);
        uint8_t* base = want.data() + page * gpu.layer.page_stride;
        uint8_t* to = base + (values ? v_at : 0) + row * row_bytes(dim);
        if (element == 2) std::memset(to, 0, static_cast<size_t>(row_bytes(dim)));  // the padding is read
        for (int64_t d = 0; d < dim; ++d) {
          const uint32_t bits = cpu::stored_bits(x[d], shape.dtype, scale);
          std::memcpy(to + d * element, &bits, static_cast<size_t>(element));
        }
        if (shape.dtype == DType::kI8) std::memcpy(base + scales + ((values ? rows : 0) + row) * 4, &scale, 4);
      }
    }
    gpu.fill();
    std::vector<uint8_t> got(want.size());
    gpu.gpu.device().download(got.data(), gpu.pages->data(), got.size());
    gpu.gpu.synchronise();
    ASSERT_TRUE(got == want) << shape.name;
  }
}

// Every code and the middles between codes, the largest numbers, infinities and NaN; scales of every kind.
TEST(GpuReshapeAndCache, RoundsToTheTypesOfAByteAsTheContractSays) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    std::vector<float> values;
    for (int code = 0; code < 256 && dtype != DType::kI8; ++code) {
      const float x = cpu::meaning(static_cast<uint32_t>(code), dtype, 1);
      const float next = cpu::meaning(static_cast<uint32_t>(code % 128 == 127 ? code : code + 1), dtype, 1);
      const float middle = x + (next - x) / 2;
      for (const float y : {x, middle, std::nextafter(middle, kInf), std::nextafter(middle, -kInf)})
        values.push_back(y);
    }
    for (const float top : {0.0f, 1.0f, 127.0f, 1e-35f, 0x1p-100f, 3e38f, kInf, std::nanf("")}) {
      for (int i = 0; i < 128; ++i)
        values.push_back(i == 77 ? top : (std::isfinite(top) ? top : 1.0f) * (i - 64) / 128);
    }
    const auto tokens = static_cast<int32_t>(values.size() / 128);
    GpuCache gpu(backend(), {"bytes", 1, 1, 128, 16, dtype, true, {{tokens, tokens}}}, DType::kF32);
    gpu.cache.k = gpu.cache.v = values;
    gpu.fill();
    std::vector<uint8_t> got(gpu.pages->bytes());
    gpu.gpu.device().download(got.data(), gpu.pages->data(), got.size());
    gpu.gpu.synchronise();
    for (size_t t = 0; t < gpu.cache.slots.size(); ++t) {
      const int64_t page = gpu.cache.slots[t] / 16, offset = gpu.cache.slots[t] % 16;
      const uint8_t* base = got.data() + page * gpu.layer.page_stride;
      const float scale = cpu::scale_oracle(values.data() + t * 128, 128, dtype);
      float stored = scale;
      if (dtype == DType::kI8) std::memcpy(&stored, base + 2 * 16 * 128 + offset * 4, 4);
      ASSERT_TRUE(stored == scale || (std::isnan(stored) && std::isnan(scale))) << stored << " want " << scale;
      for (size_t d = 0; d < 128; ++d) {
        const float x = values[t * 128 + d];
        ASSERT_EQ(base[offset * 128 + static_cast<int64_t>(d)], cpu::stored_bits(x, dtype, scale))
            << name(dtype) << " of " << x;
      }
    }
  }
}

struct QkvCase {
  DType type, pages;
  int64_t head_dim, rot_dim;
  bool interleaved, normed;
  int32_t tokens = 9;
};

// Norm, rotation and the write to pages one by one, and joined: the same bytes in q and in the pages.
TEST(GpuQkvToCache, HasTheBitsOfTheSingleOps) {
  const QkvCase qkv_cases[] = {
      {DType::kBF16, DType::kBF16, 128, 128, false, true},
      {DType::kF16, DType::kI8, 64, 32, true, true},
      {DType::kF32, DType::kF16, 80, 80, false, false},
      {DType::kBF16, DType::kF8E4M3, 256, 64, false, true},
      {DType::kF16, DType::kF16, 20, 0, false, true},
      // Many tokens: a simdgroup takes several heads.
      {DType::kBF16, DType::kBF16, 64, 64, false, true, 260},
      {DType::kF16, DType::kI8, 32, 16, true, false, 257},
      {DType::kBF16, DType::kBF16, 128, 128, false, true, 259},
      {DType::kF16, DType::kI8, 128, 128, false, false, 256},
      {DType::kBF16, DType::kF8E4M3, 256, 256, false, true, 258},
  };
  constexpr int64_t kHeads = 12, kKvHeads = 2;
  for (const QkvCase& c : qkv_cases) {
    const int32_t tokens = c.tokens;
    const AttentionCase shape = {"qkv", kHeads, kKvHeads, c.head_dim, 16, c.pages, true, {{tokens, tokens}}};
    std::mt19937 random(3);
    std::vector<float> norms(static_cast<size_t>(2 * c.head_dim)), table(static_cast<size_t>(40 * c.rot_dim) + 1);
    for (float& x : norms) x = 1 + cpu::random_float(random) / 2;
    for (float& x : table) x = cpu::random_float(random);
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<int32_t>((3 + 7 * i) % 20));
    std::vector<uint8_t> got[2];
    for (const bool joined : {false, true}) {
      TestDevice& device = test_device();
      GpuBackend& ops = device.ops();
      GpuCache gpu(ops, shape, c.type);
      gpu.cache.slots[4] = -1;
      ops.begin_step();
      const Tensor qkv = device.put(HostMatrix(tokens, (kHeads + 2 * kKvHeads) * c.head_dim, c.type, 8));
      const Tensor q = qkv.columns(0, kHeads * c.head_dim), k = qkv.columns(q.cols, kKvHeads * c.head_dim);
      const Tensor v = qkv.columns(q.cols + k.cols, k.cols);
      QkvToCacheArgs args{q,       k,       v,  kHeads, nullptr, nullptr, 1e-5f, c.rot_dim, c.interleaved,
                          nullptr, nullptr, {}, {},     {}};
      const float* placed_norms = device.put(norms);
      if (c.normed) {
        args.q_norm = placed_norms;
        args.k_norm = placed_norms + c.head_dim;
      }
      args.cos_table = device.put(table);
      args.sin_table = args.cos_table + 20 * c.rot_dim / 2;
      args.positions = staged(ops, positions);
      args.slot_mapping = staged(ops, gpu.cache.slots);
      args.kv = gpu.layer;
      ASSERT_TRUE(ops.joins_qkv(args));
      if (joined) {
        ops.qkv_to_cache(args);
      } else {
        for (const bool keys : {false, true}) {
          const Tensor x = keys ? k : q;
          if (c.normed) ops.rms_norm({x, keys ? args.k_norm : args.q_norm, c.head_dim, args.eps, x});
          if (c.rot_dim > 0) {
            ops.rope({x, c.head_dim, c.rot_dim, c.interleaved, args.cos_table, args.sin_table, args.positions});
          }
        }
        ops.reshape_and_cache({k, v, args.slot_mapping, args.kv});
      }
      got[joined] = device.get(gpu.pages->data(), gpu.pages->bytes());
      const std::vector<uint8_t> queries = device.rows_of(q, false);
      got[joined].insert(got[joined].end(), queries.begin(), queries.end());
      device.clear();
    }
    ASSERT_TRUE(got[0] == got[1]) << name(c.type) << " " << name(c.pages) << " " << c.head_dim;
  }
}

struct MlaCase {
  DType type, pages;
  int64_t rank, rot_dim, nope;
  bool interleaved;
};

// The same for MLA: the latent vector, its key and the ends of queries.
TEST(GpuMlaToCache, HasTheBitsOfTheSingleOps) {
  const MlaCase mla_cases[] = {
      {DType::kBF16, DType::kBF16, 512, 64, 128, true}, {DType::kF16, DType::kI8, 256, 32, 24, false},
      {DType::kF32, DType::kF16, 72, 8, 16, true},      {DType::kBF16, DType::kF8E4M3, 100, 20, 7, false},
      {DType::kF16, DType::kF32, 40, 2, 0, true},       {DType::kF32, DType::kF32, 512, 64, 128, true},
  };
  constexpr int64_t kTokens = 60, kHeads = 3;
  for (const MlaCase& c : mla_cases) {
    const int64_t head = c.nope + c.rot_dim, dim = c.rank + c.rot_dim;
    AttentionCase shape = {"mla", kHeads, 1, dim, 16, c.pages, true, {{kTokens, kTokens}}};
    shape.v_head_dim = c.rank;
    shape.v_in_k = true;
    std::mt19937 random(3);
    std::vector<float> norm(static_cast<size_t>(c.rank)), table(static_cast<size_t>(40 * c.rot_dim));
    for (float& x : norm) x = 1 + cpu::random_float(random) / 2;
    for (float& x : table) x = cpu::random_float(random);
    std::vector<int32_t> positions(kTokens);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * 7 % 20);
    std::vector<uint8_t> got[2];
    for (const bool joined : {false, true}) {
      TestDevice& device = test_device();
      GpuBackend& ops = device.ops();
      GpuCache gpu(ops, shape, c.type);
      gpu.cache.slots[4] = -1;
      ops.begin_step();
      MlaToCacheArgs args;
      args.q = device.put(HostMatrix(kTokens, kHeads * head, c.type, 8));
      args.latent = device.put(HostMatrix(kTokens, dim, c.type, 9));
      args.q_latent = device.room(kTokens, kHeads * dim, c.type);
      args.num_heads = kHeads;
      args.norm = device.put(norm);
      args.eps = 1e-5f;
      args.rot_dim = c.rot_dim;
      args.interleaved = c.interleaved;
      args.cos_table = device.put(table);
      args.sin_table = args.cos_table + 20 * c.rot_dim / 2;
      args.positions = staged(ops, positions);
      args.slot_mapping = staged(ops, gpu.cache.slots);
      args.kv = gpu.layer;
      ASSERT_TRUE(ops.joins_mla(args));
      if (joined) {
        ops.mla_to_cache(args);
      } else {
        const Tensor latent = args.latent.columns(0, c.rank);
        ops.rms_norm({latent, args.norm, c.rank, args.eps, latent});
        ops.rope({args.latent, dim, c.rot_dim, c.interleaved, args.cos_table, args.sin_table, args.positions, c.rank});
        ops.rope({args.q, head, c.rot_dim, c.interleaved, args.cos_table, args.sin_table, args.positions, c.nope,
                  args.q_latent, dim});
        ops.reshape_and_cache({args.latent, {}, args.slot_mapping, args.kv});
      }
      got[joined] = device.get(gpu.pages->data(), gpu.pages->bytes());
      const std::vector<uint8_t> queries = device.rows_of(args.q_latent);
      got[joined].insert(got[joined].end(), queries.begin(), queries.end());
      device.clear();
    }
    ASSERT_TRUE(got[0] == got[1]) << name(c.type) << " " << name(c.pages) << " " << c.rank;
  }
}

TEST(GpuKvPageBytes, CountsEveryKindOfPage) {
  const auto bytes = [&](const KvPageShape& shape) { return backend().kv_page_bytes(shape); };
  EXPECT_EQ(bytes({DType::kF16, 16, 8, 128}), 16u * 8 * 2 * 128 * 2);
  EXPECT_EQ(bytes({DType::kF32, 544, 2, 256}), 544u * 2 * 2 * 256 * 4);
  EXPECT_EQ(bytes({DType::kBF16, 16, 4, 192, 128}), 16u * 4 * (192 + 128) * 2);
  EXPECT_EQ(bytes({DType::kBF16, 32, 1, 576, 512, true}), 32u * 576 * 2);  // MLA: the latent alone
  EXPECT_EQ(bytes({DType::kF16, 8, 1, 40, 0}), 8u * (40 + 40) * 2);
  EXPECT_EQ(bytes({DType::kF16, 8, 1, 42, 0}), 8u * (48 + 48) * 2);  // rows of whole 16 bytes
  EXPECT_EQ(bytes({DType::kF8E4M3, 16, 8, 128}), 16u * 8 * 2 * 128);
  EXPECT_EQ(bytes({DType::kI8, 16, 8, 128}), 16u * 8 * 2 * (128 + 4));
  EXPECT_EQ(bytes({DType::kI8, 32, 1, 576, 512, true}), 32u * (576 + 4));
}

}  // namespace
}  // namespace quire::gpu
