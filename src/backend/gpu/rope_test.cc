// SPDX-License-Identifier: Apache-2.0
// rope on a GPU: doubles within the rounding of the output for all types, and the same bits for a row alone.
#include <cmath>

#include "backend/gpu/test_device.h"
#include "backend/testing/rope_oracle.h"

namespace quire::gpu {
namespace {

TEST(GpuRope, RotatesPairsOfBothKindsAndLeavesTheRest) {
  struct Shape {
    int64_t head_dim, rot_dim, offset;
  };
  for (const Shape s : {Shape{64, 64, 0}, Shape{80, 32, 0}, Shape{24, 6, 18}}) {
    for (const DType type : kTypes) {
      for (const bool interleaved : {false, true}) {
        const int64_t half = s.rot_dim / 2;
        HostMatrix x(3, 3 * s.head_dim, type, 9), cosines(1, 50 * half, DType::kF32, 10, 1.0f, 0),
            sines(1, 50 * half, DType::kF32, 11, 1.0f, 0);
        const std::vector<int32_t> positions = {49, 0, 7};
        const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor on_device = device.put(x);
          const Tensor part = on_device.some_rows(first, count);
          const std::span<const int32_t> all(device.put(positions), 3);
          device.ops().rope({part, s.head_dim, s.rot_dim, interleaved, device.put(cosines).f32(),
                             device.put(sines).f32(),
                             all.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), s.offset});
          return device.rows_of(part, false);
        };
        const std::string what = text("rope", type, type, s.rot_dim);
        const std::vector<float> got = run_rows(3, type, run, what);
        for (int64_t r = 0; r < 3; ++r) {
          const RopeArgs shape{{}, s.head_dim, s.rot_dim, interleaved, nullptr, nullptr, {}, s.offset};
          const int64_t angle = positions[static_cast<size_t>(r)] * half;
          const std::vector<double> exact =
              cases::exact_rope(x.part(r, 0, x.cols), shape, &cosines.at(0, angle), &sines.at(0, angle));
          for (int64_t c = 0; c < x.cols; ++c) {
            const int64_t i = c % s.head_dim - s.offset;
            const float y = got[static_cast<size_t>(r * x.cols + c)];
            const double truth = exact[static_cast<size_t>(c)];
            if (i < 0 || i >= s.rot_dim) {
              ASSERT_EQ(y, x.at(r, c)) << what;
              continue;
            }
            expect_close(y, truth, type, 4, 2, what);
          }
        }
      }
    }
  }
}

// What MLA does with queries: the rotated end of a head goes to the end of another.
TEST(GpuRope, RotatesIntoAnotherTensor) {
  constexpr int64_t kHead = 40, kRot = 16, kInto = 25;
  TestDevice& device = test_device();
  for (const DType type : kTypes) {
    for (const bool interleaved : {false, true}) {
      const HostMatrix values(3, 2 * kHead, type, 9), table(1, 50 * kRot, DType::kF32, 10, 1.0f, 0);
      const float* cosines = device.put(table).f32();
      const std::vector<int32_t> at = {49, 0, 7};
      const std::span<const int32_t> positions(device.put(at), 3);
      const Tensor x = device.put(values), in_place = device.put(values), into = device.room(3, 2 * kInto, type);
      RopeArgs args{in_place, kHead, kRot, interleaved, cosines, cosines + 25 * kRot, positions, kHead - kRot};
      device.ops().rope(args);
      args.x = x;
      args.into = into;
      args.into_head_dim = kInto;
      device.ops().rope(args);
      for (int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(device.rows_of(into.columns((h + 1) * kInto - kRot, kRot), false),
                  device.rows_of(in_place.columns((h + 1) * kHead - kRot, kRot), false));
        for (const uint8_t byte : device.rows_of(into.columns(h * kInto, kInto - kRot), false)) {
          ASSERT_EQ(byte, TestDevice::kUntouched);
        }
      }
      EXPECT_EQ(device.rows_of(x, false), device.rows_of(device.put(values), false));
    }
  }
  device.clear();
}

}  // namespace
}  // namespace quire::gpu
