// SPDX-License-Identifier: Apache-2.0
// A recorded decode step whose ops are joined into one launch has the bits of the same ops launched one by one: hidden
// state, pages, logits and what is sampled by memcmp. On the GPU that QUIRE_TEST_DEVICE names; only Hopper's joins.
// What is launched, and in which order, is tested without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"

namespace quire::gpu {
namespace {

// Of the rows of the head: each another, forty again and again, or one of them not a number.
enum class Head { kPlain, kTwins, kBroken };

struct Shape {
  const char* name;
  DType type = DType::kBF16;
  int64_t hidden = 256, heads = 4, kv_heads = 2, head_dim = 128, inner = 384;
  bool normed = true, biased = false, interleaved = false;
  bool by_token = true;  // x is the embedding of tokens, or lies there
  int64_t layers = 3, block_size = 16, vocab = 5000;
  Head head = Head::kPlain;
  std::vector<int32_t> contexts = {5};  // after a sequence's first step
  int64_t window = 0;                   // of every layer but each third
  float soft_cap = 0;
  bool post_normed = false;  // outputs are normalised before they are added, as Gemma does
  int steps = 7;  // at most, of a sequence; two areas of staging: two as they are, two recorded, three run again
};

// The weights of a decoder, a hidden state and pages on one backend.
class Decoder {
 public:
  Decoder(TestDevice& device, const Shape& shape)
      : device_(device), shape_(shape), rows_(seqs()), taken_(shape.contexts.size()) {
    const int64_t d = shape.head_dim, q = shape.heads * d, projected = q + 2 * shape.kv_heads * d;
    for (int64_t i = 0; i < shape.layers; ++i) {
      Layer layer;
      layer.qkv = weight(projected, shape.hidden);
      layer.o = weight(shape.hidden, q);
      layer.gate_up = weight(2 * shape.inner, shape.hidden);
      layer.down = weight(shape.hidden, shape.inner);
      layer.bias = shape.biased ? device.put(floats(projected, 0.5f)) : nullptr;
      for (const float** norm : {&layer.norm, &layer.mlp_norm, &layer.post_norm, &layer.post_mlp_norm}) {
        *norm = device.put(floats(shape.hidden, 2.0f));
      }
      layer.window = i % 3 == 2 ? 0 : shape.window;
      layer.q_norm = shape.normed ? device.put(floats(d, 2.0f)) : nullptr;
      layer.k_norm = shape.normed ? device.put(floats(d, 2.0f)) : nullptr;
      layers_.push_back(std::move(layer));
    }
    for (const int32_t context : shape.contexts) {
      max_blocks_ = std::max<int64_t>(max_blocks_, (context + shape.steps + shape.block_size) / shape.block_size);
    }
    max_blocks_ = device.ops().table_width(max_blocks_, shape.block_size);
    cos_ = device.put(floats(max_blocks_ * shape.block_size * d / 2, 1.0f));
    sin_ = device.put(floats(max_blocks_ * shape.block_size * d / 2, 1.0f));
    all_hidden_ = device.room(rows_, shape.hidden, DType::kF32, 0);
    all_qkv_ = device.room(rows_, projected, shape.type, 0);
    all_attended_ = device.room(rows_, q, shape.type, 0);
    all_output_ = device.room(rows_, shape.hidden, shape.type, 0);
    // As in a model, logits lie where the last layer had its scratch.
    all_logits_ = device.room(rows_, shape.vocab, DType::kF32, 0);
    all_inner_ = {all_logits_.data, shape.type, rows_, shape.inner, shape.inner};
    QUIRE_CHECK(shape.inner <= 2 * shape.vocab);
    head_ = weight(shape.vocab, shape.hidden, shape.head);
    head_norm_ = device.put(floats(shape.hidden, 2.0f));
    QUIRE_CHECK(device.ops().prepare_sampling(rows_, rows_, shape.vocab).ok());
    make_pages();
  }

  // A step of these sequences, queued. Those of the step before go on with the token that it sampled.
  void queue(const std::vector<size_t>& active) {
    GpuBackend& gpu = device_.ops();
    const auto count = static_cast<int64_t>(active.size());
    hidden_ = all_hidden_.first_rows(count);
    qkv_ = all_qkv_.first_rows(count);
    attended_ = all_attended_.first_rows(count);
    output_ = all_output_.first_rows(count);
    inner_ = all_inner_.first_rows(count);
    logits_ = all_logits_.first_rows(count);
    if (!shape_.by_token) {
      const std::vector<float> x = floats(count * shape_.hidden, 1.0f, 900 + queued_);
      device_.device().upload(hidden_.data, x.data(), x.size() * 4);
    }
    ++queued_;
    gpu.begin_step();
    std::vector<int32_t> tokens, contexts, positions, tables, window_tables, cu(active.size() + 1);
    std::vector<int64_t> slots;
    std::iota(cu.begin(), cu.end(), 0);
    for (const size_t seq : active) {
      const auto s = static_cast<int64_t>(seq);
      const int32_t context = shape_.contexts[seq] + taken_[seq]++;
      QUIRE_CHECK(taken_[seq] <= shape_.steps);
      tables.insert(tables.end(), tables_.begin() + s * max_blocks_, tables_.begin() + (s + 1) * max_blocks_);
      // What is before the window is not read, nor looked for.
      for (int64_t block = 0; block < max_blocks_; ++block) {
        const bool gone = shape_.window > 0 && (block + 1) * shape_.block_size <= context - shape_.window;
        window_tables.push_back(gone ? INT32_MAX : tables_[static_cast<size_t>(s * max_blocks_ + block)]);
      }
      tokens.push_back(static_cast<int32_t>((context * 37 + s * 11) % shape_.vocab));
      contexts.push_back(context);
      positions.push_back(context - 1);
      const int64_t block = (context - 1) / shape_.block_size;
      slots.push_back(tables_[static_cast<size_t>(s * max_blocks_ + block)] * shape_.block_size +
                      (context - 1) % shape_.block_size);
    }
    const auto on_device = [&]<typename T>(const std::vector<T>& v) {
      return std::span<const T>(static_cast<const T*>(gpu.stage(std::as_bytes(std::span(v)))), v.size());
    };
    const auto cu_there = on_device(cu), contexts_there = on_device(contexts), positions_there = on_device(positions),
               tables_there = on_device(tables), window_tables_there = on_device(window_tables);
    const auto slots_there = on_device(slots), window_slots_there = on_device(slots);
    const auto tokens_there = on_device(tokens);
    std::vector<int32_t> from;
    for (const size_t seq : active) {
      const auto at = std::find(last_.begin(), last_.end(), seq);
      from.push_back(at == last_.end() ? -1 : static_cast<int32_t>(at - last_.begin()));
    }
    const auto from_there = on_device(from);
    if (!last_.empty()) gpu.take_sampled({tokens_there, from_there});
    last_ = active;
    if (!gpu.replay_step({this, count, count, count, max_blocks_, true})) {
      if (shape_.by_token) gpu.embedding({head_.get(), tokens_there, 12.5f, hidden_});
      for (const Layer& layer : layers_) {
        run(layer, cu_there, contexts_there, positions_there, layer.window > 0 ? window_tables_there : tables_there,
            layer.window > 0 ? window_slots_there : slots_there);
      }
      const FusedNorm norm{head_norm_, 1e-6f};
      LinearArgs head{.x = hidden_, .weight = head_.get(), .out = logits_};
      head.norm = &norm;
      gpu.linear(head);
      gpu.end_step();
    }
    std::vector<SampleRow> rows(active.size());
    for (SampleRow& row : rows) {
      row.seed = 5;
      row.position = queued_;
      row.temperature = draws(queued_) ? 0.8f : 0.0f;
      row.logprobs = queued_ % 5 == 1 ? 2 : -1;
    }
    gpu.sample({logits_, rows, {}, {}});
    finished_ = gpu.finish_samples(count);
  }
  // Whether the n-th step that was queued, from 1 on, draws its tokens; others take the likeliest.
  static bool draws(uint32_t n) { return n % 3 == 0; }

  // All that the last step wrote, what it sampled, and the pages.
  std::vector<uint8_t> state() {
    std::vector<uint8_t> out = device_.rows_of(hidden_, false);
    const std::vector<uint8_t> logits = device_.rows_of(logits_, false), pages = device_.get(pages_, page_bytes_);
    const std::span<const std::byte> sampled = std::as_bytes(device_.ops().sampled(finished_).rows);
    for (const std::byte b : sampled) out.push_back(static_cast<uint8_t>(b));
    out.insert(out.end(), logits.begin(), logits.end());
    out.insert(out.end(), pages.begin(), pages.end());
    return out;
  }

 private:
  struct Layer {
    std::unique_ptr<PackedMatrix> qkv, o, gate_up, down;
    const float *bias = nullptr, *norm = nullptr, *mlp_norm = nullptr, *q_norm = nullptr, *k_norm = nullptr,
                *post_norm = nullptr, *post_mlp_norm = nullptr;
    int64_t number = 0, window = 0;
  };

  int64_t seqs() const { return static_cast<int64_t>(shape_.contexts.size()); }

  std::vector<float> floats(int64_t count, float range, uint32_t seed = 0) {
    std::mt19937 random(seed != 0 ? seed : ++seed_);
    std::uniform_real_distribution<float> uniform(-range, range);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = uniform(random);
    return out;
  }
  std::vector<uint16_t> halves(int64_t count, float range) {
    std::vector<uint16_t> out;
    for (const float x : floats(count, range)) {
      out.push_back(shape_.type == DType::kF16 ? float_to_fp16(x) : float_to_bf16(x));
    }
    return out;
  }
  std::unique_ptr<PackedMatrix> weight(int64_t n, int64_t k, Head head = Head::kPlain) {
    std::vector<uint16_t> values = halves(n * k, 1.5f / std::sqrt(static_cast<float>(k)));
    constexpr int64_t kDifferent = 40, kBroken = 77;
    if (head == Head::kTwins) {
      for (int64_t i = kDifferent * k; i < n * k; ++i)
        values[static_cast<size_t>(i)] = values[static_cast<size_t>(i - kDifferent * k)];
    }
    if (head == Head::kBroken) std::fill_n(values.begin() + kBroken * k, k, uint16_t{0xffff});
    RawMatrix raw;
    raw.dtype = shape_.type;
    raw.n = n;
    raw.k = k;
    raw.data = reinterpret_cast<const std::byte*>(values.data());
    PackOptions options;
    options.activation = shape_.type;
    auto packed = device_.ops().pack({&raw, 1}, options);
    QUIRE_CHECK(packed.ok());
    return std::move(packed).value();
  }

  // Pages in no order; what no position holds yet, or no step sees any longer, is NaN.
  void make_pages() {
    const int64_t row = shape_.kv_heads * shape_.head_dim, page = 2 * shape_.block_size * row;
    const int64_t count = rows_ * max_blocks_ + 1;
    for (int64_t i = 0; i < rows_ * max_blocks_; ++i)
      tables_.push_back(static_cast<int32_t>(1 + (i * 7 + 3) % (count - 1)));
    if ((count - 1) % 7 == 0) std::iota(tables_.begin(), tables_.end(), 1);
    page_elements_ = page;
    std::vector<uint16_t> all;
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<uint16_t> one = halves(count * page, 1.0f);
      std::vector<bool> held(static_cast<size_t>(count * shape_.block_size));
      for (int64_t s = 0; s < rows_; ++s) {
        const int64_t context = shape_.contexts[static_cast<size_t>(s)];
        const int64_t window = layers_[static_cast<size_t>(layer)].window;
        for (int64_t p = window > 0 ? std::max<int64_t>(0, context - window) : 0; p + 1 < context; ++p) {
          held[static_cast<size_t>(tables_[static_cast<size_t>(s * max_blocks_ + p / shape_.block_size)] *
                                       shape_.block_size +
                                   p % shape_.block_size)] = true;
        }
      }
      for (size_t slot = 0; slot < held.size(); ++slot) {
        const auto at = slot / static_cast<size_t>(shape_.block_size) * static_cast<size_t>(page) +
                        slot % static_cast<size_t>(shape_.block_size) * static_cast<size_t>(row);
        for (size_t side = 0; side < 2 && !held[slot]; ++side) {
          std::fill_n(one.begin() + static_cast<ptrdiff_t>(at + side * static_cast<size_t>(page / 2)), row,
                      uint16_t{0xffff});
        }
      }
      all.insert(all.end(), one.begin(), one.end());
      layers_[static_cast<size_t>(layer)].number = layer;
    }
    pages_ = device_.put(all);
    page_bytes_ = all.size() * 2;
    pages_of_layer_ = count;
  }

  void run(const Layer& layer, std::span<const int32_t> cu, std::span<const int32_t> contexts,
           std::span<const int32_t> positions, std::span<const int32_t> tables, std::span<const int64_t> slots) {
    GpuBackend& gpu = device_.ops();
    const int64_t d = shape_.head_dim, q = shape_.heads * d, k = shape_.kv_heads * d;
    const FusedNorm norm{layer.norm, 1e-6f}, mlp_norm{layer.mlp_norm, 1e-5f};
    LinearArgs project{.x = hidden_, .weight = layer.qkv.get(), .bias = layer.bias, .out = qkv_};
    project.norm = &norm;
    gpu.linear(project);
    KvLayer kv;
    kv.pages = pages_ + layer.number * pages_of_layer_ * page_elements_;
    kv.page_stride = page_elements_ * 2;
    kv.num_pages = pages_of_layer_;
    kv.block_size = shape_.block_size;
    kv.num_kv_heads = shape_.kv_heads;
    kv.head_dim = d;
    kv.dtype = shape_.type;
    const Tensor queries = qkv_.columns(0, q);
    gpu.qkv_to_cache({queries, qkv_.columns(q, k), qkv_.columns(q + k, k), shape_.heads, layer.q_norm, layer.k_norm,
                      1e-6f, d, shape_.interleaved, cos_, sin_, positions, slots, kv});
    AttentionArgs attend;
    attend.q = queries;
    attend.kv = kv;
    attend.num_heads = shape_.heads;
    attend.scale = 0.09f;
    attend.cu_seqlens_q = cu;
    attend.context_lens = contexts;
    attend.block_tables = tables;
    attend.max_blocks = max_blocks_;
    attend.window = layer.window;
    attend.soft_cap = shape_.soft_cap;
    attend.out = attended_;
    gpu.attention(attend);
    project_out(*layer.o, attended_, layer.post_norm, 1.0f);
    const FusedGlu gated{Activation::kSilu, 0.0f};
    LinearArgs up{.x = hidden_, .weight = layer.gate_up.get(), .out = inner_};
    up.norm = &mlp_norm;
    up.gated = &gated;
    gpu.linear(up);
    project_out(*layer.down, inner_, layer.post_mlp_norm, 0.5f);
  }

  void project_out(const PackedMatrix& w, const Tensor& x, const float* post_norm, float scale) {
    LinearArgs out{.x = x, .weight = &w, .out = shape_.post_normed ? output_ : hidden_};
    if (shape_.post_normed) {
      device_.ops().linear(out);
      return device_.ops().add_norm({output_, post_norm, scale, hidden_, nullptr, 1e-5f, {}});
    }
    out.residual = hidden_;
    out.residual_scale = scale;
    device_.ops().linear(out);
  }

  TestDevice& device_;
  Shape shape_;
  int64_t rows_, max_blocks_ = 1, page_elements_ = 0, pages_of_layer_ = 0;
  uint32_t seed_ = 0;
  std::vector<Layer> layers_;
  std::vector<int> taken_;    // steps, of each sequence
  std::vector<size_t> last_;  // sequences of the step before
  uint32_t queued_ = 0;
  uint64_t finished_ = 0;
  Tensor all_hidden_, all_qkv_, all_attended_, all_output_, all_inner_, all_logits_;
  Tensor hidden_, qkv_, attended_, output_, inner_, logits_;  // rows of the step
  std::unique_ptr<PackedMatrix> head_;
  const float* head_norm_ = nullptr;
  const float *cos_ = nullptr, *sin_ = nullptr;
  std::vector<int32_t> tables_;
  uint16_t* pages_ = nullptr;
  size_t page_bytes_ = 0;
};

// Two of a kind on devices of their own (the shared ones keep the steps they recorded): joined, and op by op.
struct Pair {
  explicit Pair(const Shape& shape) : joined(devices[0], shape), single(devices[1], shape) {
    devices[0].ops().joined().set_most_rows(kStepRows);
    devices[1].ops().joined().set_most_rows(0);
  }
  static bool here() {
    TestDevice device(0);
    const DeviceInfo& info = device.device().info();
    return info.api == Api::kCuda && info.architecture.starts_with("sm_90");
  }
  void queue(const std::vector<size_t>& active) {
    joined.queue(active);
    single.queue(active);
  }
  bool same() { return joined.state() == single.state(); }

  TestDevice devices[2] = {TestDevice(0), TestDevice(0)};
  Decoder joined, single;
};

// What the steps of one sequence tell the device, and then its sampling.
struct Told {
  std::vector<std::vector<std::string>> steps, sampling;
};
Told told_by_steps(const Shape& shape, int most_joined) {
  std::vector<std::string> notes;
  auto backend = std::make_unique<GpuBackend>(std::make_unique<RecordingDevice>(notes));
  backend->joined().set_most_rows(most_joined);
  TestDevice device(std::move(backend));
  Decoder decoder(device, shape);
  Told out;
  for (int i = 0; i < shape.steps; ++i) {
    notes.clear();
    decoder.queue({0});
    auto sampling = notes.end();
    while (sampling != notes.begin() && (sampling[-1].starts_with("sample_") || sampling[-1] == "upload")) --sampling;
    out.steps.emplace_back(notes.begin(), sampling);
    out.sampling.emplace_back(sampling, notes.end());
    std::erase(out.sampling.back(), "upload");
  }
  return out;
}

bool holds(const std::vector<std::string>& notes, const std::string& what) {
  return std::find(notes.begin(), notes.end(), what) != notes.end();
}

// Kernels of a step that is not joined read its arrays before they wait for the launch before them. So those come by a
// copy, which ends before anything after it begins; with a launch of their own they come before a joined step alone.
TEST(DecodeStepLaunches, ArraysTravelInALaunchBeforeJoinedStepsAlone) {
  const auto joined = told_by_steps({.name = ""}, 4).steps;
  ASSERT_EQ(joined.size(), 7u);
  for (size_t i = 0; i < 4; ++i) {  // two areas of staging: each step as it is, then recorded
    ASSERT_FALSE(joined[i].empty());
    EXPECT_EQ(joined[i][0], "upload") << i;
    EXPECT_EQ(holds(joined[i], "take_sampled"), i > 0) << i;
    EXPECT_FALSE(holds(joined[i], "hopper_stage_step")) << i;
    EXPECT_EQ(holds(joined[i], "qkv_to_cache_bf16"), i < 2) << i;
  }
  for (size_t i = 4; i < 7; ++i) {
    EXPECT_EQ(joined[i], (std::vector<std::string>{"hopper_stage_step", "hopper_decode_step_bf16_d128"})) << i;
  }
  for (const auto& step : told_by_steps({.name = ""}, 0).steps) {
    EXPECT_EQ(step[0], "upload");
    EXPECT_FALSE(holds(step, "hopper_stage_step"));
  }
  // Few launches are run again one by one, without a graph.
  const auto few = told_by_steps({.name = "", .layers = 1}, 0).steps;
  EXPECT_FALSE(holds(few.back(), "graph"));
  for (const auto& step : few) EXPECT_FALSE(holds(step, "hopper_stage_step"));
}

// Windows, and sums with a norm of their own, are joined too, by the general form of the kernel, if every threadgroup
// has tiles of the products that read such a sum.
TEST(DecodeStepLaunches, WindowsAndNormedOutputsAreJoined) {
  Shape shape{.name = "", .hidden = 1152, .heads = 4, .kv_heads = 1, .head_dim = 256, .inner = 2048};
  shape.window = 512;
  shape.post_normed = true;
  const std::vector<std::string> joined = {"hopper_stage_step", "hopper_decode_step_general_bf16_d256"};
  EXPECT_EQ(told_by_steps(shape, 4).steps.back(), joined);
  shape.inner = 1024;  // 128 tiles of gate and up, and 132 threadgroups
  EXPECT_TRUE(holds(told_by_steps(shape, 4).steps.back(), "graph"));
}

// A joined step knows the largest of its logits, so the likeliest token needs no look at them.
TEST(DecodeStepLaunches, TheLikeliestTokenComesFromTheJoinedStep) {
  for (const int most_joined : {4, 0}) {
    const Told told = told_by_steps({.name = ""}, most_joined);
    for (size_t i = 0; i < told.steps.size(); ++i) {
      const bool known = holds(told.steps[i], "hopper_decode_step_bf16_d128");
      EXPECT_EQ(known, most_joined > 0 && i > 1) << i;
      const bool draws = Decoder::draws(static_cast<uint32_t>(i + 1));
      EXPECT_EQ(holds(told.sampling[i], "sample_chunks"), draws || !known) << i;
      EXPECT_TRUE(holds(told.sampling[i], "sample_rows")) << i;
    }
  }
}

TEST(DecodeStepLaunches, AFailedDeviceEndsTheProgramAndSaysWhy) {
  std::vector<std::string> notes;
  GpuBackend gpu(std::make_unique<RecordingDevice>(notes, unavailable("cuEventSynchronize failed with status 700")));
  EXPECT_EXIT(gpu.begin_step(), testing::ExitedWithCode(1),
              "quire: the GPU failed: cuEventSynchronize failed with status 700. .*start quire again");
}

class DecodeStep : public testing::TestWithParam<Shape> {};

TEST_P(DecodeStep, JoinedHasTheBitsOfItsOpsOneByOne) {
  if (!Pair::here()) GTEST_SKIP() << "joined on Hopper alone";
  Pair pair(GetParam());
  pair.devices[0].ops().joined().set_most_runs(3);  // within these steps flags begin anew
  std::vector<size_t> all(GetParam().contexts.size());
  std::iota(all.begin(), all.end(), size_t{0});
  for (int i = 0; i < GetParam().steps; ++i) {
    pair.queue(all);
    EXPECT_TRUE(pair.same()) << "step " << i;
  }
}

// Sequences come and go, and steps are queued behind each other: shapes change from step to step, some are new, some
// are recorded, most are run again.
TEST(DecodeStepTraffic, JoinedHasTheBitsOfItsOpsOneByOne) {
  if (!Pair::here()) GTEST_SKIP() << "joined on Hopper alone";
  Shape shape{
      .name = "Traffic", .hidden = 1024, .heads = 16, .kv_heads = 8, .inner = 3072, .layers = 2, .vocab = 20000};
  shape.contexts = {1, 7, 47, 184, 414, 500, 1015, 1500};
  shape.steps = 300;
  Pair pair(shape);
  std::mt19937 random(7);
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  std::vector<size_t> active;
  for (int burst = 0; burst < 60; ++burst) {
    for (size_t i = 0, count = 1 + below(5); i < count; ++i) {
      if (i == 0 || below(3) == 0) {  // one comes or goes
        const size_t seq = below(shape.contexts.size());
        const auto at = std::find(active.begin(), active.end(), seq);
        if (at != active.end() && active.size() > 1) {
          active.erase(at);
        } else if (at == active.end() && active.size() < 5) {
          active.push_back(seq);
        }
      }
      pair.queue(active);
    }
    ASSERT_TRUE(pair.same()) << "burst " << burst << ", " << active.size() << " sequences";
  }
}

std::vector<int32_t> many(int32_t first, int32_t step, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(first + i * step);
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeStep,
    testing::Values(
        Shape{.name = "OnePosition", .contexts = {1}}, Shape{.name = "ATileFills", .contexts = {60}},
        Shape{.name = "SeveralTiles", .contexts = {381}},
        Shape{.name = "ASplitFills", .by_token = false, .contexts = {1020}},
        Shape{.name = "SeveralSplits", .contexts = {2500}}, Shape{.name = "TwoSequences", .contexts = {130, 3}},
        Shape{.name = "EightSequences", .contexts = many(17, 150, 8)},
        Shape{.name = "Half", .type = DType::kF16, .contexts = {300, 64}},
        Shape{.name = "Heads64InSevens",
              .hidden = 896,
              .heads = 14,
              .kv_heads = 2,
              .head_dim = 64,
              .inner = 4864,
              .normed = false,
              .biased = true,
              .contexts = {77, 1100}},
        Shape{.name = "WideHidden",
              .hidden = 4096,
              .heads = 8,
              .kv_heads = 8,
              .inner = 1024,
              .interleaved = true,
              .layers = 2,
              .contexts = {200}},
        Shape{.name = "Qwen3Small",
              .hidden = 1024,
              .heads = 16,
              .kv_heads = 8,
              .inner = 3072,
              .layers = 4,
              .block_size = 32,
              .vocab = 60000,  // lots of tiles, one after another
              .contexts = {383}},
        Shape{.name = "Window", .contexts = {700}, .window = 200},
        Shape{.name = "WindowOfLastSplit", .heads = 8, .head_dim = 64, .contexts = {2100, 40, 1030}, .window = 77},
        Shape{.name = "SoftCap", .contexts = {130}, .soft_cap = 1.5f},
        Shape{.name = "Heads256", .head_dim = 256, .contexts = {1100, 33}},
        Shape{.name = "Gemma",
              .hidden = 1152,
              .heads = 4,
              .kv_heads = 1,
              .head_dim = 256,
              .inner = 6912,
              .layers = 4,
              .contexts = {600},
              .window = 512,
              .post_normed = true},
        Shape{.name = "GemmaWide",
              .hidden = 2560,
              .heads = 8,
              .kv_heads = 4,
              .head_dim = 256,
              .inner = 2304,
              .by_token = false,
              .contexts = {1500, 1020},
              .window = 1024,
              .soft_cap = 50,
              .post_normed = true},
        Shape{.name = "NormedOutputs",
              .type = DType::kF16,
              .hidden = 1024,
              .heads = 16,
              .kv_heads = 8,
              .inner = 3072,
              .contexts = {90, 14},
              .post_normed = true},
        Shape{.name = "OddRows",  // an odd number of windows, in less than a chunk
              .hidden = 1088,
              .heads = 16,
              .kv_heads = 8,
              .head_dim = 64,
              .inner = 1344,
              .contexts = {90, 14},
              .post_normed = true},
        Shape{.name = "NormedOutputsOfFewTiles",  // the sums are launches
              .hidden = 1152,
              .heads = 4,
              .kv_heads = 1,
              .head_dim = 256,
              .inner = 1024,
              .contexts = {90},
              .post_normed = true},
        Shape{.name = "TokensAsLikely", .head = Head::kTwins, .contexts = {33, 5}},
        Shape{.name = "BrokenLogits", .head = Head::kBroken, .contexts = {33}},
        Shape{.name = "FewLogits", .vocab = 512, .contexts = {33}},
        Shape{.name = "TurnsOfTheRing",  // within a product
              .hidden = 2560,
              .heads = 8,
              .kv_heads = 8,
              .inner = 6144,
              .layers = 2,
              .contexts = {70}},
        Shape{.name = "MoreLayersThanALaunch",
              .hidden = 64,
              .heads = 1,
              .kv_heads = 1,
              .head_dim = 64,
              .inner = 64,
              .layers = 60,
              .contexts = {9}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::gpu
