// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts on a GPU: moe_route has the bits of its oracle, and moe_experts those of linear, glu and the
// weighted sum called one by one, for tiles of few and of many rows.
#include <optional>

#include "backend/gpu/test_device.h"
#include "backend/testing/linear_cases.h"
#include "backend/testing/lora_cases.h"
#include "backend/testing/moe_cases.h"
#include "base/test_sanitized.h"

namespace quire::gpu {
namespace {

using cases::ExpertsCase;
using cases::Routes;

template <typename T>
std::vector<T> values_of(TestDevice& device, const T* address, size_t count) {
  const std::vector<uint8_t> bytes = device.get(address, count * sizeof(T));
  std::vector<T> out(count);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Routes route_on_gpu(TestDevice& device, const std::vector<float>& logits, int64_t experts, MoeRouteArgs args) {
  const auto tokens = static_cast<int64_t>(logits.size()) / experts;
  const auto count = static_cast<size_t>(tokens * args.k);
  args.logits = {device.put(logits), DType::kF32, tokens, experts, experts};
  args.ids = device.put(std::vector<int32_t>(count, -7));
  args.weights = device.put(std::vector<float>(count, -7));
  const auto there = [&](const float* values) {
    return values == nullptr ? nullptr : device.put(std::vector<float>(values, values + experts));
  };
  args.choice_bias = there(args.choice_bias);
  args.expert_scale = there(args.expert_scale);
  device.ops().moe_route(args);
  return {values_of(device, args.ids, count), values_of(device, args.weights, count)};
}

TEST(GpuMoeRoute, HasTheBitsOfTheContractWithTiesAndBrokenRows) {
  cases::for_each_route_case(
      12, {4, 60, 128},
      [](const std::vector<float>& logits, int64_t experts, const MoeRouteArgs& args, const std::string& what) {
        const Routes want = cases::expected_routes(logits, experts, args);
        for (int order = 0; order < kDevices; ++order) {
          EXPECT_TRUE(same_routes(route_on_gpu(test_device(order), logits, experts, args), want)) << what;
          test_device(order).clear();
        }
      });
}

constexpr int64_t kExperts = 5;

// Packed experts of one device, and what each puts out for each token when linear and glu are called alone.
class Experts {
 public:
  Experts(TestDevice& device, const ExpertsCase& c, const HostMatrix& x) : device_(device), c_(c), x_(x) {
    const int64_t wide = c.gated ? 2 * c.inner : c.inner;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto seed = static_cast<uint64_t>(10 * e);
      gate_up_.push_back(pack(c.gate_up, wide, c.hidden, seed));
      down_.push_back(pack(c.down, c.hidden, c.inner, seed + 1));
      gate_up_view_.push_back(gate_up_.back().get());
      down_view_.push_back(down_.back().get());
    }
    EXPECT_TRUE(device.ops().stack(gate_up_view_).ok());
    EXPECT_TRUE(device.ops().stack(down_view_).ok());
    const float* gate_up_bias = device.put(HostMatrix(1, kExperts * wide, DType::kF32, 2, 1.0f, 0)).f32();
    const float* down_bias = device.put(HostMatrix(1, kExperts * c.hidden, DType::kF32, 3, 1.0f, 0)).f32();
    for (int64_t e = 0; e < kExperts && c.biases; ++e) {
      gate_up_bias_.push_back(gate_up_bias + e * wide);
      down_bias_.push_back(down_bias + e * c.hidden);
    }
    for (size_t e = 0; e < kExperts; ++e) {
      alone_.push_back(run_alone(e, [](bool, const Tensor&, const Tensor&) {}));
    }
  }

  MoeExpertsArgs args(const MoeRouteArgs& route, const Tensor& x, const Tensor& out) const {
    MoeExpertsArgs args;
    args.x = x;
    args.ids = route.ids;
    args.weights = route.weights;
    args.k = route.k;
    args.gated = c_.gated;
    args.gate_up = gate_up_view_;
    args.down = down_view_;
    args.gate_up_bias = gate_up_bias_;
    args.down_bias = down_bias_;
    args.activation = c_.activation;
    args.limit = c_.limit;
    args.out = out;
    return args;
  }

  std::vector<uint8_t> run(int64_t first, int64_t tokens, const std::vector<int32_t>& ids,
                           const std::vector<float>& weights, int64_t k) {
    MoeRouteArgs route;
    route.ids = device_.put(ids);
    route.weights = device_.put(weights);
    route.k = k;
    const Tensor out = device_.room(tokens, c_.hidden, c_.type);
    device_.ops().moe_experts(args(route, device_.put(x_).some_rows(first, tokens), out));
    return device_.rows_of(out);
  }

  float alone(int32_t expert, int64_t token, int64_t column) const {
    return alone_[static_cast<size_t>(expert)][static_cast<size_t>(token * c_.hidden + column)];
  }

  // What an expert puts out for each token if `add` adds something to the outputs of its two products.
  template <typename Add>
  std::vector<float> run_alone(size_t e, const Add& add) {
    const DType type = c_.type;
    const int64_t wide = c_.gated ? 2 * c_.inner : c_.inner;
    const Tensor both = device_.room(x_.rows, wide, type), hidden = device_.room(x_.rows, c_.inner, type);
    const Tensor y = device_.room(x_.rows, c_.hidden, type), x = device_.put(x_);
    GpuBackend& ops = device_.ops();
    ops.linear({x, gate_up_view_[e], c_.biases ? gate_up_bias_[e] : nullptr, both});
    add(false, x, both);
    if (c_.gated) {
      ops.glu({both.columns(0, c_.inner), both.columns(c_.inner, c_.inner), c_.activation, hidden, c_.limit});
    } else {
      ops.activation({both, c_.activation, hidden});
    }
    ops.linear({hidden, down_view_[e], c_.biases ? down_bias_[e] : nullptr, y});
    add(true, hidden, y);
    return floats_of(device_.rows_of(y), type);
  }

 private:
  std::unique_ptr<PackedMatrix> pack(DType type, int64_t n, int64_t k, uint64_t seed) {
    const cases::Weight weight = cases::random_weight_of(type, n, k, seed, 0, c_.zero_points);
    const RawMatrix raw = weight.raw();
    auto packed = device_.ops().pack({&raw, 1}, {.activation = c_.type});
    EXPECT_TRUE(packed.ok());
    return std::move(packed).value();
  }
  TestDevice& device_;
  const ExpertsCase c_;
  const HostMatrix& x_;
  std::vector<std::unique_ptr<PackedMatrix>> gate_up_, down_;
  std::vector<const PackedMatrix*> gate_up_view_, down_view_;
  std::vector<const float*> gate_up_bias_, down_bias_;
  std::vector<std::vector<float>> alone_;
};

TEST(GpuMoeExperts, HaveTheBitsOfLinearAndGluCalledAlone) {
  std::vector<ExpertsCase> all(std::begin(cases::kExpertsCases), std::end(cases::kExpertsCases));
  all.insert(all.end(), std::begin(cases::kGpuExpertsCases), std::end(cases::kGpuExpertsCases));
  if (!on_emulator()) all.insert(all.end(), std::begin(cases::kChipExpertsCases), std::end(cases::kChipExpertsCases));
  for (const ExpertsCase& c : all) {
    // A chip's own kernels have tiles of up to 128 rows for an expert and need rows that start at whole 16 bytes; the
    // emulator would take too long for so many tokens.
    const int64_t most = on_emulator() ? 70 : 300;
    const HostMatrix x(most, c.hidden, c.type, 17, 2.0f, on_emulator() ? 4 : 8);
    Experts first(test_device(0), c, x);
    std::optional<Experts> second;
    if (kDevices > 1) second.emplace(test_device(1), c, x);
    std::vector<int64_t> counts = {1, 17, 70, 70, most, most};
    if (on_emulator()) counts.pop_back();  // the third once more
    if (kSanitized) counts.resize(3);
    int64_t k = 0;
    for (const int64_t tokens : counts) {
      k = k % 3 + 1;
      for (const int64_t among : {k, kExperts}) {
        const auto ids = cases::random_choices(tokens, k, among, static_cast<uint64_t>(tokens));
        cases::Random random(static_cast<uint64_t>(tokens * 100 + k));
        std::vector<float> weights;
        for (int64_t i = 0; i < tokens * k; ++i) weights.push_back(random.uniform(-1, 1));
        const int64_t from = x.rows - tokens;
        const auto bytes = first.run(from, tokens, ids, weights, k);
        if (second) {
          ASSERT_EQ(second->run(from, tokens, ids, weights, k), bytes) << "another order of lanes";
        }
        const std::vector<float> got = floats_of(bytes, c.type);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t i = 0; i < c.hidden; ++i) {
            float want = 0;
            for (int64_t r = 0; r < k; ++r) {
              const auto at = static_cast<size_t>(t * k + r);
              want = std::fma(weights[at], first.alone(ids[at], from + t, i), want);
            }
            want = rounded(want, c.type);
            ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(t * c.hidden + i)], &want, 4), 0)
                << name(c.type) << " " << name(c.gate_up) << " " << name(c.down) << ", " << tokens << " tokens, k " << k
                << ": [" << t << "][" << i << "] is " << got[static_cast<size_t>(t * c.hidden + i)] << ", not " << want;
          }
        }
      }
    }
    test_device(0).clear();
    if (kDevices > 1) test_device(1).clear();
  }
}

// Adapters of experts in slots. Each leaves some experts alone.
struct ExpertAdapters {
  static constexpr int64_t kSlots = 3, kRank = 32, kDownRank = 16;  // ranks are padded
  std::vector<std::byte> memory;
  int64_t slot_bytes = 0;

  explicit ExpertAdapters(const ExpertsCase& c) {
    const int64_t wide = c.gated ? 2 * c.inner : c.inner;
    std::vector<std::vector<std::byte>> images;
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      LoraImage image(2 * kExperts, c.type);
      for (int64_t e = 0; e < kExperts; ++e) {
        const auto seed = static_cast<uint32_t>(100 * slot + 10 * e);
        const std::vector<float> a = cases::random_floats(20 * c.hidden, seed, 1.0f),
                                 b = cases::random_floats(wide * 20, seed + 1, 1.0f),
                                 down_a = cases::random_floats(7 * c.inner, seed + 2, 1.0f),
                                 down_b = cases::random_floats(c.hidden * 7, seed + 3, 1.0f);
        const LoraPart up{0, wide, 20, a, b, {}, 0.5f}, down{0, c.hidden, 7, down_a, down_b, {}, 0.75f};
        if (e != slot) image.add(e, c.hidden, {&up, 1});
        if (e != slot + 1) image.add(kExperts + e, c.inner, {&down, 1});
      }
      slot_bytes = std::max(slot_bytes, image.bytes());
      images.push_back(image.take());
    }
    for (std::vector<std::byte>& image : images) {
      image.resize(static_cast<size_t>(slot_bytes));
      memory.insert(memory.end(), image.begin(), image.end());
    }
  }
};

// The lists of a mixture on a device.
LoraRows rows_on(TestDevice& device, const cases::LoraMixture& mixture, int64_t first = 0) {
  LoraRows rows = mixture.list(first);
  rows.rows = {device.put(mixture.rows), mixture.rows.size()};
  rows.slots = {device.put(mixture.slots), mixture.slots.size()};
  rows.runs = {device.put(mixture.runs), mixture.runs.size()};
  return rows;
}

TEST(GpuMoeExperts, AddAdaptersWithTheBitsOfLora) {
  for (const ExpertsCase& c : {cases::kExpertsCases[0], cases::kExpertsCases[1], cases::kExpertsCases[4],
                               cases::kExpertsCases[8], cases::kExpertsCases[9], cases::kExpertsCases[12]}) {
    const int64_t tokens = on_emulator() ? 40 : 300, first = 3, k = 3;
    // Rows of another length, so that kernels of one chip alone do not compute the expected values.
    const HostMatrix x(tokens, c.hidden, c.type, 17, 2.0f, 4);
    HostMatrix aligned(tokens, c.hidden, c.type, 17, 2.0f, 8);
    const ExpertAdapters adapters(c);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < c.hidden; ++i) aligned.at(t, i) = x.at(t, i);
    }
    std::vector<uint8_t> before;
    for (int order = 0; order < kDevices; ++order) {
      TestDevice& device = test_device(order);
      Experts experts(device, c, x);
      const LoraMemory memory{device.put(adapters.memory), adapters.slot_bytes, c.type};
      std::vector<std::vector<float>> alone;  // by expert, and then by slot
      for (size_t e = 0; e < kExperts && order == 0; ++e) {
        for (int32_t slot = 0; slot < ExpertAdapters::kSlots; ++slot) {
          const cases::LoraMixture all(std::vector<int32_t>(static_cast<size_t>(tokens), slot));
          alone.push_back(experts.run_alone(e, [&](bool down, const Tensor& in, const Tensor& out) {
            const int64_t rank = down ? ExpertAdapters::kDownRank : ExpertAdapters::kRank;
            const Tensor t = device.room(tokens, device.ops().lora_spans(in.cols) * rank, DType::kF32);
            const auto site = static_cast<int64_t>(e) + (down ? kExperts : 0);
            device.ops().lora({in, {}, memory, rows_on(device, all), site, t, out, rank});
          }));
        }
      }
      // The step has rows before those of this call.
      std::mt19937 random(5);
      std::vector<int32_t> slots(static_cast<size_t>(first + tokens));
      for (int32_t& slot : slots) slot = static_cast<int32_t>(random() % (ExpertAdapters::kSlots + 1)) - 1;
      const cases::LoraMixture mixture(slots);
      const MoeLora lora{memory,
                         rows_on(device, mixture, first),
                         0,
                         kExperts,
                         ExpertAdapters::kRank,
                         ExpertAdapters::kDownRank,
                         ExpertAdapters::kSlots};
      const std::vector<int32_t> ids = cases::random_choices(tokens, k, kExperts, 4);
      std::vector<float> weights;
      for (int64_t i = 0; i < tokens * k; ++i) weights.push_back(static_cast<float>(i % 7) / 4 - 0.5f);
      MoeRouteArgs route;
      route.ids = device.put(ids);
      route.weights = device.put(weights);
      route.k = k;
      const Tensor out = device.room(tokens, c.hidden, c.type);
      MoeExpertsArgs args = experts.args(route, device.put(aligned), out);
      args.lora = &lora;
      device.ops().moe_experts(args);
      const std::vector<uint8_t> bytes = device.rows_of(out);
      const std::vector<float> got = floats_of(bytes, c.type);
      if (order == 1) {
        EXPECT_EQ(bytes, before) << "another order of lanes";
      }
      before = bytes;
      for (int64_t t = 0; t < tokens && order == 0; ++t) {
        const int32_t slot = slots[static_cast<size_t>(first + t)];
        for (int64_t i = 0; i < c.hidden; ++i) {
          float want = 0;
          for (int64_t r = 0; r < k; ++r) {
            const auto at = static_cast<size_t>(t * k + r);
            const auto of = static_cast<size_t>(ids[at] * ExpertAdapters::kSlots + slot);
            const float y = slot < 0 ? experts.alone(ids[at], t, i) : alone[of][static_cast<size_t>(t * c.hidden + i)];
            want = std::fma(weights[at], y, want);
          }
          want = rounded(want, c.type);
          ASSERT_EQ(std::memcmp(&got[static_cast<size_t>(t * c.hidden + i)], &want, 4), 0)
              << name(c.type) << " " << name(c.gate_up) << ", slot " << slot << ": [" << t << "][" << i << "] is "
              << got[static_cast<size_t>(t * c.hidden + i)] << ", not " << want;
        }
      }
    }
    test_device(0).clear();
    if (kDevices > 1) test_device(1).clear();
  }
}

}  // namespace
}  // namespace quire::gpu
