// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU and the writes to its pages: against softmax in double, and by memcmp between all the ways to cut
// the same work. On the emulator, or on the GPU that QUIRE_TEST_DEVICE names (cuda).
#include <gtest/gtest.h>

#include "backend/cpu/attention_oracle_test.h"
#include "backend/gpu/test_device.h"
#include "kernels/params/cache.h"

namespace quire::gpu {
namespace {

using cpu::AttentionCase;
using cpu::OracleRow;
using cpu::PagedCache;
using cpu::Step;

GpuBackend& backend(int which = 0) {
  return test_device(which).ops();
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
  DeviceTensor(GpuBackend& gpu, const std::vector<float>& values, int64_t cols, DType type)
      : gpu_(gpu), cols_(cols), type_(type), count_(values.size()) {
    bytes_.resize(std::max<size_t>(count_, 1) * static_cast<size_t>(info(type).block_bytes));
    for (size_t i = 0; i < count_; ++i) {
      const uint16_t half = bits16(values[i], type);
      if (type == DType::kF32) {
        std::memcpy(bytes_.data() + 4 * i, &values[i], 4);
      } else {
        std::memcpy(bytes_.data() + 2 * i, &half, 2);
      }
    }
    auto buffer = gpu.allocate(bytes_.size());
    QUIRE_CHECK(buffer.ok());
    buffer_ = std::move(buffer).value();
    gpu.device().upload(buffer_->data(), bytes_.data(), bytes_.size());
  }
  Tensor tensor() const {
    return {buffer_->data(), type_, cols_ == 0 ? 0 : static_cast<int64_t>(count_) / cols_, cols_, cols_};
  }
  std::vector<float> read() const {
    std::vector<char> bytes(bytes_.size());
    gpu_.device().download(bytes.data(), buffer_->data(), bytes.size());
    gpu_.synchronise();
    std::vector<float> out(count_);
    for (size_t i = 0; i < count_; ++i) {
      uint16_t half = 0;
      if (type_ == DType::kF32) {
        std::memcpy(&out[i], bytes.data() + 4 * i, 4);
        continue;
      }
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      out[i] = type_ == DType::kF16 ? fp16_to_float(half) : bf16_to_float(half);
    }
    return out;
  }

 private:
  GpuBackend& gpu_;
  int64_t cols_;
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
  std::vector<float> run(Step& step) {
    gpu.begin_step();
    round_all(step.q, type);
    const DeviceTensor q(gpu, step.q, cache.q_cols(), type), out(gpu, step.out, cache.out_cols(), type);
    AttentionArgs args = cpu::args_of(cache, step);
    const DeviceTensor sinks(gpu, cache.sinks, 1, DType::kF32), slopes(gpu, cache.slopes, 1, DType::kF32);
    args.q = q.tensor();
    args.out = out.tensor();
    args.kv = layer;
    if (cache.shape.sinks) args.sinks = sinks.tensor().f32();
    if (cache.shape.slopes) args.slopes = slopes.tensor().f32();
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
struct Case {
  AttentionCase shape;
  DType type;  // of the activations
};
std::vector<Case> cases() {
  std::vector<Case> all;
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
  const std::vector<cpu::AttentionSequence> few = {{1, 150}, {9, 70}};
  more({"pages_f16_of_bf16", 4, 2, 64, 16, DType::kF16, true, few}, DType::kBF16);
  more({"pages_f32_of_f16", 4, 2, 40, 16, DType::kF32, true, few}, DType::kF16);
  more({"pages_bf16_of_f32", 4, 2, 40, 16, DType::kBF16, true, few}, DType::kF32);
  more({"pages_i8_of_f16", 4, 2, 100, 16, DType::kI8, true, few}, DType::kF16);
  more({"pages_i8_of_f32", 4, 2, 64, 16, DType::kI8, true, few}, DType::kF32);
  more({"many_heads_of_one", 20, 1, 64, 16, DType::kBF16, true, {{1, 70}, {3, 70}}}, DType::kBF16);
  return all;
}

class GpuAttentionTest : public testing::TestWithParam<size_t> {
 protected:
  const Case case_ = cases()[GetParam()];
};

TEST_P(GpuAttentionTest, AgreesWithSoftmaxInDouble) {
  GpuCache gpu(backend(), case_.shape, case_.type);
  gpu.fill();
  Step step = cpu::whole_step(gpu.cache);
  gpu.run(step);
  const float scale = cpu::args_of(gpu.cache, step).scale;
  const double unit = case_.type == DType::kF32 ? 0x1p-24 : case_.type == DType::kF16 ? 0x1p-12 : 0x1p-9;
  double worst = 0;
  cpu::for_each_row(gpu.cache, step, cpu::Isa::kPortable, [&](OracleRow row, const float* out) {
    if (row.position > 200 && row.head > 0) return;  // long rows of one head are enough
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

INSTANTIATE_TEST_SUITE_P(Cases, GpuAttentionTest, testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) { return cases()[info.param].shape.name; });

}  // namespace
}  // namespace quire::gpu
