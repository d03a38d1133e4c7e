// SPDX-License-Identifier: Apache-2.0
// Activations, residual_add, scale and soft_cap on a GPU: doubles within the rounding of the output for all types, and
// the same bits for a row alone, in a batch and under another order of lanes.
#include <cmath>

#include "backend/gpu/test_device.h"
#include "backend/testing/activation_oracle.h"

namespace quire::gpu {
namespace {

TEST(GpuActivations, HaveTheValueOfDoubles) {
  for (const Activation activation : cases::kActivations) {
    for (const DType type : kTypes) {
      for (const int64_t cols : {1, 7, 64}) {
        const std::string what =
            text("activation", type, type, cols) + " " + std::to_string(static_cast<int>(activation));
        HostMatrix gate(3, cols, type, 12, 12.0f), up(3, cols, type, 13);
        const auto glu = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.room(count, cols, type);
          device.ops().glu(
              {device.put(gate).some_rows(first, count), device.put(up).some_rows(first, count), activation, out});
          return device.rows_of(out);
        };
        const auto plain = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.put(gate).some_rows(first, count);  // in place
          device.ops().activation({out, activation, out});
          return device.rows_of(out, false);
        };
        const std::vector<float> gated = run_rows(3, type, glu, what), got = run_rows(3, type, plain, what);
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const double x = double{gate.at(r, c)}, u = double{up.at(r, c)};
            const double truth = cases::exact_activation(activation, x);
            const double size = std::fabs(x) + std::fabs(truth) + 1;  // 1 + erf cancels where x is negative
            expect_close(got[static_cast<size_t>(r * cols + c)], truth, type, size, 8, what);
            expect_close(gated[static_cast<size_t>(r * cols + c)], truth * u, type, size * std::fabs(u), 10, what);
          }
        }
      }
    }
  }
}

TEST(GpuActivations, ClampAsGptOssDoes) {
  const double limit = 7;
  for (const DType type : kTypes) {
    HostMatrix gate(2, 70, type, 14, 20.0f), up(2, 70, type, 15, 20.0f);
    const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
      const Tensor out = device.room(count, 70, type);
      device.ops().glu({device.put(gate).some_rows(first, count), device.put(up).some_rows(first, count),
                        Activation::kSilu, out, 7.0f});
      return device.rows_of(out);
    };
    const std::vector<float> got = run_rows(2, type, run, "clamped glu");
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t c = 0; c < 70; ++c) {
        const double truth = cases::exact_clamped_glu(double{gate.at(r, c)}, double{up.at(r, c)}, limit);
        expect_close(got[static_cast<size_t>(r * 70 + c)], truth, type, std::fabs(truth), 100, "clamped glu");
      }
    }
  }
}

TEST(GpuResidual, AddsAScaledRow) {
  constexpr TypePair kAdded[] = {{DType::kF32, DType::kF32},
                                 {DType::kF16, DType::kF32},
                                 {DType::kBF16, DType::kF32},
                                 {DType::kF16, DType::kF16},
                                 {DType::kBF16, DType::kBF16}};
  for (const TypePair& types : kAdded) {
    for (const int64_t cols : {3, 64, 66}) {
      const std::string what = text("residual_add", types.in, types.out, cols);
      HostMatrix x(3, cols, types.in, 16), residual(3, cols, types.out, 17);
      const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
        const Tensor out = device.put(residual).some_rows(first, count);
        device.ops().residual_add({device.put(x).some_rows(first, count), out, 0.25f, out});
        return device.rows_of(out, false);
      };
      const std::vector<float> got = run_rows(3, types.out, run, what);
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float want = rounded(std::fma(x.at(r, c), 0.25f, residual.at(r, c)), types.out);
          ASSERT_EQ(got[static_cast<size_t>(r * cols + c)], want) << what;
        }
      }
    }
  }
}

TEST(GpuScale, TakesAFactorForAllRowsAndOneForEachAndCasts) {
  const std::vector<float> factors = {0.5f, -3.0f, 1.75f};
  for (const TypePair& types : kPairs) {
    for (const int64_t cols : {5, 64}) {
      for (const bool by_row : {false, true}) {
        const std::string what = text("scale", types.in, types.out, cols);
        HostMatrix x(3, cols, types.in, 18);
        const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.room(count, cols, types.out);
          std::span<const float> rows;
          if (by_row) {
            rows = std::span<const float>(device.put(factors), 3)
                       .subspan(static_cast<size_t>(first), static_cast<size_t>(count));
          }
          device.ops().scale({device.put(x).some_rows(first, count), 1.1f, rows, out});
          return device.rows_of(out);
        };
        const std::vector<float> got = run_rows(3, types.out, run, what);
        for (int64_t r = 0; r < 3; ++r) {
          const float factor = by_row ? 1.1f * factors[static_cast<size_t>(r)] : 1.1f;
          for (int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(got[static_cast<size_t>(r * cols + c)], rounded(x.at(r, c) * factor, types.out)) << what;
          }
        }
      }
    }
  }
}

TEST(GpuSoftCap, HasTheValueOfDoubles) {
  for (const DType type : kTypes) {
    HostMatrix x(2, 65, type, 19, 100.0f);
    const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
      const Tensor out = device.put(x).some_rows(first, count);
      device.ops().soft_cap({out, 30.0f, out});
      return device.rows_of(out, false);
    };
    const std::vector<float> got = run_rows(2, type, run, "soft_cap");
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t c = 0; c < 65; ++c) {
        const double truth = cases::exact_soft_cap(double{x.at(r, c)}, 30);
        expect_close(got[static_cast<size_t>(r * 65 + c)], truth, type, 30, 6, "soft_cap");
      }
    }
  }
}

TEST(GpuElementwise, TakesNoRows) {
  TestDevice& device = test_device();
  const Tensor none = {device.room(1, 64, DType::kF32).data, DType::kF32, 0, 64, 64};
  const float* weight = none.f32();
  device.ops().rms_norm({none, weight, 64, 1e-5f, none});
  device.ops().glu({none, none, Activation::kSilu, none});
  device.ops().rope({none, 64, 64, false, weight, weight, {}});
  device.ops().gather({none, {}, none});
  device.clear();
}

}  // namespace
}  // namespace quire::gpu
