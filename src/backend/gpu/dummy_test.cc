// SPDX-License-Identifier: Apache-2.0
// Random weights that the device makes have the bits of those that the host makes and packs, in every type and order.
#include "weights/dummy.h"
#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"
#include "weights/quant.h"

namespace quire::gpu {
namespace {

constexpr uint64_t kSeed = 77;

// Rows of a random tensor, as a part for the device and as bytes of the host.
struct DummyPart {
  std::string name = "w.weight";
  std::vector<int64_t> shape;
  int64_t n = 0, k = 0;
  int64_t first = 0, row_step = 0, column_step = 1;
  int64_t made = 0;  // rows; 0: all
  std::vector<int32_t> map = {};

  RawMatrix on_device(DType stored, DType type) const {
    RawMatrix out{type, n, k};
    RandomElements random = weights::DummySource(kSeed, stored).random(name, shape).value();
    random.first = first;
    random.row_step = row_step;
    random.column_step = column_step;
    random.rows = made > 0 ? made : n;
    out.random = random;
    out.row_map = map;
    for (const int32_t row : map) out.file_rows = std::max<int64_t>(out.file_rows, row + 1);
    return out;
  }
  std::vector<std::byte> bytes(DType stored, DType type) const {
    std::vector<std::byte> out(static_cast<size_t>(n * row_bytes(type, k)));
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < n; ++r) {
      const int64_t from = map.empty() ? r : map[static_cast<size_t>(r)];
      for (int64_t c = 0; c < k; ++c) {
        float& x = row[static_cast<size_t>(c)];
        x = 0;
        if (made > 0 && r >= made) continue;
        weights::fill_dummy(kSeed, name, shape, first + from * row_step + c * column_step, {&x, 1});
        x = rounded(x, stored);
      }
      weights::quantise_row(type, row.data(), out.data() + r * row_bytes(type, k), k);
    }
    return out;
  }
};

std::vector<uint8_t> packed_bytes(TestDevice& device, const std::vector<RawMatrix>& parts) {
  const auto packed = device.ops().pack(parts, {.activation = DType::kBF16});
  EXPECT_TRUE(packed.ok()) << packed.error().message;
  return device.get(gpu_matrix(packed->get()).data, (*packed)->bytes());
}

void expect_same(const std::vector<DummyPart>& parts, DType stored, DType type) {
  std::vector<RawMatrix> made, copied;
  std::vector<std::vector<std::byte>> memory;
  for (const DummyPart& part : parts) {
    made.push_back(part.on_device(stored, type));
    memory.push_back(part.bytes(stored, type));
    copied.push_back({type, part.n, part.k, memory.back().data()});
  }
  const std::vector<uint8_t> expected = packed_bytes(test_device(), copied);
  for (const int which : {0, 1}) {
    EXPECT_TRUE(packed_bytes(test_device(which), made) == expected)
        << name(stored) << " to " << name(type) << ", device " << which;
  }
}

TEST(GpuDummy, PlainWeightsHaveTheBitsOfTheHost) {
  const DummyPart whole{.shape = {37, 70}, .n = 37, .k = 70, .row_step = 70};
  const DummyPart wide{.shape = {3, 2100}, .n = 3, .k = 2100, .row_step = 2100};
  const DummyPart vector{.name = "norm.weight", .shape = {96}, .n = 3, .k = 32, .row_step = 32};
  for (const DType stored : kTypes) {
    for (const DType type : kTypes) {
      for (const DummyPart& part : {whole, wide, vector}) expect_same({part}, stored, type);
    }
  }
}

TEST(GpuDummy, PartsMapsTransposesAndZeroRowsHaveTheBitsOfTheHost) {
  const DummyPart mapped{.shape = {9, 48}, .n = 4, .k = 48, .row_step = 48, .map = {8, 0, 3, 3}};
  const DummyPart expert{.name = "experts", .shape = {5, 7, 48}, .n = 7, .k = 48, .first = 3 * 7 * 48, .row_step = 48};
  const DummyPart head{.name = "kv_b.weight",
                       .shape = {48, 20},
                       .n = 24,
                       .k = 48,
                       .first = 0,
                       .row_step = 1,
                       .column_step = 20,
                       .made = 20};
  for (const DType type : kTypes) expect_same({mapped, expert, head, mapped}, DType::kBF16, type);
}

TEST(GpuDummy, TheCounterGoesOnPast32Bits) {
  const int64_t first = (int64_t{1} << 34) - 6;  // a fourth of it crosses 2^32
  expect_same({{.shape = {int64_t{1} << 30, 64}, .n = 2, .k = 64, .first = first, .row_step = 64}}, DType::kF32,
              DType::kF32);
}

TEST(GpuDummy, Mxfp4HasTheBitsOfTheHost) {
  const DummyPart rows{.shape = {40, 352}, .n = 40, .k = 352, .row_step = 352};
  const int64_t n = 52, k = 96;  // gate and up are every other column, and end within a panel
  const auto column = [&](int64_t part) {
    return DummyPart{.name = "gate_up_proj",
                     .shape = {3, k, n},
                     .n = n / 2,
                     .k = k,
                     .first = 2 * k * n + part,
                     .row_step = 2,
                     .column_step = n};
  };
  for (const DType stored : kTypes) {
    expect_same({rows}, stored, DType::kMXFP4);
    expect_same({column(0), column(1)}, stored, DType::kMXFP4);
  }
}

TEST(GpuDummy, TheMatricesOfAStackShareOneAllocation) {
  std::vector<std::string> notes;
  auto device = std::make_unique<RecordingDevice>(notes);
  RecordingDevice& recorder = *device;
  GpuBackend backend(std::move(device));
  const std::vector<std::byte> bytes(16 * 64 * 2);
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  std::vector<const PackedMatrix*> views;
  const size_t before = recorder.allocations;
  for (int64_t e = 0; e < 8; ++e) {
    const RawMatrix raw{DType::kBF16, 16, 64, bytes.data()};
    PackOptions options{.activation = DType::kBF16, .for_linear = false};
    options.stack = {8, e, e == 0 ? nullptr : views.front()};
    packed.push_back(backend.pack({&raw, 1}, options).value());
    views.push_back(packed.back().get());
  }
  const RawMatrix other{DType::kF16, 16, 64, bytes.data()};
  PackOptions options{.activation = DType::kBF16, .for_linear = false};
  options.stack = {8, 1, views.front()};
  const auto refused = backend.pack({&other, 1}, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("they must have one type"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(backend.stack(views).ok());
  EXPECT_EQ(recorder.allocations, before + 1);
  for (size_t e = 1; e < views.size(); ++e) {
    EXPECT_EQ(gpu_matrix(views[e]).data, static_cast<char*>(gpu_matrix(views[0]).data) + e * bytes.size());
  }
}

}  // namespace
}  // namespace quire::gpu
