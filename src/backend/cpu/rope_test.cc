// SPDX-License-Identifier: Apache-2.0
// rope: the oracle in doubles, and the contract in scalar floats by bits on every ISA level.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/testing/guarded_matrix.h"
#include "backend/testing/rope_oracle.h"

namespace quire::cpu {
namespace {

using namespace cases;
using Matrix = GuardedMatrix;

TEST(Rope, RotatesPairsOfBothKindsAndLeavesTheRest) {
  struct Shape {
    int64_t head_dim, rot_dim;
  };
  std::vector<Shape> shapes;
  for (int64_t rot = 0; rot <= 70; rot += 2) shapes.push_back({rot + 1, rot});
  for (const Shape s : {Shape{64, 64}, Shape{80, 32}, Shape{128, 128}, Shape{256, 64}, Shape{100, 100}}) {
    shapes.push_back(s);
  }
  for (const Isa isa : probed_isas()) {
    for (const Shape s : shapes) {
      for (const bool interleaved : {false, true}) {
        const int64_t half = s.rot_dim / 2;
        Matrix x(4, s.head_dim * 3, s.rot_dim % 4, 8), want = x;
        Matrix cosines(1, 50 * half, 1, 9, 1.0f), sines(1, 50 * half, 3, 10, 1.0f);
        const std::vector<int32_t> positions = {0, 7, 49, 7};
        const RopeArgs args{x.tensor(), s.head_dim, s.rot_dim, interleaved, cosines.row(0), sines.row(0), positions};
        for (int64_t r = 0; r < 4; ++r) {
          const int64_t at = positions[static_cast<size_t>(r)] * half;
          const std::span<const float> row(x.row(r), static_cast<size_t>(x.cols));
          const std::vector<double> exact = exact_rope(row, args, cosines.row(0) + at, sines.row(0) + at);
          for (int64_t head = 0; head < 3; ++head) {
            for (int64_t i = 0; i < half; ++i) {
              float* h = want.row(r) + head * s.head_dim;
              float& a = h[interleaved ? 2 * i : i];
              float& b = h[interleaved ? 2 * i + 1 : i + half];
              const float c = cosines.row(0)[at + i], d = sines.row(0)[at + i];
              const float y = std::fma(a, c, -(b * d)), z = std::fma(b, c, a * d);
              a = y;
              b = z;
            }
          }
          for (int64_t i = 0; i < x.cols; ++i) {  // two roundings of products below 2
            ASSERT_NEAR(double{want.row(r)[i]}, exact[static_cast<size_t>(i)], 4 * kEps * 2);
          }
        }
        // Into the ends of other heads first, which leaves x as it is.
        Matrix into(4, 3 * (s.rot_dim + 5), 1, 11), want_into = into;
        for (int64_t r = 0; r < 4; ++r) {
          for (int64_t i = 0; i < 3 * s.rot_dim; ++i) {
            const int64_t head = i / s.rot_dim, d = i % s.rot_dim;
            want_into.row(r)[head * (s.rot_dim + 5) + 5 + d] = want.row(r)[head * s.head_dim + d];
          }
        }
        const Matrix before = x;
        RopeArgs elsewhere = args;
        elsewhere.into = into.tensor();
        elsewhere.into_head_dim = s.rot_dim + 5;
        check(elsewhere);
        kernels(isa).rope(elsewhere, 0, 4);
        expect_same_bits(into, want_into, std::string(name(isa)) + " rot_dim " + std::to_string(s.rot_dim) + " into");
        expect_same_bits(x, before, "x");
        kernels(isa).rope(args, 0, 2);
        kernels(isa).rope(args, 2, 4);
        expect_same_bits(x, want,
                         std::string(name(isa)) + " rot_dim " + std::to_string(s.rot_dim) +
                             (interleaved ? " interleaved" : " halves"));
      }
    }
  }
}

}  // namespace
}  // namespace quire::cpu
