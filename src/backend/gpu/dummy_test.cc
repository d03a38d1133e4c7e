// SPDX-License-Identifier: Apache-2.0
// Random weights that the device makes have the bits of those that the host makes and packs, in every type and order.
#include "weights/dummy.h"

#include <numeric>

#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"
#include "weights/dummy_form.h"
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
  for (int which = 0; which < kDevices; ++which) {
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

// Every type that a config or --quantization may ask for.
std::vector<std::string> quantised_types() {
  std::vector<std::string> out = {"awq", "fp8", "fp8_per_channel", "fp8_per_block", "int8_per_channel_weight_only"};
  for (const DTypeInfo& type : kGgufDTypes) {
    if (is_quantised(type.type)) out.emplace_back(type.name);
  }
  return out;
}

// Rows of a random tensor of `file_rows` rows in such a type, from `first` on.
RawMatrix random_codes(const std::string& type, int64_t n, int64_t k, int64_t first = 0, int64_t file_rows = 0) {
  const std::vector<int64_t> shape = {std::max(n, file_rows), k};
  const auto form =
      weights::dummy_form(weights::parse_quantization_flag(type).value(), "w", std::max(n, file_rows), k).value();
  RandomElements random = weights::DummySource(kSeed, DType::kF32).random("w" + std::to_string(n), shape).value();
  weights::set_codes(form, k, random);
  random.first = first * k;
  random.row_step = k;
  random.rows = n;
  RawMatrix out{form.type, n, k};
  out.group = form.group;
  out.file_rows = file_rows;
  out.random = random;
  return out;
}

TestDevice& device_of_host_codes() {
  static TestDevice* device = [] {
    setenv("QUIRE_GPU_DUMMY", "host", 1);
    auto* out = new TestDevice(0);
    unsetenv("QUIRE_GPU_DUMMY");
    return out;
  }();
  return *device;
}

TEST(GpuDummy, CodesHaveTheBitsOfTheHost) {
  const std::vector<int32_t> map = {39, 0, 7, 7, 38, 1, 2, 12, 30};
  for (const std::string& type : quantised_types()) {
    std::vector<RawMatrix> parts = {random_codes(type, 21, 512), random_codes(type, 9, 512, 0, 40),
                                    random_codes(type, 18, 512, 54)};
    parts[1].row_map = map;
    const std::vector<uint8_t> expected = packed_bytes(device_of_host_codes(), parts);
    for (int which = 0; which < kDevices; ++which) {
      EXPECT_TRUE(packed_bytes(test_device(which), parts) == expected) << type << ", device " << which;
    }
  }
}

TEST(GpuDummy, CodesOfRowsDoNotDependOnWhichRowsAreTaken) {
  const std::vector<int32_t> map = {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  for (const std::string& type : quantised_types()) {
    RawMatrix whole = random_codes(type, 32, 768), some = whole;
    some.n = some.random->rows = 16;
    some.file_rows = 32;
    some.row_map = map;
    const std::vector<uint8_t> all = packed_bytes(test_device(), {whole}), half = packed_bytes(test_device(), {some});
    EXPECT_TRUE(std::equal(half.begin(), half.end(), all.begin() + static_cast<ptrdiff_t>(half.size()), all.end()))
        << type;
  }
}

// The rows of a matrix as floats.
std::vector<float> floats_on_device(const RawMatrix& raw) {
  TestDevice& device = test_device();
  const auto table = device.ops().pack({&raw, 1}, {.quantise_activations = false}).value();
  std::vector<int32_t> tokens(static_cast<size_t>(raw.n));
  std::iota(tokens.begin(), tokens.end(), 0);
  const Tensor out = device.room(raw.n, raw.k, DType::kF32);
  device.ops().embedding({table.get(), {device.put(tokens), tokens.size()}, 1.0f, out});
  const std::vector<uint8_t> bytes = device.rows_of(out);
  device.clear();
  std::vector<float> values(static_cast<size_t>(raw.n * raw.k));
  EXPECT_EQ(bytes.size(), values.size() * sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
std::vector<float> floats_on_cpu(RawMatrix raw) {
  if (raw.dtype == DType::kGF8) raw.dtype = DType::kF32, raw.group = 0;  // expanded
  const auto cpu = make_cpu_backend({.threads = 1, .isa = ""}).value();
  const auto table = cpu->pack({&raw, 1}, {.quantise_activations = false}).value();
  std::vector<int32_t> tokens(static_cast<size_t>(raw.n));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> values(static_cast<size_t>(raw.n * raw.k));
  cpu->embedding({table.get(), tokens, 1.0f, {values.data(), DType::kF32, raw.n, raw.k, raw.k}});
  return values;
}

TEST(GpuDummy, ValuesOfCodesAreThoseOfTheCpuWithTheSpreadOfPlainWeights) {
  constexpr int64_t kRows = 150, kColumns = 768;
  for (const std::string& type : quantised_types()) {
    const RawMatrix raw = random_codes(type, kRows, kColumns);
    const std::vector<float> values = floats_on_device(raw), expected = floats_on_cpu(raw);
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0) << type;
    double sum = 0, squares = 0;
    for (const float v : expected) sum += v, squares += static_cast<double>(v) * v;
    const auto count = static_cast<double>(expected.size());
    const double spread = std::sqrt(squares / count), wanted = 1 / std::sqrt(static_cast<double>(kColumns));
    // MXFP4 has scales that are powers of two, and fp8 of blocks and matrices only a few of them.
    const double within = raw.dtype == DType::kMXFP4 ? 1.42 : type == "fp8" || type == "fp8_per_block" ? 1.3 : 1.03;
    EXPECT_LT(spread, wanted * within) << type;
    EXPECT_GT(spread, wanted / within) << type;
    EXPECT_LT(std::fabs(sum / count), 0.03 * wanted) << type;
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
