// SPDX-License-Identifier: Apache-2.0
// lora on a GPU, against doubles; and the same bits in any mixture of adapters.
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
      EXPECT_EQ(run(test_device(1), c, x, mixture, before), whole) << "another order of lanes";
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
      test_device(1).clear();
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

std::vector<uint8_t> run_joined(const JoinedCase& c, const LoraCase& adapters, const PackedMatrix& weight, DType type,
                                bool together) {
  TestDevice& device = test_device();
  const LoraMixture mixture(c.rows, 17);
  LoraRows rows = mixture.list();
  rows.rows = {device.put(mixture.rows), mixture.rows.size()};
  rows.slots = {device.put(mixture.slots), mixture.slots.size()};
  rows.runs = {device.put(mixture.runs), mixture.runs.size()};
  const LoraMemory memory{device.put(adapters.memory), adapters.slot_bytes, type};
  const Tensor x = device.put(HostMatrix(c.rows, c.k, type, 5, 1.0f, 8));
  const Tensor t = device.room(c.rows, device.ops().lora_spans(c.k) * adapters.most_rank, DType::kF32);
  const std::vector<float> values = cases::random_floats(c.n, 8, 1.0f);
  const float* bias = c.bias ? device.put(values) : nullptr;
  const FusedGlu gate{Activation::kSilu};
  const bool gated = c.after == After::kGate, residual = c.after == After::kResidual;
  const Tensor hidden = device.put(HostMatrix(c.rows, c.n, DType::kF32, 9, 1.0f, 2));
  const Tensor out = residual ? hidden : device.room(c.rows, gated ? c.n / 2 : c.n, type);
  LoraArgs lora{x, {}, memory, rows, LoraCase::kSite, t, out, adapters.most_rank};
  LinearArgs args{x, &weight, bias, out};
  args.gated = gated ? &gate : nullptr;
  if (residual) args.residual = hidden, args.residual_scale = 0.75f;
  args.lora = &lora;
  if (together) {
    if (!device.ops().joins_lora(args)) return {};
    device.ops().linear(args);
  } else {
    const Tensor sums = device.room(c.rows, c.n, type);
    device.ops().linear({x, &weight, bias, sums});
    lora.out = sums;
    device.ops().lora(lora);
    if (gated) device.ops().glu({sums.columns(0, c.n / 2), sums.columns(c.n / 2, c.n / 2), gate.activation, out});
    if (residual) device.ops().residual_add({sums, hidden, 0.75f, out});
    if (c.after == After::kNothing) return device.rows_of(sums, false);
  }
  return device.rows_of(out, false);
}

TEST(GpuLora, HasTheSameBitsInsideOfALinear) {
  if (!test_device().ops().hopper()) GTEST_SKIP() << "no product of this device has adapters in its epilogue";
  int joined = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [k, n] :
         {std::pair<int64_t, int64_t>{512, 1536}, {1152, 3072}, {208, 13824}, {200, 3072}, {2048, 24576}}) {
      const LoraCase adapters(k, n, type);
      const cases::Weight values = cases::random_weight_of(type, n, k, 7);
      const RawMatrix raw = values.raw();
      const auto weight = test_device().ops().pack({&raw, 1}, {.activation = type});
      ASSERT_TRUE(weight.ok());
      for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{33}, int64_t{64}, int64_t{100}, int64_t{200}}) {
        for (const After after : {After::kNothing, After::kGate, After::kResidual}) {
          const JoinedCase c{rows, k, n, after, rows == 33};
          const std::vector<uint8_t> together = run_joined(c, adapters, *weight.value(), type, true);
          if (!together.empty()) {
            ++joined;
            EXPECT_TRUE(together == run_joined(c, adapters, *weight.value(), type, false))
                << name(type) << ", " << rows << " rows of " << k << ", " << n << " columns, after "
                << static_cast<int>(after);
          }
          test_device().clear();
        }
      }
    }
  }
  EXPECT_GT(joined, 60);
}

}  // namespace
}  // namespace quire::gpu
