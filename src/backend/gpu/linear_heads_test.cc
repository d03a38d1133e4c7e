// SPDX-License-Identifier: Apache-2.0
// linear_heads on a GPU has the bits of a linear for each head, whichever kernels serve the two, and is one launch.
#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"
#include "backend/testing/linear_heads_cases.h"

namespace quire::gpu {
namespace {

std::unique_ptr<PackedMatrix> packed(GpuBackend& ops, std::span<const RawMatrix> parts, DType activation) {
  auto out = ops.pack(parts, {.activation = activation});
  QUIRE_CHECK(out.ok(), "a weight of the test could not be packed");
  return std::move(out).value();
}

// `gap`: columns between the heads of x, so that they begin on 16 bytes or not.
void check_heads(DType type, DType weight_type, const cases::HeadsShape& shape, int64_t gap) {
  const cases::HeadWeights weights(weight_type, shape);
  const int64_t k = weights.heads[0].k, x_head = k + gap, out_head = shape.n + 3;
  const HostMatrix x(200, shape.heads * x_head, type, 5, 1.0f, 8);
  std::unique_ptr<PackedMatrix> all[2];
  for (int i = 0; i < kDevices; ++i) all[i] = packed(test_device(i).ops(), weights.parts(), type);
  std::vector<std::unique_ptr<PackedMatrix>> apart;
  for (const cases::Weight& head : weights.heads) {
    const RawMatrix raw = head.raw();
    apart.push_back(packed(test_device().ops(), {&raw, 1}, type));
  }
  for (const int64_t rows : cases::kHeadsRows) {
    const auto joined = [&](int which) {
      TestDevice& device = test_device(which);
      const Tensor out = device.room(rows, shape.heads * out_head, type);
      device.ops().linear_heads({device.put(x).first_rows(rows), all[which].get(), shape.heads, shape.n, out});
      return device.rows_of(out);
    };
    TestDevice& device = test_device();
    const Tensor in = device.put(x).first_rows(rows), out = device.room(rows, shape.heads * out_head, type);
    for (int64_t h = 0; h < shape.heads; ++h) {
      device.ops().linear({in.columns(h * x_head, k), apart[static_cast<size_t>(h)].get(), nullptr,
                           out.columns(h * out_head, shape.n)});
    }
    const std::vector<uint8_t> want = device.rows_of(out);
    for (int which = 0; which < kDevices; ++which) {
      ASSERT_TRUE(joined(which) == want) << name(weight_type) << " weight, " << name(type) << " activations, "
                                         << shape.heads << " heads " << shape.n << "x" << k << ", " << rows
                                         << " rows, order " << which;
    }
    device.clear();
    if (kDevices > 1) test_device(1).clear();
  }
}

TEST(GpuLinearHeads, HaveTheBitsOfALinearForEachHead) {
  for (const DType type : kTypes) {
    for (const cases::HeadsShape& shape : cases::kHeadsShapes) {
      check_heads(type, type, shape, 16);
      if (HasFatalFailure()) return;
    }
    for (const DType weight : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
      check_heads(type, weight, {3, 40, 72}, 5);
      if (HasFatalFailure()) return;
    }
  }
}

// DeepSeek-V2-Lite on a chip of 132 multiprocessors: a decode step has threadgroups for all of them.
TEST(GpuLinearHeads, AreOneLaunchThatFitsTheRows) {
  const auto launched = [](int64_t n, int64_t k, int64_t rows) {
    std::vector<std::string> notes;
    GpuBackend ops(std::make_unique<RecordingDevice>(notes));
    const std::vector<std::byte> bytes(static_cast<size_t>(16 * n * k * 2));
    const RawMatrix raw{DType::kBF16, 16 * n, k, bytes.data()};
    const auto weight = packed(ops, {&raw, 1}, DType::kBF16);
    std::vector<uint8_t> x(static_cast<size_t>(rows * 16 * k * 2)), out(static_cast<size_t>(rows * 16 * n * 2));
    notes.clear();
    ops.linear_heads({{x.data(), DType::kBF16, rows, 16 * k, 16 * k},
                      weight.get(),
                      16,
                      n,
                      {out.data(), DType::kBF16, rows, 16 * n, 16 * n}});
    return notes;
  };
  using Notes = std::vector<std::string>;
  EXPECT_EQ(launched(512, 128, 1), Notes{"linear_heads_bf16_deep"});
  EXPECT_EQ(launched(128, 512, 1), Notes{"linear_heads_bf16_deep"});
  EXPECT_EQ(launched(512, 128, 64), Notes{"linear_heads_bf16_few"});
  EXPECT_EQ(launched(128, 512, 64), Notes{"linear_heads_bf16_deep"});
  EXPECT_EQ(launched(512, 128, 512), Notes{"linear_heads_bf16_many"});
  EXPECT_EQ(launched(128, 512, 512), Notes{"linear_heads_bf16_many"});
}

}  // namespace
}  // namespace quire::gpu
