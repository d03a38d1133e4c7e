// SPDX-License-Identifier: Apache-2.0
// lora on a GPU, against doubles; and the same bits in any mixture of adapters.
#include "backend/gpu/hopper/linear_plan.h"
#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"
#include "backend/testing/linear_cases.h"
#include "backend/testing/lora_cases.h"

namespace quire::gpu {
namespace {

using cases::LoraCase;
using cases::LoraMixture;

// The rows [first, first + out.rows) of the mixture, with the adapters added to `out`.
std::vector<uint8_t> run(TestDevice& device, const LoraCase& c, const HostMatrix& x, const LoraMixture& mixture,
                         const HostMatrix& out, int64_t first = 0) {
  LoraRows rows = mixture.list(first);
  rows.rows = {device.put(mixture.rows), mixture.rows.size()};
  rows.slots = {device.put(mixture.slots), mixture.slots.size()};
  rows.runs = {device.put(mixture.runs), mixture.runs.size()};
  const LoraMemory memory{device.put(c.memory), c.slot_bytes, c.dtype};
  const Tensor in = device.put(x).some_rows(first, out.rows), to = device.put(out);
  const Tensor t = device.room(out.rows, device.ops().lora_spans(c.k) * c.most_rank, DType::kF32);
  device.ops().lora({in, {}, memory, rows, LoraCase::kSite, t, to, c.most_rank});
  return device.rows_of(to, false);
}

TEST(GpuLora, IsCloseToDoublesAndHasTheSameBitsInAnyMixture) {
  for (const DType type : kTypes) {
    for (const DType out_type : {type, DType::kF32}) {
      const int64_t k = out_type == type ? 77 : 600;  // one span of x, and several
      const LoraCase c(k, 300, type);
      const HostMatrix x(30, k, type, 5), before(30, 300, out_type, 6);
      const LoraMixture mixture(30, 7);
      const std::vector<uint8_t> whole = run(test_device(), c, x, mixture, before);
      if (kDevices > 1) {
        EXPECT_EQ(run(test_device(1), c, x, mixture, before), whole) << "another order of lanes";
      }
      const std::vector<float> got = floats_of(whole, out_type);
      const auto row_bytes = static_cast<ptrdiff_t>(whole.size()) / 30;
      for (int64_t r = 0; r < 30; ++r) {
        const int32_t slot = mixture.slots_by_row[static_cast<size_t>(r)];
        std::vector<double> want(300), size(300, 0.0);
        for (int64_t n = 0; n < 300; ++n) want[static_cast<size_t>(n)] = double{before.at(r, n)};
        c.add(slot, x.part(r, 0, k).data(), want.data(), size.data());
        for (size_t n = 0; n < 300; ++n) {
          expect_close(got[static_cast<size_t>(r) * 300 + n], want[n], out_type, size[n] + std::fabs(want[n]), 120,
                       std::string(name(type)) + " row " + std::to_string(r));
        }
        std::vector<int32_t> only(30, -1);
        only[static_cast<size_t>(r)] = slot;
        const std::vector<uint8_t> alone = run(test_device(), c, x, LoraMixture(only), before);
        EXPECT_TRUE(std::equal(alone.begin() + r * row_bytes, alone.begin() + (r + 1) * row_bytes,
                               whole.begin() + r * row_bytes))
            << "row " << r << " alone";
      }
      HostMatrix some(11, 300, out_type, 6);
      std::copy_n(before.values.begin() + 13 * before.stride, 11 * before.stride, some.values.begin());
      const std::vector<uint8_t> part = run(test_device(), c, x, mixture, some, 13);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 13 * row_bytes)) << "a part of the rows";
      test_device().clear();
      if (kDevices > 1) test_device(1).clear();
    }
  }
}

TEST(GpuLora, LooksUpRowsByToken) {
  for (const DType type : kTypes) {
    const LoraCase c(50, 90, type);
    const std::vector<int32_t> tokens = {0, 49, 7, 7, 12};
    HostMatrix one_hot(5, 50, type, 3);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t i = 0; i < 50; ++i) one_hot.at(r, i) = i == tokens[static_cast<size_t>(r)] ? 1.0f : 0.0f;
    }
    const HostMatrix before(5, 90, DType::kF32, 6);
    const LoraMixture mixture(std::vector<int32_t>{2, 0, 1, -1, 1});
    TestDevice& device = test_device();
    const std::vector<uint8_t> want = run(device, c, one_hot, mixture, before);
    LoraRows rows = mixture.list();
    rows.rows = {device.put(mixture.rows), 5};
    rows.slots = {device.put(mixture.slots), 5};
    rows.runs = {device.put(mixture.runs), mixture.runs.size()};
    const LoraMemory memory{device.put(c.memory), c.slot_bytes, c.dtype};
    const Tensor out = device.put(before), t = device.room(5, c.most_rank, DType::kF32);
    const Tensor vocabulary{nullptr, type, 0, 50, 50};
    device.ops().lora({vocabulary, {device.put(tokens), 5}, memory, rows, LoraCase::kSite, t, out, c.most_rank});
    EXPECT_EQ(device.rows_of(out, false), want) << name(type);
    device.clear();
  }
}

// A linear with adapters, and then nothing, a gate or a residual: as one op, and as several.
enum class After { kNothing, kGate, kResidual };

struct JoinedCase {
  int64_t rows, k, n;
  After after;
  bool bias;
};

// Its operands on a device. What is referred to must outlive this.
struct JoinedOperands {
  TestDevice& device;
  const JoinedCase& c;
  const LoraCase& adapters;
  const PackedMatrix& weight;
  DType type;
  bool gated = c.after == After::kGate, residual = c.after == After::kResidual;
  LoraMemory memory{device.put(adapters.memory), adapters.slot_bytes, type};
  Tensor x = device.put(HostMatrix(c.rows, c.k, type, 5, 1.0f, 8));
  Tensor t = device.room(c.rows, device.ops().lora_spans(c.k) * adapters.most_rank, DType::kF32);
  const float* bias = c.bias ? device.put(cases::random_floats(c.n, 8, 1.0f)) : nullptr;
  Tensor hidden = device.put(HostMatrix(c.rows, c.n, DType::kF32, 9, 1.0f, 2));
  Tensor sums = device.room(c.rows, c.n, type);
  Tensor out = residual ? hidden : device.room(c.rows, gated ? c.n / 2 : c.n, type);
  FusedGlu gate{Activation::kSilu};

  LoraRows put(const LoraMixture& mixture) {
    LoraRows rows = mixture.list();
    rows.rows = {device.put(mixture.rows), mixture.rows.size()};
    rows.slots = {device.put(mixture.slots), mixture.slots.size()};
    rows.runs = {device.put(mixture.runs), mixture.runs.size()};
    return rows;
  }
  // False if the linear does not take them.
  bool run_together(const LoraRows& rows) {
    const LoraArgs lora{x, {}, memory, rows, LoraCase::kSite, t, out, adapters.most_rank};
    LinearArgs args{x, &weight, bias, out};
    args.gated = gated ? &gate : nullptr;
    if (residual) args.residual = hidden, args.residual_scale = 0.75f;
    args.lora = &lora;
    if (!device.ops().joins_lora(args)) return false;
    device.ops().linear(args);
    return true;
  }
  void run_apart(const LoraRows& rows) {
    GpuBackend& gpu = device.ops();
    gpu.linear({x, &weight, bias, sums});
    gpu.lora({x, {}, memory, rows, LoraCase::kSite, t, sums, adapters.most_rank});
    if (gated) gpu.glu({sums.columns(0, c.n / 2), sums.columns(c.n / 2, c.n / 2), gate.activation, out});
    if (residual) gpu.residual_add({sums, hidden, 0.75f, out});
  }
  const Tensor& apart() const { return c.after == After::kNothing ? sums : out; }
};

std::vector<uint8_t> run_joined(const JoinedCase& c, const LoraCase& adapters, const PackedMatrix& weight, DType type,
                                const LoraMixture& mixture, bool together) {
  TestDevice& device = test_device();
  JoinedOperands operands{device, c, adapters, weight, type};
  const LoraRows rows = operands.put(mixture);
  if (!together) {
    operands.run_apart(rows);
    return device.rows_of(operands.apart(), false);
  }
  return operands.run_together(rows) ? device.rows_of(operands.out, false) : std::vector<uint8_t>();
}

std::unique_ptr<PackedMatrix> random_weight(TestDevice& device, DType type, int64_t n, int64_t k) {
  const cases::Weight values = cases::random_weight_of(type, n, k, 7);
  const RawMatrix raw = values.raw();
  auto weight = device.ops().pack({&raw, 1}, {.activation = type});
  QUIRE_CHECK(weight.ok());
  return std::move(weight).value();
}

// How many of the cases a linear took.
int expect_same_bits(const LoraCase& adapters, const LoraMixture& mixture, const PackedMatrix& weight, bool bias) {
  int joined = 0;
  const auto rows = static_cast<int64_t>(mixture.slots_by_row.size());
  for (const After after : {After::kNothing, After::kGate, After::kResidual}) {
    const JoinedCase c{rows, adapters.k, adapters.n, after, bias};
    const std::vector<uint8_t> together = run_joined(c, adapters, weight, adapters.dtype, mixture, true);
    if (!together.empty()) {
      ++joined;
      EXPECT_TRUE(together == run_joined(c, adapters, weight, adapters.dtype, mixture, false))
          << name(adapters.dtype) << ", " << rows << " rows of " << c.k << ", " << c.n << " columns, ranks of "
          << adapters.most_rank << " together, after " << static_cast<int>(after);
    }
    test_device().clear();
  }
  return joined;
}

TEST(GpuLora, HasTheSameBitsInsideOfALinear) {
  if (!test_device().ops().hopper()) GTEST_SKIP() << "no product of this device has adapters in its epilogue";
  int joined = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [k, n] :
         {std::pair<int64_t, int64_t>{512, 1536}, {1152, 3072}, {208, 13824}, {200, 3072}, {2048, 24576}}) {
      const LoraCase adapters(k, n, type);
      const auto weight = random_weight(test_device(), type, n, k);
      for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{33}, int64_t{64}, int64_t{100}, int64_t{200}}) {
        joined += expect_same_bits(adapters, LoraMixture(rows, 17), *weight, rows == 33);
      }
    }
  }
  EXPECT_GT(joined, 60);
}

// All ranks; one matrix and three side by side; few and many runs, full ones and empty ones; and runs whose rows are in
// different tiles.
TEST(GpuLora, HasTheSameBitsInsideOfALinearForAnyRanksAndRuns) {
  if (!test_device().ops().hopper()) GTEST_SKIP() << "no product of this device has adapters in its epilogue";
  int joined = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{12288, 4096}, {4096, 12288}, {1040, 3072}}) {
      const auto weight = random_weight(test_device(), type, n, k);
      for (const std::vector<int64_t>& ranks :
           {std::vector<int64_t>{16}, {8, 8, 8, 8, 8, 8, 8, 8}, {16, 16, 16, 16, 16, 16, 16, 16}, {8, 16, 32, 64}}) {
        const auto slots = static_cast<int64_t>(ranks.size());
        const LoraCase adapters(k, n, type, ranks, ranks.size() == 1 ? 1 : 3);
        for (const int64_t rows : {int64_t{1}, int64_t{17}, int64_t{64}, int64_t{128}}) {
          joined += expect_same_bits(adapters, LoraMixture(rows, 3, slots), *weight, rows == 17);
        }
        std::vector<int32_t> last(64, -1);  // one row alone has an adapter
        last[63] = 0;
        joined += expect_same_bits(adapters, LoraMixture(last), *weight, true);
      }
    }
  }
  EXPECT_GT(joined, 100);
}

// Many launches follow each other, in steps that are recorded and run again with other adapters: what a launch leaves
// behind must not disturb the next one.
TEST(GpuLora, HasTheSameBitsInStepsThatAreRecorded) {
  if (!test_device().ops().hopper()) GTEST_SKIP() << "no product of this device has adapters in its epilogue";
  constexpr int64_t kRows = 32, kK = 16384, kN = 2048, kSlots = 8;  // a long K, so that they are one launch
  const LoraCase adapters(kK, kN, DType::kBF16, std::vector<int64_t>(kSlots, 16), 1);
  const JoinedCase c{kRows, kK, kN, After::kNothing, false};
  TestDevice device(0);
  GpuBackend& gpu = device.ops();
  const auto weight = random_weight(device, DType::kBF16, kN, kK);
  std::vector<JoinedOperands> linears;
  for (int i = 0; i < 20; ++i) linears.push_back({device, c, adapters, *weight, DType::kBF16});
  for (uint32_t step = 0; step < 9; ++step) {
    const LoraMixture mixture(kRows, step, kSlots);
    gpu.begin_step();
    const auto on_device = [&]<typename V>(const std::vector<V>& v) {
      return std::span<const V>(static_cast<const V*>(gpu.stage(std::as_bytes(std::span(v)))), v.size());
    };
    LoraRows rows = mixture.list();
    rows.rows = on_device(mixture.rows);
    rows.slots = on_device(mixture.slots);
    rows.runs = on_device(mixture.runs);
    if (!gpu.replay_step({&device, kRows, kRows, kRows, 1, 1, false, 1})) {
      for (JoinedOperands& linear : linears) ASSERT_TRUE(linear.run_together(rows));
      gpu.end_step();
    }
    gpu.synchronise();
    JoinedOperands apart{device, c, adapters, *weight, DType::kBF16};
    apart.run_apart(apart.put(mixture));
    const std::vector<uint8_t> want = device.rows_of(apart.apart(), false);
    for (const JoinedOperands& linear : linears) {
      EXPECT_TRUE(device.rows_of(linear.out, false) == want) << "step " << step;
    }
  }
}

// The linear computes the first product itself, unless that would take longer, or the vendor's library computes the
// linear.
TEST(GpuLora, IsOneLaunchWithALinear) {
  std::vector<std::string> notes;
  auto recording = std::make_unique<RecordingDevice>(notes);
  RecordingDevice& fake = *recording;
  TestDevice device(std::make_unique<GpuBackend>(std::move(recording)));
  const auto launches = [&](int64_t rows, int64_t k, int64_t n, After after) {
    const LoraCase adapters(k, n, DType::kBF16, std::vector<int64_t>(8, 16), 1);
    const auto weight = random_weight(device, DType::kBF16, n, k);
    const JoinedCase c{rows, k, n, after, false};
    JoinedOperands operands{device, c, adapters, *weight, DType::kBF16};
    const LoraRows listed = operands.put(LoraMixture(rows, 1, 8));
    notes.clear();
    EXPECT_TRUE(operands.run_together(listed));
    return notes;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(launches(64, 8192, 2048, After::kResidual), Names{"hopper_linear_bf16_tall_n16"});
  EXPECT_EQ(launches(64, 2048, 8192, After::kGate), Names{"hopper_linear_bf16_tall_n128"});
  EXPECT_EQ(launches(64, 256, 2048, After::kResidual),
            (Names{"hopper_lora_shrink_bf16", "hopper_linear_bf16_tall_n16"}));
  fake.has_library = true;
  EXPECT_EQ(launches(200, 256, 24576, After::kGate),
            (Names{"hopper_lora_shrink_bf16", "library", "hopper_lora_finish_bf16"}));
}

TEST(GpuLora, JoinsALinearThatIsLongEnough) {
  constexpr int kUnits = 132;
  const auto joins = [](int rows, int k, int n, HopperEpilogue epilogue, int64_t slots, int groups) {
    HopperLinearParams p = {};
    p.m = rows;
    p.n = n;
    p.k = k;
    p.epilogue = epilogue;
    p.out_stride = n;
    return hopper_tall_joins_lora(hopper_tall_plan(p, true, kUnits), k, num_lora_runs(rows, slots), groups);
  };
  // The linears of a layer of Qwen3-8B, with adapters of rank 16.
  EXPECT_FALSE(joins(64, 4096, 6144, kHopperStore, 8, 3));
  EXPECT_TRUE(joins(64, 4096, 6144, kHopperStore, 1, 3));
  EXPECT_TRUE(joins(64, 4096, 4096, kHopperResidual, 8, 1));
  EXPECT_TRUE(joins(64, 4096, 24576, kHopperGated, 8, 2));
  EXPECT_TRUE(joins(64, 12288, 4096, kHopperResidual, 8, 1));
  // Several launches, and more parts than a threadgroup may have, whatever K is.
  EXPECT_FALSE(joins(16, 1 << 20, 12352, kHopperStore, 1, 1));
  EXPECT_FALSE(joins(64, 1 << 20, 4096, kHopperStore, 64, 4));
  EXPECT_FALSE(joins(64, 1 << 20, 64, kHopperStore, 8, 1));
}

}  // namespace
}  // namespace quire::gpu
